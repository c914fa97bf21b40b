// Awaits a device: work goes onto a stream, an event marks a point behind it, and the coroutine resumes when the device
// has come that far. No thread waits meanwhile.
#include "example.hpp"

using namespace cokv;

awaitable<void> await_event(const example::options& options) {
  device gpu = open_device(co_await asio::this_coro::executor, options.device).value();
  stream compute = gpu.make_stream({.name = "compute"}).value();

  // A kernel is a function; its cost is for devices that price it. Enqueuing returns at once.
  long sum = 0;
  compute.launch("sum",
                 [&sum] {
                   for (long n = 1; n <= 1'000'000; ++n) sum += n;
                 },
                 {.flops = 1e6, .bytes = 8e6});
  event summed = compute.record();

  co_await summed.async_wait();
  std::printf("the sum of 1 to 1,000,000 is %ld\n", sum);

  // What goes wrong on the device arrives at the await that asked, as an exception or, here, as a value.
  compute.launch("fails", []() -> error_code { return errc::out_of_range; });
  auto [ec] = co_await compute.record().async_wait(asio::as_tuple(asio::deferred));
  std::printf("the next kernel: %s\n", ec.message().c_str());
}

int main(int argc, char** argv) { return example::run(argc, argv, await_event); }
