// What the examples share: their options, and a context to run on. A simulated device brings virtual time with it:
//
//     await_event                        on the CPU
//     await_event --device sim:h100      the same code on a simulated H100: its times, none of ours
#pragma once

#include <cstdio>
#include <exception>
#include <string>
#include <string_view>

#include "cokv/runtime/device.hpp"
#include "cokv/runtime/progress.hpp"
#include "cokv/runtime/sim_context.hpp"

namespace example {

struct options {
  std::string device = "cpu";
  std::string trace = "trace.json";  // for those that write one
};

using body = cokv::awaitable<void> (*)(const options&);

inline int run(int argc, char** argv, body start) try {
  options chosen;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::string_view(argv[i]) == "--device") chosen.device = argv[i + 1];
    if (std::string_view(argv[i]) == "--trace") chosen.trace = argv[i + 1];
  }
  auto rethrow = [](std::exception_ptr error) {
    if (error) std::rethrow_exception(error);
  };
  if (chosen.device.starts_with("sim:")) {
    cokv::sim_context context(1);
    cokv::asio::co_spawn(context.get_executor(), start(chosen), rethrow);
    return context.run() == cokv::sim_context::outcome::done ? 0 : 1;
  }
  cokv::asio::io_context context(1);
  cokv::asio::co_spawn(context, start(chosen), rethrow);
  cokv::run(context);
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s: %s\n", argv[0], e.what());
  return 1;
}

}  // namespace example
