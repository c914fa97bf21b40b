// The command line of `cokv`. Each subcommand is one file under command/ that registers itself with `add_NAME`: it
// declares its options on a CLI::App and, when the parser chose it, leaves an action to run. Parsing ends before any
// work starts, so a bad flag costs nothing.
//
//     void add_hello(CLI::App& app, action& chosen) {
//       auto options = std::make_shared<hello_options>();
//       auto* command = app.add_subcommand("hello", "Greets");
//       command->add_option("--name", options->name, "Whom to greet")->capture_default_str();
//       command->callback([options, &chosen] { chosen = [options](streams io) { return hello(*options, io); }; });
//     }
//
// Exit codes: 0 done; 2 the caller has to correct something (a flag, a file, a field: one line on stderr names it);
// 1 anything else that failed.
#pragma once

#include <CLI/App.hpp>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "cokv/runtime/error.hpp"

namespace cokv::cli {

// Where a command writes: results on `out`; what went wrong on `err`. Logs go through spdlog (logging.hpp).
struct streams {
  std::ostream& out;
  std::ostream& err;
};

using action = std::function<int(streams)>;

void add_cache(CLI::App& app, action& chosen);
void add_doctor(CLI::App& app, action& chosen);
void add_fit(CLI::App& app, action& chosen);
void add_generate(CLI::App& app, action& chosen);
void add_load(CLI::App& app, action& chosen);
void add_plan(CLI::App& app, action& chosen);
void add_serve(CLI::App& app, action& chosen);
void add_simulate(CLI::App& app, action& chosen);

// Parses and runs. Returns the exit code; never throws.
int run(std::vector<std::string> arguments, std::ostream& out, std::ostream& err);

}  // namespace cokv::cli
