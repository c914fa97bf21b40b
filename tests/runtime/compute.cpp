#include "cokv/runtime/compute.hpp"

#include <doctest/doctest.h>

#include <latch>
#include <stdexcept>
#include <thread>

using namespace cokv;

namespace {

template <class Body>
void run(asio::io_context& ctx, Body body) {
  std::exception_ptr error;
  bool finished = false;
  asio::co_spawn(ctx, body(), [&](std::exception_ptr e) { error = e, finished = true; });
  ctx.restart();
  ctx.run();
  CHECK(finished);
  if (error) std::rethrow_exception(error);
}

}  // namespace

TEST_CASE("on: runs elsewhere, comes back here with the value, nothing, a move-only value or the exception") {
  asio::io_context ctx(1);
  arena a(ctx.get_executor(), 2);
  CHECK(a.concurrency() == 2);
  CHECK(arena(ctx.get_executor()).concurrency() >= 1);
  auto dev = open_device(ctx.get_executor(), "cpu", {.threads = 1}).value();
  std::thread::id there, after;
  auto body = [&]() -> awaitable<void> {
    int n = co_await on(a, [&] {
      there = std::this_thread::get_id();
      return 42;
    });
    after = std::this_thread::get_id();
    CHECK(n == 42);
    co_await on(dev, [&n] { n = 7; });
    CHECK(n == 7);
    auto p = co_await on(a, [q = std::make_unique<int>(3)]() mutable { return std::move(q); });
    CHECK(*p == 3);
    bool caught = false;
    try {
      co_await on(dev, []() -> int { throw std::out_of_range("x"); });
    } catch (const std::out_of_range&) {
      caught = true;
    }
    CHECK(caught);
  };
  run(ctx, body);
  CHECK(there != std::this_thread::get_id());
  CHECK(after == std::this_thread::get_id());
}

TEST_CASE("on: cancelled before its turn it never runs, afterwards it drains") {
  asio::io_context ctx(1);
  arena a(ctx.get_executor(), 1);
  std::latch entered(1), open(1);
  bool second_ran = false, first_done = false, second_aborted = false, first_said_so = false;
  asio::cancellation_signal first, second;
  asio::co_spawn(
      ctx,
      [](arena& a, std::latch& entered, std::latch& open, bool& done) -> awaitable<void> {
        co_await asio::this_coro::throw_if_cancelled(false);
        co_await on(a, [&] {
          entered.count_down();
          open.wait();
          done = true;
        });
      }(a, entered, open, first_done),
      asio::bind_cancellation_slot(first.slot(), [&](std::exception_ptr) { first_said_so = first_done; }));
  ctx.poll();
  entered.wait();
  asio::co_spawn(
      ctx,
      [](arena& a, bool& ran) -> awaitable<void> {
        co_await asio::this_coro::reset_cancellation_state(asio::enable_total_cancellation());
        co_await on(a, [&] { ran = true; });
      }(a, second_ran),
      asio::bind_cancellation_slot(second.slot(), [&](std::exception_ptr e) { second_aborted = e != nullptr; }));
  ctx.poll();
  second.emit(asio::cancellation_type::total);
  ctx.poll();
  CHECK(second_aborted);
  first.emit(asio::cancellation_type::terminal);
  ctx.poll();
  CHECK(!first_said_so);
  open.count_down();
  ctx.run();
  CHECK(first_said_so);
  run(ctx, [&]() -> awaitable<void> { co_await on(a, [] {}); });
  CHECK(!second_ran);
}

TEST_CASE("on: a context destroyed meanwhile waits for what runs and drops the rest") {
  std::latch entered(1), open(1);
  bool done = false, never = false;
  std::thread opener;
  std::optional<device> outlives;
  {
    asio::io_context ctx(1);
    outlives = open_device(ctx.get_executor(), "cpu", {.threads = 1}).value();
    auto task = [](device& d, std::latch& entered, std::latch& open, bool& done, bool& never) -> awaitable<void> {
      std::string frame(100, 'x');
      co_await on(d, [&] {
        entered.count_down();
        open.wait();
        frame += 'y';
        done = true;
      });
      never = true;
    };
    asio::co_spawn(ctx, task(*outlives, entered, open, done, never), asio::detached);
    ctx.poll();
    entered.wait();
    asio::co_spawn(
        ctx, [](device& d, bool& never) -> awaitable<void> { co_await on(d, [&] { never = true; }); }(*outlives, never),
        asio::detached);
    ctx.poll();
    // What a stream has queued is dropped when the context shuts down: that is when the thread may go on.
    auto token = std::make_shared<int>();
    std::weak_ptr<int> shutting_down = token;
    outlives->make_stream().value().launch("dropped", [token = std::move(token)] {});
    opener = std::thread([&open, shutting_down] {
      while (!shutting_down.expired()) std::this_thread::yield();
      open.count_down();
    });
  }
  opener.join();
  CHECK(done);
  CHECK(!never);
}
