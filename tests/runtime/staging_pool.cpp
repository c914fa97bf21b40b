#include "cokv/runtime/staging_pool.hpp"

#include <doctest/doctest.h>

#include <boost/asio/use_future.hpp>
#include <thread>

#include "cokv/runtime/with.hpp"

using namespace cokv;

namespace {

std::vector<buffer> buffers(std::size_t n) {
  std::vector<buffer> all;
  for (std::size_t i = 0; i < n; ++i) all.push_back(buffer::host(4096));
  return all;
}

}  // namespace

TEST_CASE("a staging pool never lends a buffer twice and never more than it has") {
  asio::io_context ctx(1);
  staging_pool pool(ctx.get_executor(), buffers(3));
  std::vector<std::byte*> out;
  int done = 0;
  asio::co_spawn(
      ctx,
      [&]() -> awaitable<void> {
        auto v = co_await with(task_group{}, [&](task_group& g) -> awaitable<void> {
          for (int i = 0; i < 30; ++i)
            g.spawn([&]() -> awaitable<void> {
              buffer b = co_await pool.async_acquire();
              CHECK(b.size() == 4096);
              CHECK(std::ranges::count(out, b.data()) == 0);
              out.push_back(b.data());
              CHECK(out.size() <= 3);
              co_await asio::post(asio::deferred);
              std::erase(out, b.data());
              ++done;
            });
          co_return;
        });
        CHECK(v);
      },
      asio::detached);
  ctx.run();
  CHECK(done == 30);
  CHECK(pool.available() == 3);
}

TEST_CASE("a staged buffer comes back when its last handle is gone, on whatever thread") {
  asio::io_context ctx(1);
  staging_pool pool(ctx.get_executor(), buffers(1));
  auto b = pool.try_acquire();
  REQUIRE(b);
  buffer part = b->slice(100, 10);
  auto future = pool.async_acquire(asio::use_future);
  b.reset();
  ctx.poll();
  CHECK(pool.available() == 0);
  std::thread([part = std::move(part)]() mutable { part = {}; }).join();
  ctx.restart();
  ctx.run();
  CHECK(future.get().size() == 4096);
}

TEST_CASE("a staging pool's waiters are served in turn and leave when cancelled") {
  asio::io_context ctx(1);
  staging_pool pool(ctx.get_executor(), buffers(1));
  auto held = pool.try_acquire();
  asio::cancellation_signal signal;
  error_code first;
  std::vector<int> order;
  pool.async_acquire(asio::bind_cancellation_slot(signal.slot(), [&](error_code ec, buffer) { first = ec; }));
  pool.async_acquire([&](error_code, buffer) { order.push_back(1); });
  pool.async_acquire([&](error_code, buffer) { order.push_back(2); });
  signal.emit(asio::cancellation_type::total);
  held.reset();
  CHECK(!pool.try_acquire());
  ctx.run();
  CHECK(first == asio::error::operation_aborted);
  CHECK(order == std::vector<int>{1, 2});
}

TEST_CASE("a pool or a context destroyed under waiters leaves nothing behind") {
  asio::io_context ctx(1);
  error_code aborted;
  buffer kept;
  {
    staging_pool pool(ctx.get_executor(), buffers(1));
    kept = *pool.try_acquire();
    pool.async_acquire([&](error_code ec, buffer) { aborted = ec; });
  }
  kept.bytes()[0] = std::byte{1};
  ctx.run();
  CHECK(aborted == asio::error::operation_aborted);
  kept = {};

  std::optional<buffer> outlives;
  auto memory = buffers(1);
  {
    asio::io_context gone(1);
    staging_pool pool(gone.get_executor(), memory);
    outlives = pool.try_acquire();
    asio::co_spawn(gone, [](staging_pool& p) -> awaitable<void> { co_await p.async_acquire(); }(pool), asio::detached);
    gone.poll();
  }
  outlives.reset();
  CHECK(memory[0].use_count() == 1);
}
