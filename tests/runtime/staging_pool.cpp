#include "cokv/runtime/staging_pool.hpp"

#include <doctest/doctest.h>

#include <boost/asio/use_future.hpp>
#include <deque>
#include <limits>
#include <map>
#include <random>
#include <thread>

#include "cokv/runtime/result.hpp"
#include "cokv/runtime/sim_context.hpp"
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

TEST_CASE("a staging pool's waiters are served first come, first served, whatever is tried, cancelled or given back") {
  for (std::uint64_t seed = 1; seed <= 500; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    std::map<int, std::unique_ptr<asio::cancellation_signal>> signals;  // outlive the waiters
    asio::io_context ctx(1);
    const std::size_t count = 1 + random() % 3;
    staging_pool pool(ctx.get_executor(), buffers(count));
    std::deque<int> queue;  // the model: who waits, in order
    std::vector<buffer> out;
    std::vector<int> served, expected;
    int next = 0, cancelled = 0, aborted = 0;
    std::size_t free = count;
    auto settle = [&] {  // what came back reaches the pool by post
      ctx.restart();
      ctx.poll();
    };
    for (int step = 0; step < 60; ++step) {
      switch (random() % 4) {
        case 0: {
          auto b = pool.try_acquire();
          CHECK(b.has_value() == (free > 0 && queue.empty()));
          if (b) {
            --free;
            out.push_back(std::move(*b));
          }
          break;
        }
        case 1: {
          const int id = next++;
          auto& signal = *(signals[id] = std::make_unique<asio::cancellation_signal>());
          pool.async_acquire(asio::bind_cancellation_slot(signal.slot(), [&, id](error_code ec, buffer b) {
            if (ec) return (void)++aborted;
            served.push_back(id);
            out.push_back(std::move(b));
          }));
          if (free > 0 && queue.empty()) {
            --free;
            expected.push_back(id);
          } else {
            queue.push_back(id);
          }
          break;
        }
        case 2:
          if (!queue.empty()) {
            const auto who = queue.begin() + static_cast<std::ptrdiff_t>(random() % queue.size());
            signals[*who]->emit(asio::cancellation_type::total);
            queue.erase(who);
            ++cancelled;
          }
          break;
        case 3:
          settle();
          if (!out.empty()) {
            std::swap(out[random() % out.size()], out.back());
            out.pop_back();
            settle();
            if (queue.empty()) {
              ++free;
            } else {
              expected.push_back(queue.front());
              queue.pop_front();
            }
          }
          break;
      }
      settle();
      CHECK(served == expected);
      CHECK(aborted == cancelled);
      CHECK(pool.available() == free);
    }
  }
}

TEST_CASE("a staging pool that there is no memory for is an error, not an exception and not a try") {
  asio::io_context ctx(1);
  auto device = open_device(ctx.get_executor(), "cpu", {.threads = 1}).value();
  constexpr auto most = std::numeric_limits<std::size_t>::max();
  CHECK(staging_pool::make(device, 1 << 20, most / 2).error() == errc::out_of_memory);
  CHECK(staging_pool::make(device, most, 1).error() == errc::out_of_memory);
  CHECK(staging_pool::make(device, 1 << 30, 1 << 24).error() == errc::out_of_memory);
  CHECK(staging_pool::make(device, 0, 1).error() == errc::invalid_argument);
  CHECK(staging_pool::make(device, 1, 0).error() == errc::invalid_argument);
  CHECK(device.allocate(most).error() == errc::out_of_memory);
  CHECK(device.allocate(most, memory_kind::host).error() == errc::out_of_memory);

  sim_context sim(1);
  auto simulated = open_device(sim.get_executor(), "sim:h100").value();
  CHECK(staging_pool::make(simulated, 1 << 30, 1 << 10, memory_kind::device).error() == errc::out_of_memory);
  CHECK(simulated.allocate(std::size_t{1} << 40).error() == errc::out_of_memory);
}

TEST_CASE("a staging pool takes every completion token") {
  asio::io_context ctx(1);
  staging_pool pool(ctx.get_executor(), buffers(6));
  int got = 0;
  pool.async_acquire([&](error_code ec, buffer b) { got += !ec && b.size() == 4096; });
  auto future = pool.async_acquire(asio::use_future);
  asio::co_spawn(
      ctx,
      [](staging_pool& pool, int& got) -> awaitable<void> {
        got += (co_await pool.async_acquire()).size() == 4096;
        got += (co_await pool.async_acquire(asio::use_awaitable)).size() == 4096;
        auto [ec, b] = co_await pool.async_acquire(asio::as_tuple(asio::deferred));
        got += !ec && b.size() == 4096;
        result<buffer> r = co_await pool.async_acquire(as_result);
        got += r.has_value();
      }(pool, got),
      asio::detached);
  ctx.run();
  CHECK(got == 5);
  CHECK(future.get().size() == 4096);
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
