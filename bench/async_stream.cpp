// What does a CPU stream add to its threads? An empty kernel from enqueue to the resumption of who waits for it, one by
// one and 64 a wait, against a oneTBB enqueue and a post back, with the handler built by hand.
//
//     bench_async_stream [--rounds 20000] [--repeat 9] [--json FILE]
#include <oneapi/tbb/task_arena.h>

#include "alternate.hpp"
#include "cokv/runtime/device.hpp"

namespace {

using namespace cokv;

awaitable<void> stream_kernel(asio::io_context& ctx, int rounds) {
  auto device = open_device(ctx.get_executor(), "cpu", {.threads = 1}).value();
  auto stream = device.make_stream().value();
  for (int i = 0; i < rounds; ++i) {
    stream.launch("empty", [] {});
    co_await stream.record().async_wait();
  }
}

// 64 kernels a wait: what a step of a model does.
awaitable<void> stream_batch(asio::io_context& ctx, int rounds) {
  auto device = open_device(ctx.get_executor(), "cpu", {.threads = 1}).value();
  auto stream = device.make_stream().value();
  for (int i = 0; i < rounds; i += 64) {
    for (int k = 0; k < 64; ++k) stream.launch("empty", [] {});
    co_await stream.record().async_wait();
  }
}

awaitable<void> arena_and_post(asio::io_context& ctx, int rounds) {
  tbb::task_arena arena(1, 0);
  auto work = asio::make_work_guard(ctx);
  for (int i = 0; i < rounds; ++i)
    co_await asio::async_initiate<const asio::deferred_t, void()>(
        [&](auto handler) {
          using handler_type = decltype(handler);
          auto* h = new handler_type(std::move(handler));
          arena.enqueue([h, &ctx] {
            asio::post(ctx, [h] {
              auto handler = std::move(*h);
              delete h;
              std::move(handler)();
            });
          });
        },
        asio::deferred);
}

}  // namespace

int main(int argc, char** argv) {
  using bench::each;
  const std::string raw = "oneTBB enqueue and post back";
  return bench::alternate(argc, argv, "What does a CPU stream add to its threads?", 20'000,
                          {{raw, [](int n) { return each(n, arena_and_post); }},
                           {"CPU stream, kernel to resumption", [](int n) { return each(n, stream_kernel); }, raw},
                           {"CPU stream, one of 64 kernels", [](int n) { return each(n, stream_batch); }, raw}});
}
