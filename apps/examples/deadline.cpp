// Gives up in time: a wait with a deadline ends with errc::deadline when the device isn't done, at once and for good.
// The work goes on, its buffers stay alive, and somebody else may still wait for it.
#include <latch>

#include "cokv/runtime/deadline.hpp"
#include "example.hpp"

using namespace cokv;
using namespace std::chrono_literals;

awaitable<void> deadline(const example::options& options) {
  device gpu = open_device(co_await asio::this_coro::executor, options.device).value();
  stream compute = gpu.make_stream({.name = "compute"}).value();
  buffer block = gpu.allocate(1 << 20).value();

  // Slow: a second of a simulated device's time, or until somebody opens the latch.
  std::latch open(1);
  compute.launch("slow", [block, &open] { open.wait(), block.data()[0] = std::byte{7}; }, {.flops = 1e15});
  event done = compute.record();

  result<void> early = co_await with_deadline(done.async_wait(), 20ms);
  std::printf("after 20 ms: %s; the block has %ld owners\n", early.error().message().c_str(), block.use_count());

  open.count_down();
  result<void> late = co_await with_deadline(done.async_wait(), 60s);
  std::printf("in the end: %s; the block has %ld owner\n", late ? "done" : late.error().message().c_str(),
              block.use_count());
}

int main(int argc, char** argv) { return example::run(argc, argv, deadline); }
