// A machine with a CUDA device, for tests that hold on any: fake_cuda in its threaded mode, or the real thing. Each
// test body runs once for each way in which streams can tell how far they are.
//
//     TEST_CASE("cuda: ...") {
//       on_cuda([](cuda_machine& m) {
//         auto s = m.device.make_stream().value();
//         gate held(s);                                    // the stream does nothing until held.open()
//         ...
//       });
//     }
#pragma once

#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>

#include "cokv/runtime/device.hpp"
#include "cokv/runtime/progress.hpp"

namespace cokv::test {

// Pinned memory with `value` in every byte.
inline buffer filled(device from, std::size_t n, int value) {
  auto b = from.allocate(n, memory_kind::pinned).value();
  std::ranges::fill(b.bytes(), std::byte(value));
  return b;
}

inline bool all_are(const buffer& b, int value) {
  return std::ranges::all_of(b.bytes(), [value](std::byte x) { return x == std::byte(value); });
}

struct cuda_machine {
  asio::io_context context{1};
  cokv::device device;

  buffer pinned(std::size_t n, int value) { return filled(device, n, value); }

  // Runs the loop until its work is done.
  void run(run_options options = {}) {
    context.restart();
    cokv::run(context, options);
  }

  // Waits for an event on the loop.
  error_code wait(const event& e) {
    error_code result = errc::closed;
    e.async_wait([&](error_code ec) { result = ec; });
    run();
    return result;
  }
};

// What is enqueued behind it waits until it is open.
class gate {
 public:
  explicit gate(stream s) {
    auto made = s.launch_native("gate", {}, [state = state_](void* native) {
      auto* held = new std::shared_ptr<std::atomic<bool>>(state);
      const auto e = cudaLaunchHostFunc(
          static_cast<cudaStream_t>(native),
          [](void* data) {
            auto* held = static_cast<std::shared_ptr<std::atomic<bool>>*>(data);
            while (!**held) std::this_thread::yield();
            delete held;
          },
          held);
      if (e != cudaSuccess) delete held;
      REQUIRE(e == cudaSuccess);
    });
    REQUIRE(!made);
  }
  ~gate() { open(); }
  gate(const gate&) = delete;
  void open() { state_->store(true); }

 private:
  std::shared_ptr<std::atomic<bool>> state_ = std::make_shared<std::atomic<bool>>(false);
};

void on_cuda(const std::function<void(cuda_machine&)>& body);

}  // namespace cokv::test
