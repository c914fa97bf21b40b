#include "cokv/runtime/shards.hpp"

#include <doctest/doctest.h>
#include <sched.h>

#include <array>
#include <atomic>
#include <latch>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <thread>

#include "cokv/runtime/sim_node.hpp"
#include "support/co_test.hpp"
#include "support/death.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace std::chrono_literals;

namespace {

awaitable<void> sleep_for(duration d) {
  co_await clock::of(co_await asio::this_coro::executor).async_wait_for(d, asio::deferred);
}

struct counted {
  explicit counted(int& n) : n(n) { ++n; }
  ~counted() { --n; }
  int& n;
};

}  // namespace

TEST_CASE("shards: one coroutine runs on each, on a thread and a context of its own, and all are joined") {
  run_real([](asio::any_io_executor ex) -> awaitable<void> {
    shards workers(ex, 4);
    CHECK(workers.size() == 4);
    std::array<std::thread::id, 4> threads;
    std::array<const void*, 4> contexts;
    auto v = co_await workers.run([&](shard_ref self) -> awaitable<void> {
      threads[self.index()] = std::this_thread::get_id();
      contexts[self.index()] = &asio::query(co_await asio::this_coro::executor, asio::execution::context);
      co_await sleep_for(1us * self.index());
    });
    CHECK(v);
    std::set<std::thread::id> distinct(threads.begin(), threads.end());
    CHECK(distinct.size() == 4);
    CHECK(distinct.count(std::this_thread::get_id()) == 0);
    CHECK(std::set<const void*>(contexts.begin(), contexts.end()).size() == 4);
  });
}

TEST_CASE("shards: a message's result, error or exception comes back to who sent it, in real and virtual time") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    shards workers(ex, 2);
    const auto here = std::this_thread::get_id();
    int n = 0;
    result<int> value = co_await on(workers[1], [&]() -> awaitable<int> {
      co_await sleep_for(1us);
      n = 6;
      co_return n * 7;
    });
    CHECK(*value == 42);
    CHECK(n == 6);
    CHECK(std::this_thread::get_id() == here);
    auto moved = co_await on(workers[0], [p = std::make_unique<int>(5)]() mutable -> awaitable<std::unique_ptr<int>> {
      co_return std::move(p);
    });
    CHECK(**moved == 5);
    result<void> code = co_await on(workers[0], []() -> awaitable<error_code> { co_return errc::not_found; });
    CHECK(code.error() == errc::not_found);
    result<int> own = co_await on(workers[0], []() -> awaitable<result<int>> { co_return errc::protocol; });
    CHECK(own.error() == errc::protocol);
    result<void> thrown = co_await on(workers[0], []() -> awaitable<void> {
      co_await sleep_for(1us);
      throw boost::system::system_error(errc::too_large);
    });
    CHECK(thrown.error() == errc::too_large);
    bool caught = false;
    try {
      (void)co_await on(workers[1], []() -> awaitable<void> {
        throw std::out_of_range("x");
        co_return;
      });
    } catch (const std::out_of_range&) {
      caught = true;
    }
    CHECK(caught);
  });
}

TEST_CASE("shards: the first failure cancels the rest, and the verdict says which shard it was") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    shards workers(ex, 4);
    std::array<error_code, 4> ended;
    auto v = co_await workers.run([&](shard_ref self) -> awaitable<error_code> {
      if (self.index() == 2) co_return errc::protocol;
      auto [ec] =
          co_await clock::of(co_await asio::this_coro::executor).async_wait_for(24h, asio::as_tuple(asio::deferred));
      ended[self.index()] = ec;
      co_return error_code();
    });
    CHECK(v.error() == errc::protocol);
    REQUIRE(!v.errors().empty());
    CHECK(v.errors()[0].child == 2);
    for (std::size_t i : {0u, 1u, 3u}) CHECK((!ended[i] || ended[i] == asio::error::operation_aborted));
    CHECK(*co_await on(workers[2], []() -> awaitable<int> { co_return 1; }) == 1);  // they serve on
  });
}

