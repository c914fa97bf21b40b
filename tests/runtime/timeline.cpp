#include "cokv/runtime/timeline.hpp"

#include <doctest/doctest.h>

#include <boost/asio/experimental/promise.hpp>
#include <boost/asio/experimental/use_promise.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_future.hpp>
#include <thread>

#include "cokv/runtime/error.hpp"
#include "cokv/runtime/event.hpp"
#include "support/counting_allocator.hpp"

using namespace cokv;
using cokv::test::allocation_count;
using cokv::test::counting_allocator;

TEST_CASE("timeline: every kind of token waits and is completed once") {
  asio::io_context ctx(1);
  timeline t(ctx.get_executor());
  int called = 0;
  t.async_wait(1, [&](error_code ec) { called += !ec; });
  auto future = t.async_wait(1, asio::use_future);
  auto promise = t.async_wait(1, asio::experimental::use_promise);
  promise([&](error_code ec) { called += !ec; });
  asio::co_spawn(
      ctx,
      [](timeline& t, int& called) -> awaitable<void> {
        co_await t.async_wait(1);
        co_await t.async_wait(1, asio::use_awaitable);
        auto [ec] = co_await t.async_wait(2, asio::as_tuple(asio::deferred));
        called += !ec;
      }(t, called),
      asio::detached);
  CHECK(ctx.poll() > 0);
  CHECK(called == 0);
  t.advance(1);
  CHECK(t.reached(1));
  ctx.poll();
  CHECK(called == 2);
  t.advance(2);
  ctx.run();
  CHECK(called == 3);
  future.get();
}

TEST_CASE("timeline: waiters complete in the order of their positions, then of arrival; the word never goes back") {
  asio::io_context ctx(1);
  timeline t(ctx.get_executor());
  std::vector<int> order;
  int n = 0;
  for (std::uint64_t target : {5, 3, 4, 3, 5, 1})
    t.async_wait(target, [&order, id = n++](error_code) { order.push_back(id); });
  t.advance(4);
  t.advance(2);
  CHECK(t.value() == 4);
  ctx.poll();
  CHECK(order == std::vector<int>{5, 1, 3, 2});
  t.advance(100);
  ctx.run();
  CHECK(order == std::vector<int>{5, 1, 3, 2, 0, 4});
}

TEST_CASE("timeline: a position that was passed completes at once, by post") {
  asio::io_context ctx(1);
  timeline t(ctx.get_executor());
  t.advance(7);
  bool done = false;
  t.async_wait(7, [&](error_code ec) { done = !ec; });
  CHECK(!done);
  ctx.run();
  CHECK(done);
}

TEST_CASE("timeline: a failure arrives at every position from there on, sticks, and leaves earlier ones alone") {
  asio::io_context ctx(1);
  timeline t(ctx.get_executor());
  std::map<int, error_code> got;
  for (int p : {1, 2, 3, 9}) t.async_wait(p, [&got, p](error_code ec) { got[p] = ec; });
  t.advance(1);
  t.fail(3, errc::device_failed);
  t.fail(3, errc::device_lost);
  ctx.poll();
  CHECK(got.size() == 3);
  CHECK(!got[1]);
  CHECK(got[3] == errc::device_failed);
  CHECK(got[9] == errc::device_failed);
  CHECK(!t.status(2));
  CHECK(t.status(4) == errc::device_failed);
  t.advance(2);
  ctx.poll();
  CHECK(got.count(2) == 1);
  CHECK(!got[2]);
  error_code late;
  t.async_wait(4, [&](error_code ec) { late = ec; });
  ctx.restart();
  ctx.run();
  CHECK(late == errc::device_failed);
}

TEST_CASE("timeline: any cancellation type ends a wait at once and nothing else") {
  for (auto type :
       {asio::cancellation_type::total, asio::cancellation_type::partial, asio::cancellation_type::terminal}) {
    asio::io_context ctx(1);
    timeline t(ctx.get_executor());
    asio::cancellation_signal signal;
    error_code cancelled, other = errc::closed;
    t.async_wait(1, asio::bind_cancellation_slot(signal.slot(), [&](error_code ec) { cancelled = ec; }));
    t.async_wait(1, [&](error_code ec) { other = ec; });
    signal.emit(type);
    ctx.poll();
    CHECK(cancelled == asio::error::operation_aborted);
    CHECK(other == errc::closed);
    t.advance(1);
    ctx.run();
    CHECK(!other);
  }
}

