// Options by the kind of their values: parsed while the command line is, so a bad one is refused by its flag's name, and
// with what it takes, before anything starts.
//
//     std::uint64_t memory = 1 << 30;
//     add_size(*command, "--memory", memory, "How much to keep in memory");
//     endpoint at{"127.0.0.1", 8000};
//     add_endpoint(*command, "--listen", at, "Where to listen");
//     std::uint32_t blocks = 0;
//     add_count(*command, "--kv-blocks", blocks, 1, 1 << 30, "KV blocks on the device");
#pragma once

#include <CLI/App.hpp>
#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint.hpp"
#include "cokv/runtime/net.hpp"

namespace cokv::cli {

CLI::Option* add_size(CLI::App& app, std::string flag, std::uint64_t& into, std::string help);
CLI::Option* add_endpoint(CLI::App& app, std::string flag, endpoint& into, std::string help);
CLI::Option* add_choice(CLI::App& app, std::string flag, std::string& into, std::vector<std::string> choices,
                        std::string help);
// --model and --random-weights.
void add_checkpoint(CLI::App& app, checkpoint_options& into);
// cpu or cuda:N. Whether there is one is not asked here.
CLI::Option* add_device(CLI::App& app, std::string flag, std::string& into);
// From `low` to `high`; `above`: `low` itself is not taken.
CLI::Option* add_real(CLI::App& app, std::string flag, std::optional<float>& into, double low, double high,
                      std::string help, bool above = false);

// An integer from `low` to `high`, into a number or an optional one. A default is shown where `into` has one.
template <class Into>
CLI::Option* add_count(CLI::App& app, std::string flag, Into& into, std::uint64_t low, std::uint64_t high,
                       std::string help) {
  auto parse = [flag, low, high, &into](const std::string& text) {
    std::uint64_t n = 0;
    const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), n);
    if (wrong != std::errc() || end != text.data() + text.size() || n < low || n > high)
      throw CLI::ValidationError(
          flag, text + ": takes an integer from " + std::to_string(low) + " to " + std::to_string(high));
    if constexpr (requires { typename Into::value_type; })
      into = static_cast<typename Into::value_type>(n);
    else
      into = static_cast<Into>(n);
  };
  auto* option = app.add_option_function<std::string>(flag, parse, std::move(help))->type_name("N");
  if constexpr (requires { into + 0; })
    if (into >= static_cast<Into>(low)) option->default_str(std::to_string(into));
  return option;
}

// --tls-cert and --tls-key.
void add_tls(CLI::App& app, std::string& certificate_file, std::string& key_file);

// Refuses a size that no machine like this one has: config_error naming the flag.
void check_memory(std::string_view flag, std::uint64_t bytes);

}  // namespace cokv::cli
