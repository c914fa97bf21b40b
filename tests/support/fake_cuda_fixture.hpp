// A context with fake_cuda's device open in it, for tests that step it by hand.
//
//     for (auto signal : fake_cuda::signals) {
//       fake_cuda::fixture f(signal);
//       auto s = f.dev.make_stream().value();
//       CHECK(!s.copy(f.filled(64, 0), f.filled(64, 1)));
//       fake_cuda::drain();
//       f.look();                                          // the loop finds out
//     }
#pragma once

#include <string>

#include "support/cuda_machine.hpp"
#include "support/fake_cuda.hpp"

namespace cokv::test::fake_cuda {

constexpr completion_signal signals[] = {completion_signal::word, completion_signal::event};

struct fixture {
  explicit fixture(completion_signal signal = completion_signal::automatic, options how = {}) {
    reset(how);
    dev = open_device(ctx.get_executor(), "cuda:0", {.signal = signal}).value();
  }
  buffer filled(std::size_t n, int value) { return test::filled(dev, n, value); }

  // Polls and runs what there is to run, some rounds of it.
  void look() {
    for (int i = 0; i < 20; ++i) {
      progress::of(ctx.get_executor()).poll();
      ctx.poll();
      ctx.restart();
    }
  }

  asio::io_context ctx{1};
  device dev;
};

inline std::string first_violation() {
  const auto all = violations();
  return all.empty() ? "" : all.front();
}

}  // namespace cokv::test::fake_cuda
