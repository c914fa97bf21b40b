#include "cokv/runtime/sim_context.hpp"

#include <boost/asio/strand.hpp>
#include <set>

#include "support/co_test.hpp"

using namespace cokv;
using namespace std::chrono_literals;
using outcome = sim_context::outcome;

namespace {

// Three coroutines and a strand; what they note depends on who goes first.
std::pair<std::string, std::uint64_t> race(std::uint64_t seed) {
  sim_context context(seed);
  std::string log;
  auto ex = asio::any_io_executor(context.get_executor());
  auto runner = [&log, ex](char name) -> awaitable<void> {
    for (int i = 0; i < 4; ++i) {
      log += name;
      co_await clock::of(ex).async_wait_for(1ms);
    }
  };
  for (char name : {'a', 'b', 'c'}) asio::co_spawn(ex, runner(name), asio::detached);
  auto strand = asio::make_strand(ex);
  for (char name : {'1', '2', '3'}) asio::post(strand, [&log, name] { log += name; });
  CHECK(context.run() == outcome::done);
  return {log, context.trace_hash()};
}

}  // namespace

TEST_CASE("the same seed gives the same run, other seeds other orders") {
  std::set<std::string> logs;
  std::set<std::uint64_t> hashes;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    auto first = race(seed), second = race(seed);
    CHECK(first == second);
    CHECK(first.first.find('1') < first.first.find('2'));  // a strand keeps its order
    CHECK(first.first.find('2') < first.first.find('3'));
    logs.insert(first.first);
    hashes.insert(first.second);
  }
  CHECK(logs.size() > 30);
  CHECK(hashes.size() == 50);
}

TEST_CASE("suspended coroutines are told from finished ones") {
  sim_context context(1);
  CHECK(context.run() == outcome::done);
  auto guard =
      std::make_unique<asio::executor_work_guard<asio::any_io_executor>>(asio::any_io_executor(context.get_executor()));
  CHECK(context.run() == outcome::suspended);
  CHECK(context.outstanding_work() > 0);
  guard.reset();
  CHECK(context.outstanding_work() == 0);
  CHECK(context.run() == outcome::done);
  asio::co_spawn(
      context.get_executor(),
      []() -> awaitable<void> {
        co_await clock::of(co_await asio::this_coro::executor).async_wait_for(duration::max());
      },
      asio::detached);
  CHECK(context.run() == outcome::suspended);
}

TEST_CASE("a loop in which time stands still is a livelock") {
  sim_context context(1, {.steps_per_instant = 1000});
  std::function<void()> again = [&] { asio::post(context.get_executor(), again); };
  again();
  CHECK(context.run() == outcome::livelock);
}

TEST_CASE("stop leaves the rest for the next run, step runs one handler") {
  sim_context context(1);
  int ran = 0;
  for (int i = 0; i < 3; ++i) asio::post(context.get_executor(), [&] { ++ran, context.stop(); });
  CHECK(context.run() == outcome::stopped);
  CHECK(ran == 1);
  CHECK(context.step());
  CHECK(ran == 2);
  CHECK(context.poll() == outcome::stopped);
  CHECK(!context.step());
}

TEST_CASE("dispatch runs inline inside the context, post and defer never") {
  sim_context context(1);
  std::string log;
  auto ex = context.get_executor();
  asio::post(ex, [&] {
    asio::dispatch(ex, [&] { log += 'd'; });
    asio::post(ex, [&] { log += 'p'; });
    log += 'o';
  });
  asio::dispatch(ex, [&] { log += 'x'; });
  CHECK(log.empty());
  context.run();
  CHECK(log.find("do") != std::string::npos);
  CHECK(log.find('o') < log.find('p'));
}

TEST_CASE("an exception leaves run and the context goes on") {
  sim_context context(1);
  asio::post(context.get_executor(), [] { throw std::runtime_error("on purpose"); });
  CHECK_THROWS_AS(context.run(), std::runtime_error);
  CHECK(context.run() == outcome::done);
}

TEST_CASE("coroutines that wait on each other's frames are destroyed with the context") {
  auto token = std::make_shared<int>(0);
  {
    sim_context context(1);
    auto ex = asio::any_io_executor(context.get_executor());
    auto inner = [](asio::any_io_executor ex, std::shared_ptr<int> t) -> awaitable<void> {
      co_await clock::of(ex).async_wait_for(1h);
    };
    auto outer = [&](asio::any_io_executor ex, std::shared_ptr<int> t) -> awaitable<void> {
      co_await asio::experimental::make_parallel_group(asio::co_spawn(ex, inner(ex, t), asio::deferred),
                                                       asio::co_spawn(ex, inner(ex, t), asio::deferred))
          .async_wait(asio::experimental::wait_for_all(), asio::deferred);
    };
    asio::co_spawn(ex, outer(ex, token), asio::detached);
    context.run_for(1s);
    CHECK(token.use_count() > 1);
  }
  CHECK(token.use_count() == 1);
}

TEST_CASE("random draws are uniform enough and repeatable") {
  sim_context a(7), b(7);
  int heads = 0;
  for (int i = 0; i < 10000; ++i) {
    heads += a.chance(0.5);
    CHECK(a.below(3) < 3);
    auto d = a.between(1ms, 2ms);
    CHECK((d >= 1ms && d <= 2ms));
  }
  CHECK(heads > 4700);
  CHECK(heads < 5300);
  for (int i = 0; i < 3; ++i) b.random();
  CHECK(a.random() != b.random());
}
