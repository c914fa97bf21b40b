// What does a deadline cost that is not needed? One set and withdrawn, as every guarded operation does, on the context's
// one heap and with an Asio timer each; and with_deadline around an operation that needs no waiting.
//
//     bench_async_deadline [--rounds 100000] [--repeat 9] [--json FILE]
#include <boost/asio/steady_timer.hpp>

#include "alternate.hpp"
#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/timeline.hpp"

namespace {

using namespace cokv;
using namespace std::chrono_literals;

awaitable<void> withdrawn(asio::io_context& ctx, int rounds) {
  auto& time = clock::of(ctx.get_executor());
  for (int i = 0; i < rounds; ++i) {
    asio::cancellation_signal signal;
    time.async_wait_for(30s, asio::bind_cancellation_slot(signal.slot(), [](error_code) {}));
    signal.emit(asio::cancellation_type::total);
    co_await asio::post(ctx, asio::deferred);
  }
}

awaitable<void> asio_timers(asio::io_context& ctx, int rounds) {
  for (int i = 0; i < rounds; ++i) {
    asio::steady_timer timer(ctx, 30s);
    timer.async_wait([](error_code) {});
    timer.cancel();
    co_await asio::post(ctx, asio::deferred);
  }
}

awaitable<void> bare(asio::io_context& ctx, int rounds) {
  timeline t(ctx.get_executor());
  for (int i = 0; i < rounds; ++i) co_await t.async_wait(0);
}

awaitable<void> guarded(asio::io_context& ctx, int rounds) {
  timeline t(ctx.get_executor());
  for (int i = 0; i < rounds; ++i)
    if (!co_await with_deadline(t.async_wait(0), 30s)) std::abort();
}

awaitable<void> guarded_by_timer(asio::io_context& ctx, int rounds) {
  timeline t(ctx.get_executor());
  for (int i = 0; i < rounds; ++i) {
    asio::steady_timer timer(ctx, 30s);
    co_await asio::experimental::make_parallel_group(t.async_wait(0), timer.async_wait(asio::deferred))
        .async_wait(asio::experimental::wait_for_one(), asio::deferred);
  }
}

}  // namespace

int main(int argc, char** argv) {
  using bench::each;
  const std::string timer = "an Asio timer each, set and withdrawn",
                    by_timer = "parallel_group of an operation and an Asio timer";
  return bench::alternate(argc, argv, "What does a deadline cost that is not needed?", 100'000,
                          {{timer, [](int n) { return each(n, asio_timers); }},
                           {"the clock's heap, set and withdrawn", [](int n) { return each(n, withdrawn); }, timer},
                           {"an operation, bare", [](int n) { return each(n, bare); }},
                           {by_timer, [](int n) { return each(n, guarded_by_timer); }},
                           {"with_deadline", [](int n) { return each(n, guarded); }, by_timer}});
}
