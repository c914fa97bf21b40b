#include "cokv/runtime/progress.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <thread>

#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/detail/mailbox.hpp"
#include "cokv/runtime/timeline.hpp"

using namespace cokv;

namespace {

// A device whose word nobody announces: it has to be polled, or armed to be woken by.
class word_source final : public progress_source {
 public:
  explicit word_source(asio::io_context& ctx)
      : progress_(progress::of(ctx.get_executor())), back_(ctx.get_executor()), line_(ctx.get_executor(), word_) {
    progress_.add(*this);
  }
  ~word_source() { progress_.remove(*this); }

  awaitable<void> wait(std::uint64_t position) {
    waiting_ = position;
    progress_.wanted(*this);
    co_await line_.async_wait(position);
    waiting_ = 0;
  }

  // From the device's thread.
  void set(std::uint64_t position) {
    word_ = position;
    if (armed_.exchange(false)) back_.post([this] { line_.poll(), ++wakes; });
  }

  std::size_t poll() override {
    ++polls;
    if (!waiting_ || !line_.reached(waiting_)) return 0;
    line_.poll();
    return 1;
  }
  bool awaited() const override { return waiting_ != 0; }
  void arm() override {
    ++arms;
    armed_ = true;
    if (line_.reached(waiting_) && armed_.exchange(false)) back_.post([this] { line_.poll(), ++wakes; });
  }

  int polls = 0, arms = 0, wakes = 0;

 private:
  std::atomic<std::uint64_t> word_{0};
  std::atomic<bool> armed_{false};
  std::uint64_t waiting_ = 0;
  progress& progress_;
  detail::mailbox back_;
  timeline line_;
};

}  // namespace

TEST_CASE("run: polls a source while somebody waits, without a wake-up") {
  asio::io_context ctx(1);
  word_source source(ctx);
  bool done = false;
  asio::co_spawn(
      ctx,
      [](word_source& s, asio::io_context& ctx, bool& done) -> awaitable<void> {
        for (int i = 1; i <= 100; ++i) {
          asio::post(ctx, [&s, i] { s.set(i); });
          co_await s.wait(i);
        }
        done = true;
      }(source, ctx, done),
      asio::detached);
  CHECK(run(ctx) > 0);
  CHECK(done);
  CHECK(source.polls > 0);
  CHECK(source.arms == 0);
}

TEST_CASE("run: arms before it sleeps, and the device's thread wakes it") {
  asio::io_context ctx(1);
  word_source source(ctx);
  std::atomic<int> asked{0};
  int done = 0;
  asio::co_spawn(
      ctx,
      [](word_source& s, std::atomic<int>& asked, int& done) -> awaitable<void> {
        for (int i = 1; i <= 200; ++i) {
          asked = i;
          co_await s.wait(i);
          ++done;
        }
      }(source, asked, done),
      asio::detached);
  std::thread device([&] {
    for (int i = 1; i <= 200; ++i) {
      while (asked < i) std::this_thread::yield();
      for (int n = 0; n < (i % 4) * 200; ++n) std::this_thread::yield();
      source.set(i);
    }
  });
  run(ctx);
  device.join();
  CHECK(done == 200);
}

TEST_CASE("run: under a plain io_context::run a source is armed by its first waiter") {
  asio::io_context ctx(1);
  word_source source(ctx);
  std::atomic<bool> asked{false};
  bool done = false;
  asio::co_spawn(
      ctx,
      [](word_source& s, std::atomic<bool>& asked, bool& done) -> awaitable<void> {
        asked = true;
        co_await s.wait(1);
        done = true;
      }(source, asked, done),
      asio::detached);
  std::thread device([&] {
    while (!asked) std::this_thread::yield();
    source.set(1);
  });
  ctx.run();
  device.join();
  CHECK(done);
  CHECK(source.polls == 0);
  CHECK(source.arms == 1);
  CHECK(source.wakes == 1);
}

TEST_CASE("run: while nobody waits for a source it sleeps at once, without another round") {
  asio::io_context ctx(1);
  word_source source(ctx);
  auto work = std::make_optional(asio::make_work_guard(ctx));
  std::atomic<int> handled{0};
  std::thread other([&] {
    for (int i = 1; i <= 100; ++i) {
      asio::post(ctx, [&] { ++handled; });
      while (handled < i) std::this_thread::yield();
    }
    asio::post(ctx, [&] { work.reset(); });
  });
  const auto handlers = run(ctx);
  other.join();
  CHECK(handlers == 101);
  CHECK(source.polls <= 2 * 102);  // when the handlers have run, and before it sleeps
}

TEST_CASE("run: handlers that never run out do not keep a source from being polled") {
  asio::io_context ctx(1);
  word_source source(ctx);
  bool done = false;
  asio::co_spawn(
      ctx,
      [](word_source& s, bool& done) -> awaitable<void> {
        co_await s.wait(1);
        done = true;
      }(source, done),
      asio::detached);
  asio::co_spawn(
      ctx,
      [](asio::io_context& ctx, word_source& s, bool& done) -> awaitable<void> {
        for (int i = 0; i < 100'000 && !done; ++i) {
          if (i == 10) s.set(1);
          co_await asio::post(ctx, asio::deferred);
        }
        CHECK(done);
      }(ctx, source, done),
      asio::detached);
  run(ctx);
  CHECK(done);
  CHECK(source.wakes == 0);
}

TEST_CASE("run: ends when there is no work, also when nothing was ever to be polled") {
  asio::io_context ctx(1);
  CHECK(run(ctx) == 0);
  ctx.restart();
  int n = 0;
  asio::post(ctx, [&] { ++n; });
  CHECK(run(ctx) == 1);
  CHECK(n == 1);
}
