#include "cokv/runtime/deadline.hpp"

#include <doctest/doctest.h>

#include "cokv/runtime/channel.hpp"
#include "cokv/runtime/semaphore.hpp"
#include "cokv/runtime/sim_context.hpp"

using namespace cokv;
using namespace std::chrono_literals;

namespace {

awaitable<void> sleep_for(duration d) {
  co_await clock::of(co_await asio::this_coro::executor).async_wait_for(d, asio::deferred);
}

awaitable<int> answer_after(duration d) {
  co_await sleep_for(d);
  co_return 42;
}

awaitable<result<int>> fail_after(duration d, error_code ec) {
  co_await sleep_for(d);
  co_return ec;
}

// Takes `slow` more to end when it is cancelled, as a transfer that drains.
awaitable<int> drains(duration slow, bool& ended) {
  try {
    co_await sleep_for(1h);
  } catch (const boost::system::system_error&) {
  }
  co_await asio::this_coro::reset_cancellation_state();
  co_await sleep_for(slow);
  ended = true;
  throw boost::system::system_error(asio::error::operation_aborted);
}

template <class F>
void on_seeds(F body, int seeds = 20) {
  for (int seed = 0; seed < seeds; ++seed) {
    sim_context ctx(seed);
    bool done = false;
    asio::co_spawn(
        ctx.get_executor(), [&]() -> awaitable<void> { co_await body(ctx); },
        [&](std::exception_ptr e) {
          if (e) std::rethrow_exception(e);
          done = true;
        });
    REQUIRE(ctx.run() == sim_context::outcome::done);
    REQUIRE(done);
  }
}

}  // namespace

TEST_CASE("what ends in time gives its value or its own error, at once") {
  on_seeds([](sim_context& ctx) -> awaitable<void> {
    auto good = co_await with_deadline(answer_after(1ms), 2ms);
    CHECK(*good == 42);
    auto bad = co_await with_deadline(fail_after(1ms, errc::protocol), 1h);
    CHECK(bad.error() == errc::protocol);
    CHECK(ctx.now() == time_point(2ms));
    result<void> nothing = co_await with_deadline(sleep_for(1ms), 1h);
    CHECK(nothing);
    channel<int> ch(ctx.get_executor(), 1);
    ch.try_send(7);
    result<int> op = co_await with_deadline(ch.async_receive(), 1ms);
    CHECK(*op == 7);
  });
}

TEST_CASE("what is late is cancelled, and has ended before the deadline is reported") {
  on_seeds([](sim_context& ctx) -> awaitable<void> {
    bool ended = false;
    auto late = co_await with_deadline(drains(3ms, ended), 2ms);
    CHECK(late.error() == errc::deadline);
    CHECK(ended);
    CHECK(ctx.now() == time_point(5ms));
    channel<int> ch(ctx.get_executor(), 1);
    auto op = co_await with_deadline(ch.async_receive(), 1ms);
    CHECK(op.error() == errc::deadline);
    ch.try_send(1);
    CHECK(ch.size() == 1);
    auto at_once = co_await with_deadline(answer_after(1ms), 0ms);
    CHECK(at_once.error() == errc::deadline);
  });
}

TEST_CASE("a cancellation from outside is not a deadline") {
  on_seeds([](sim_context& ctx) -> awaitable<void> {
    auto v = co_await with(task_group{}, [&](task_group& g) -> awaitable<void> {
      g.spawn([]() -> awaitable<void> {
        auto r = co_await with_deadline(answer_after(1h), 2h);
        CHECK(r.error() == asio::error::operation_aborted);
      });
      co_await sleep_for(1ms);
      g.cancel();
    });
    CHECK(v);
    CHECK(ctx.now() == time_point(1ms));
  });
}

TEST_CASE("scopes, channels and semaphores keep their promises in any order of events") {
  on_seeds(
      [](sim_context& ctx) -> awaitable<void> {
        channel<int> ch(ctx.get_executor(), 3);
        semaphore sem(ctx.get_executor(), 2);
        int sent = 0, received = 0, running = 0, most = 0;
        const duration stop = ctx.between(0ns, 100us);
        auto v = co_await with(task_group{}, [&](task_group& g) -> awaitable<void> {
          for (int i = 0; i < 4; ++i) {
            g.spawn([&, i]() -> awaitable<void> {
              for (int n = 0; n < 10; ++n) {
                permit p = co_await sem.async_acquire(1 + i % 2);
                running += 1;
                most = std::max(most, running);
                co_await sleep_for(ctx.between(0ns, 5us));
                running -= 1;
                co_await ch.async_send(n);
                ++sent;
              }
            });
          }
          g.spawn([&]() -> awaitable<void> {
            for (;;) {
              co_await ch.async_receive();
              ++received;
              co_await sleep_for(ctx.between(0ns, 3us));
            }
          });
          co_await sleep_for(stop);
          g.cancel();
        });
        CHECK(v);
        CHECK(most <= 2);
        CHECK(sem.available() == 2);
        CHECK(received + static_cast<int>(ch.size()) >= sent);  // a send cancelled after the hand-over was received
        CHECK(received + static_cast<int>(ch.size()) <= sent + 4);
      },
      300);
}
