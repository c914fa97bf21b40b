#include "cokv/runtime/semaphore.hpp"

#include <doctest/doctest.h>

#include <boost/asio/use_future.hpp>
#include <vector>

#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"

using namespace cokv;

TEST_CASE("a semaphore never has more permits out than it was given") {
  asio::io_context ctx(1);
  semaphore sem(ctx.get_executor(), 3);
  std::size_t out = 0, most = 0;
  int done = 0;
  asio::co_spawn(
      ctx,
      [&]() -> awaitable<void> {
        auto v = co_await with(task_group{}, [&](task_group& g) -> awaitable<void> {
          for (int i = 0; i < 20; ++i)
            g.spawn([&, n = std::size_t(1 + i % 3)]() -> awaitable<void> {
              permit p = co_await sem.async_acquire(n);
              CHECK(p.count() == n);
              out += n;
              most = std::max(most, out);
              co_await asio::post(asio::deferred);
              out -= n;
              ++done;
            });
          co_return;
        });
        CHECK(v);
      },
      asio::detached);
  ctx.run();
  CHECK(done == 20);
  CHECK(most == 3);
  CHECK(sem.available() == 3);
}

TEST_CASE("a large request is not overtaken by small ones") {
  asio::io_context ctx(1);
  semaphore sem(ctx.get_executor(), 2);
  std::vector<int> order;
  auto held = *sem.try_acquire(1);
  permit big;
  sem.async_acquire(2, [&](error_code, permit p) {
    order.push_back(2);
    big = std::move(p);
  });
  sem.async_acquire(1, [&](error_code, permit) { order.push_back(1); });
  CHECK(!sem.try_acquire(1));  // one is free, but others wait
  ctx.poll();
  CHECK(order.empty());
  held.release();
  ctx.poll();
  CHECK(order == std::vector<int>{2});
  big.release();
  ctx.run();
  CHECK(order == std::vector<int>{2, 1});
  CHECK(sem.available() == 2);
}

TEST_CASE("cancelling the request at the front lets those behind it through") {
  asio::io_context ctx(1);
  semaphore sem(ctx.get_executor(), 1);
  asio::cancellation_signal signal;
  error_code front;
  int got = 0;
  sem.async_acquire(5, asio::bind_cancellation_slot(signal.slot(), [&](error_code ec, permit) { front = ec; }));
  sem.async_acquire(1, [&](error_code ec, permit) { got += !ec; });
  ctx.poll();
  CHECK(got == 0);
  signal.emit(asio::cancellation_type::total);
  ctx.restart();
  ctx.run();
  CHECK(front == asio::error::operation_aborted);
  CHECK(got == 1);
  CHECK(sem.available() == 1);
}

TEST_CASE("a semaphore takes every completion token and counts events") {
  asio::io_context ctx(1);
  semaphore events(ctx.get_executor(), 0);
  auto future = events.async_acquire(1, asio::use_future);
  int coroutine = 0;
  asio::co_spawn(
      ctx,
      [&]() -> awaitable<void> {
        auto a = co_await events.async_acquire();
        auto b = co_await events.async_acquire(1, as_result);
        coroutine = b && a.count() == 1;
      },
      asio::detached);
  ctx.poll();
  events.release(3);
  ctx.restart();
  ctx.run();
  CHECK(coroutine == 1);
  CHECK(future.get().count() == 1);
}

TEST_CASE("a permit outlives its semaphore and an aborted waiter gets none") {
  asio::io_context ctx(1);
  permit kept;
  error_code aborted;
  {
    semaphore sem(ctx.get_executor(), 1);
    kept = *sem.try_acquire();
    sem.async_acquire(1, [&](error_code ec, permit p) {
      aborted = ec;
      CHECK(p.count() == 0);
    });
  }
  ctx.run();
  CHECK(aborted == asio::error::operation_aborted);
  kept.release();
}

TEST_CASE("a context destroyed under permits and waiters leaves nothing behind") {
  auto alive = std::make_shared<int>();
  {
    asio::io_context ctx(1);
    semaphore sem(ctx.get_executor(), 1);
    for (int i = 0; i < 3; ++i)
      asio::co_spawn(
          ctx,
          [](std::shared_ptr<int> a, semaphore& s) -> awaitable<void> {
            auto p = co_await s.async_acquire();
            auto never = co_await s.async_acquire();
          }(alive, sem),
          asio::detached);
    ctx.poll();
    CHECK(alive.use_count() == 4);
  }
  CHECK(alive.use_count() == 1);
}