TEST_CASE("shards: what was sent and has not ended is bounded") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    shards workers(ex, 2, {.in_flight = 3});
    std::array<result<void>, 5> got{errc::closed, errc::closed, errc::closed, errc::closed, errc::closed};
    auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      for (int i = 0; i < 3; ++i)
        group.spawn([&, i]() -> awaitable<void> { got[i] = co_await on(workers[0], [] { return sleep_for(24h); }); });
      co_await asio::post(asio::deferred);
      co_await sleep_for(1us);
      got[3] = co_await on(workers[0], [] { return sleep_for(24h); });
      CHECK(!workers[0].try_post([] {}));
      got[4] = co_await on(workers[1], [] { return sleep_for(1us); });
      group.cancel();
    });
    CHECK(v);
    for (int i = 0; i < 3; ++i) CHECK(got[i].error() == asio::error::operation_aborted);
    CHECK(got[3].error() == errc::queue_full);
    CHECK(got[4]);
    CHECK(co_await on(workers[0], [] { return sleep_for(1us); }));  // there is room again
    bool ran = false;
    while (!ran) {
      (void)workers[0].try_post([&ran] { ran = true; });
      (void)co_await on(workers[0], [] { return sleep_for(0us); });
    }
  });
}

TEST_CASE("shards: stopped they accept nothing, and what ran has ended") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    int alive = 0;
    std::optional<shard_ref> kept;
    auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      shards workers(ex, 3);
      kept = workers[1];
      group.spawn([&alive, to = workers[1]]() -> awaitable<void> {
        auto r = co_await on(to, [&alive]() -> awaitable<void> {
          counted c(alive);
          co_await sleep_for(24h);
        });
        CHECK((r.error() == asio::error::operation_aborted || r.error() == errc::closed));
      });
      co_await sleep_for(1us);
      workers.stop();
      workers.stop();
      CHECK((co_await on(workers[0], [] { return sleep_for(1us); })).error() == errc::closed);
      CHECK(!workers[2].try_post([] {}));
      auto none = co_await workers.run([](shard_ref) -> awaitable<void> { co_return; });
      CHECK(none.error() == errc::closed);
    });
    CHECK(v);
    CHECK(alive == 0);
    CHECK((co_await on(*kept, [] { return sleep_for(1us); })).error() == errc::closed);
    CHECK(!kept->try_post([] {}));
    CHECK(kept->index() == 1);
  });
}

TEST_CASE("shards: they send to each other, round and round") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        constexpr std::size_t count = 3;
        constexpr int rounds = 200;
        shards workers(ex, count);
        std::array<long, count> received{};  // each written by its shard alone
        auto v = co_await workers.run([&](shard_ref self) -> awaitable<void> {
          const auto next = (self.index() + 1) % count;
          for (int i = 0; i < rounds; ++i) {
            auto r = co_await on(workers[next], [&received, next, i]() -> awaitable<int> {
              ++received[next];
              co_return i + 1;
            });
            CHECK(*r == i + 1);
          }
        });
        CHECK(v);
        for (long n : received) CHECK(n == rounds);
      },
      {.seeds = 10});
}

TEST_CASE("shards: stopped in the middle of messages that cross, all of them end") {
  for (int round = 0; round < 50; ++round) {
    run_real([&](asio::any_io_executor ex) -> awaitable<void> {
      shards workers(ex, 3);
      auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
        group.spawn([&]() -> awaitable<void> {
          (void)co_await workers.run([&workers](shard_ref self) -> awaitable<void> {
            for (;;) {
              auto r = co_await on(workers[(self.index() + 1) % 3], []() -> awaitable<void> { co_return; });
              if (!r) co_return;
            }
          });
        });
        for (int i = 0; i < round; ++i) co_await asio::post(asio::deferred);
        workers.stop();
      });
      CHECK(v);
    });
  }
}

