// The requests of a load as a command line tells them: drawn from a seed, or read from a file.
#pragma once

#include <optional>
#include <string>

#include "cli/cli.hpp"
#include "load/workload.hpp"

namespace cokv::workload {

struct demand {
  std::string arrivals = "poisson";
  std::string lengths = "sharegpt";
  std::string trace;  // a file; else arrivals and lengths
  double rate = 1;
  std::optional<std::uint32_t> requests;
  std::optional<float> seconds;
  std::optional<std::uint32_t> max_prompt, max_output;
  std::uint64_t seed = 1;
};

// Throws config_error naming the flag.
std::vector<load_item> items_of(const demand& d);

// Their flags, for what goes with them or does not.
struct demand_flags {
  CLI::Option *arrivals, *rate, *requests, *duration, *trace;
};
demand_flags add_demand(CLI::App& app, demand& into);
// Those of what requests are like and when they come, but for their rate: --arrivals, --duration, --max-prompt, --max-output.
struct shape_flags {
  CLI::Option *arrivals, *duration;
  std::vector<CLI::Option*> cuts;
};
shape_flags add_shape(CLI::App& app, demand& into);
// As --lengths takes it.
CLI::Option* add_lengths(CLI::App& app, std::string& into, std::string help);

}  // namespace cokv::workload