TEST_CASE("timeline: destroyed with waiters it aborts them, and a poll afterwards finds nothing") {
  asio::io_context ctx(1);
  std::atomic<std::uint64_t> word{0};
  error_code got, gone;
  {
    auto t = std::make_unique<timeline>(ctx.get_executor(), word);
    t->async_wait(1, [&](error_code ec) { got = ec; });
    auto deferred = t->async_wait(2);
    t->advance(1);  // a poll is on its way when the timeline goes
    t->async_wait(3, [&](error_code ec) { gone = ec; });
    t.reset();
    std::move(deferred)([&](error_code ec) { CHECK(ec == asio::error::operation_aborted); });
  }
  word = 10;
  ctx.run();
  CHECK(!got);
  CHECK(gone == asio::error::operation_aborted);
}

TEST_CASE("timeline: it outlives its context, and its context outlives it") {
  int destroyed = 0;
  struct noisy {
    int* n;
    explicit noisy(int& d) : n(&d) {}
    noisy(noisy&& o) noexcept : n(std::exchange(o.n, nullptr)) {}
    ~noisy() {
      if (n) ++*n;
    }
  };
  std::optional<timeline> t;
  {
    asio::io_context ctx(1);
    t.emplace(ctx.get_executor());
    t->async_wait(1, [n = noisy(destroyed)](error_code) { FAIL("called"); });
    asio::co_spawn(
        ctx, [](timeline& t, noisy) -> awaitable<void> { co_await t.async_wait(1); }(*t, noisy(destroyed)),
        asio::detached);
    ctx.poll();
  }
  CHECK(destroyed == 2);
  t->advance(1);  // from a device that doesn't know yet
}

TEST_CASE("timeline: handler allocator and executor are honoured, memory is free before the upcall") {
  asio::io_context ctx(1);
  asio::thread_pool pool(1);
  allocation_count count;
  int live = -1;
  std::thread::id ran_on;
  timeline t(ctx.get_executor());
  t.async_wait(1, asio::bind_executor(pool, asio::bind_allocator(counting_allocator<>(count), [&](error_code) {
                                        ran_on = std::this_thread::get_id();
                                        live = count.live;
                                      })));
  t.advance(1);
  ctx.run();
  pool.join();
  CHECK(count.total >= 1);
  CHECK(live == 0);
  CHECK(count.live == 0);
  CHECK(ran_on != std::this_thread::get_id());
}

TEST_CASE("timeline: another thread advances, and every waiter comes back on the context's thread") {
  asio::io_context ctx(1);
  timeline t(ctx.get_executor());
  constexpr std::uint64_t steps = 20'000;
  std::uint64_t seen = 0;
  bool same_thread = true;
  asio::co_spawn(
      ctx,
      [](timeline& t, std::uint64_t& seen, bool& same, std::thread::id me) -> awaitable<void> {
        for (std::uint64_t i = 1; i <= steps; ++i) {
          co_await t.async_wait(i);
          same = same && std::this_thread::get_id() == me;
          ++seen;
        }
      }(t, seen, same_thread, std::this_thread::get_id()),
      asio::detached);
  std::thread device([&] {
    for (std::uint64_t i = 1; i <= steps; ++i) {
      t.advance(i);
      if (i % 64 == 0) std::this_thread::yield();
    }
  });
  ctx.run();
  device.join();
  CHECK(seen == steps);
  CHECK(same_thread);
}

TEST_CASE("timeline: edges fire once, from two threads at a time, whatever the order of word and subscription") {
  asio::io_context ctx(1);
  auto line = std::make_shared<detail::timeline_core>(ctx.get_executor());
  constexpr std::uint64_t steps = 5'000;
  std::atomic<int> fired{0};
  std::thread device([&] {
    for (std::uint64_t i = 1; i <= steps; ++i) line->advance(i);
  });
  for (std::uint64_t i = 1; i <= steps; ++i) line->subscribe(i, [&](error_code ec) { fired += !ec; });
  device.join();
  CHECK(fired == steps);
  line->subscribe(steps + 1, [&](error_code ec) { fired += ec == errc::closed ? 1 : 0; });
  line->fail(steps + 1, errc::closed);
  CHECK(fired == steps + 1);
}

TEST_CASE("timeline: a foreign word is seen when it is polled") {
  asio::io_context ctx(1);
  std::atomic<std::uint64_t> word{0};
  timeline t(ctx.get_executor(), word);
  bool done = false;
  t.async_wait(3, [&](error_code ec) { done = !ec; });
  word = 3;
  CHECK(ctx.poll() == 0);
  t.poll();
  ctx.run();
  CHECK(done);
}

TEST_CASE("event: without a stream it is ready, successful, and completes by post on the handler's executor") {
  asio::io_context ctx(1);
  event e;
  CHECK(e.ready());
  CHECK(!e.status());
  int done = 0;
  e.async_wait(asio::bind_executor(ctx, [&](error_code ec) { done += !ec; }));
  CHECK(done == 0);
  asio::co_spawn(
      ctx, [](event e, int& done) -> awaitable<void> { co_await e.async_wait(), ++done; }(e, done), asio::detached);
  ctx.run();
  CHECK(done == 2);
}
