#include "cokv/runtime/wait_in_task.hpp"

#include <doctest/doctest.h>

#include <array>
#include <boost/asio/strand.hpp>
#include <latch>
#include <memory>
#include <stdexcept>
#include <thread>

#include "cokv/runtime/channel.hpp"
#include "cokv/runtime/compute.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"
#include "support/co_test.hpp"
#include "support/death.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace std::chrono_literals;

namespace {

awaitable<void> sleep_for(duration d) {
  co_await clock::of(co_await asio::this_coro::executor).async_wait_for(d, asio::deferred);
}

}  // namespace

TEST_CASE("wait_in_task: a coroutine's value, nothing, a move-only value or its exception comes to the task") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    arena threads(ex, 2);
    const auto loop = std::this_thread::get_id();
    co_await on(threads, [&] {
      std::thread::id where;
      CHECK(wait_in_task(ex, [&]() -> awaitable<int> {
              co_await sleep_for(1us);
              where = std::this_thread::get_id();
              co_return 42;
            }) == 42);
      CHECK(where == loop);
      int n = 0;
      wait_in_task(ex, [&]() -> awaitable<void> {
        co_await sleep_for(1us);
        n = 7;
      });
      CHECK(n == 7);
      auto p = wait_in_task(ex, [p = std::make_unique<int>(3)]() mutable -> awaitable<std::unique_ptr<int>> {
        co_await sleep_for(1us);
        co_return std::move(p);
      });
      CHECK(*p == 3);
      result<int> r = wait_in_task(ex, []() -> awaitable<result<int>> { co_return errc::not_found; });
      CHECK(r.error() == errc::not_found);
      CHECK_THROWS_AS(wait_in_task(ex,
                                   []() -> awaitable<void> {
                                     throw std::out_of_range("x");
                                     co_return;
                                   }),
                      std::out_of_range);
    });
  });
}

TEST_CASE("wait_in_task: a task that waits leaves its thread to the other tasks of the arena") {
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
  return;  // there arenas are plain threads, and a task that waits holds one up
#endif
#endif
  run_real([](asio::any_io_executor ex) -> awaitable<void> {
    arena one(ex, 1);
    channel<int> ch(ex, 1);
    int waiting = 0;
    auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      for (int i = 0; i < 8; ++i)
        group.spawn([&]() -> awaitable<void> {
          co_await on(one, [&] {
            wait_in_task(ex, [&]() -> awaitable<void> {
              if (++waiting == 8) ch.close();  // the last of them lets all go on
              co_await ch.async_receive(as_result);
            });
          });
        });
      co_return;
    });
    CHECK(v);
    CHECK(waiting == 8);
  });
}

TEST_CASE("wait_in_task: thousands of waits, from several tasks at once") {
  run_real([](asio::any_io_executor ex) -> awaitable<void> {
    arena threads(ex, 3);
    std::array<long, 6> sums{};
    auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      for (auto& sum : sums)
        group.spawn([&]() -> awaitable<void> {
          co_await on(threads, [&] {
            for (int i = 0; i < 2000; ++i)
              sum += wait_in_task(ex, [i]() -> awaitable<int> {
                if (i % 3 == 0) co_await asio::post(asio::deferred);
                co_return i;
              });
          });
        });
      co_return;
    });
    CHECK(v);
    for (long sum : sums) CHECK(sum == 1999000);
  });
}

TEST_CASE("wait_in_task: any thread may wait, and blocks") {
  asio::io_context ctx(1);
  auto work = asio::make_work_guard(ctx);
  int got = 0;
  std::thread other([&] {
    got = wait_in_task(ctx.get_executor(), []() -> awaitable<int> {
      co_await sleep_for(1us);
      co_return 5;
    });
    work.reset();
  });
  ctx.run();
  other.join();
  CHECK(got == 5);
}