TEST_CASE("shards: an owner's context that goes stops them first: what they use of it is there until then") {
  for (bool begun : {true, false}) {
    std::latch entered(2);
    std::optional<shards> outlives;
    {
      asio::io_context ctx(1);
      outlives.emplace(ctx.get_executor(), 2);
      asio::co_spawn(
          ctx,
          [](shards& workers, std::latch& entered) -> awaitable<void> {
            std::string frame(100, 'x');
            std::atomic<int> inside{0};
            (void)co_await workers.run([&](shard_ref) -> awaitable<void> {
              struct leave {
                std::string& frame;
                std::atomic<int>& inside;
                ~leave() { inside -= frame.size() == 100; }
              } at_end{frame, inside};
              ++inside;
              entered.count_down();
              co_await sleep_for(24h);
            });
          }(*outlives, entered),
          asio::detached);
      ctx.poll();
      if (begun) entered.wait();
    }
    CHECK(!(*outlives)[0].try_post([] {}));
  }
}

TEST_CASE("shards: cancelled or destroyed at every step they end and leave nothing behind") {
  auto body = [](asio::any_io_executor ex) -> awaitable<void> {
    shards workers(ex, 2);
    (void)co_await workers.run([&workers](shard_ref self) -> awaitable<void> {
      std::string frame(100, 'x');
      (void)co_await on(workers[1 - self.index()], [&frame]() -> awaitable<void> {
        co_await sleep_for(1ms);
        frame += 'y';
      });
    });
  };
  cancel_at_every_step(body);
  destroy_at_every_step(body);
}

TEST_CASE("shards: in virtual time they take turns as the seed says, and die with their host") {
  auto order = [](std::uint64_t seed) {
    std::string out;
    run_seed(seed, [&](asio::any_io_executor ex) -> awaitable<void> {
      shards workers(ex, 6);
      (void)co_await workers.run([&](shard_ref self) -> awaitable<void> {
        co_await sleep_for(1ms);
        out += static_cast<char>('a' + self.index());
      });
    });
    CHECK(out.size() == 6);
    return out;
  };
  CHECK(order(1) == order(1));
  CHECK(order(1) != order(2));

  sim_context context(1);
  sim::node host(context, "host");
  int alive = 0;
  auto workers = std::make_unique<shards>(host.get_executor(), 2);
  asio::co_spawn(
      host.get_executor(),
      [](shards& workers, int& alive) -> awaitable<void> {
        (void)co_await workers.run([&](shard_ref) -> awaitable<void> {
          counted c(alive);
          co_await sleep_for(24h);
        });
      }(*workers, alive),
      asio::detached);
  context.run_for(1ms);
  CHECK(alive == 2);
  host.kill();
  CHECK(alive == 0);
  workers.reset();
  CHECK(context.run() == sim_context::outcome::done);
}

TEST_CASE("shards: pinned, each thread has one processor, in turn") {
  run_real([](asio::any_io_executor ex) -> awaitable<void> {
    shards workers(ex, 3, {.pin = true});
    std::array<int, 3> processors{};
    auto v = co_await workers.run([&](shard_ref self) -> awaitable<void> {
      cpu_set_t mine;
      CPU_ZERO(&mine);
      ::sched_getaffinity(0, sizeof mine, &mine);
      processors[self.index()] = CPU_COUNT(&mine);
      co_return;
    });
    CHECK(v);
    for (int n : processors) CHECK(n == 1);
  });
}

TEST_CASE("shards: a shard that would stop itself, or a number that none has, breaks a rule") {
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
  return;  // it knows no threads in a child
#endif
#endif
  CHECK(last_words([] {
          asio::io_context ctx(1);
          shards workers(ctx.get_executor(), 1);
          workers[0].try_post([&] { workers.stop(); });
          auto work = asio::make_work_guard(ctx);
          ctx.run();
        }).find("broken rule: shards are not stopped from one of their own threads") != std::string::npos);
  CHECK(last_words([] {
          sim_context ctx(1);
          shards workers(ctx.get_executor(), 2);
          workers[2];
        }).find("broken rule: a shard's number is below their count") != std::string::npos);
}
