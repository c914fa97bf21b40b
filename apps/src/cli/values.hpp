// Options whose values are sizes ("4GiB") and addresses ("HOST:PORT"): parsed while the command line is, so a bad one
// is refused by the flag's name before anything starts.
//
//     std::uint64_t memory = 1 << 30;
//     add_size(*command, "--memory", memory, "How much to keep in memory");
//     endpoint at{"127.0.0.1", 8000};
//     add_endpoint(*command, "--listen", at, "Where to listen");
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <string>

#include "cokv/runtime/net.hpp"

namespace cokv::cli {

CLI::Option* add_size(CLI::App& app, std::string flag, std::uint64_t& into, std::string help);
CLI::Option* add_endpoint(CLI::App& app, std::string flag, endpoint& into, std::string help);

}  // namespace cokv::cli