TEST_CASE(
    "wait_in_task: a context that goes ends the wait, whether its coroutine has begun or not, and then the rest") {
  for (bool begun : {true, false}) {
    error_code seen;
    bool frame_gone = false, frame_gone_at_end_of_wait = true;
    {
      asio::io_context ctx(1);
      auto ex = ctx.get_executor();
      arena threads(ex, 1);
      std::latch entered(1), called(1);
      asio::co_spawn(
          ctx,
          [](arena& threads, asio::any_io_executor ex, std::latch& entered, std::latch& called, error_code& seen,
             bool& gone, bool& gone_then) -> awaitable<void> {
            co_await on(threads, [&] {
              entered.count_down();
              auto mark = std::shared_ptr<void>(nullptr, [&gone](void*) { gone = true; });
              try {
                wait_in_task(ex, [mark = std::move(mark), &called]() -> awaitable<void> {
                  called.count_down();
                  co_await sleep_for(24h);
                });
              } catch (const boost::system::system_error& e) {
                seen = e.code();
              }
              gone_then = gone;
              CHECK_THROWS_AS(wait_in_task(ex, [] { return sleep_for(1s); }), boost::system::system_error);
            });
          }(threads, ex, entered, called, seen, frame_gone, frame_gone_at_end_of_wait),
          asio::detached);
      ctx.poll();
      entered.wait();
      while (begun && !called.try_wait()) ctx.poll();
    }
    CHECK(seen == errc::closed);
    CHECK(frame_gone);
    if (begun) CHECK(!frame_gone_at_end_of_wait);
  }
}

TEST_CASE("wait_in_task: in virtual time too, and a wait that can't end says so") {
  for (auto seed : seeds(100))
    run_seed(seed, [](asio::any_io_executor ex) -> awaitable<void> {
      arena threads(ex, 4);
      CHECK(threads.concurrency() == 4);
      auto& time = clock::of(ex);
      const auto start = time.now();
      int sum = 0;
      auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
        for (int i = 1; i <= 5; ++i)
          group.spawn([&, i]() -> awaitable<void> {
            sum += co_await on(threads, [&, i] {
              return wait_in_task(ex, [i]() -> awaitable<int> {
                co_await sleep_for(1ms * i);
                co_return i;
              });
            });
          });
        co_return;
      });
      CHECK(v);
      CHECK(sum == 15);
      CHECK(time.now() - start == 5ms);
      channel<int> never(ex, 1);
      bool stuck = false;
      co_await on(threads, [&] {
        try {
          wait_in_task(ex, [&]() -> awaitable<void> { co_await never.async_receive(); });
        } catch (const boost::system::system_error& e) {
          stuck = e.code() == errc::closed;
        }
      });
      CHECK(stuck);
      never.close();
    });
}

TEST_CASE("wait_in_task: the thread that would have to run the coroutine can't wait for it") {
  CHECK(last_words([] {
          asio::io_context ctx(1);
          asio::post(ctx, [&] { wait_in_task(ctx.get_executor(), [] { return sleep_for(1s); }); });
          ctx.run();
        }).find("broken rule: wait_in_task waits for a coroutine that this very thread has to run") !=
        std::string::npos);
  CHECK(last_words([] {
          sim_context ctx(1);
          asio::post(ctx.get_executor(), [&] { wait_in_task(ctx.get_executor(), [] { return sleep_for(1s); }); });
          ctx.run();
        }).find("broken rule: wait_in_task") != std::string::npos);
}

TEST_CASE("arena: its threads are an executor, for functions and for coroutines on a strand") {
  asio::io_context ctx(1);
  auto threads = std::make_unique<arena>(ctx.get_executor(), 2);
  auto ex = threads->executor();
  CHECK(ex == threads->executor());
  CHECK(ex != arena(ctx.get_executor(), 1).executor());
  CHECK(&asio::query(ex, asio::execution::context) == &ctx);
  std::latch ran(100);
  std::atomic<int> here{0};
  const auto loop = std::this_thread::get_id();
  for (int i = 0; i < 100; ++i)
    asio::post(ex, [&] {
      here += std::this_thread::get_id() == loop;
      ran.count_down();
    });
  ran.wait();
  CHECK(here == 0);
  std::latch done(1);
  int steps = 0;
  asio::co_spawn(
      asio::make_strand(ex),
      [&]() -> awaitable<void> {
        for (int i = 0; i < 50; ++i) {
          ++steps;
          co_await asio::post(asio::deferred);
        }
      },
      [&](std::exception_ptr) { done.count_down(); });
  done.wait();
  CHECK(steps == 50);
}

TEST_CASE("arena: in virtual time its functions are handlers, in an order that the seed picks") {
  auto order = [](std::uint64_t seed) {
    std::string out;
    sim_context ctx(seed);
    arena threads(ctx.get_executor(), 4);
    for (char c = 'a'; c < 'h'; ++c) asio::post(threads.executor(), [&out, c] { out += c; });
    CHECK(out.empty());
    CHECK(ctx.run() == sim_context::outcome::done);
    CHECK(out.size() == 7);
    return out;
  };
  CHECK(order(1) == order(1));
  CHECK(order(1) != order(2));
}
