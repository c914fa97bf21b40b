#include "cokv/runtime/detail/background.hpp"

#include <doctest/doctest.h>

#include <memory>

#include "cokv/runtime/clock.hpp"
#include "support/co_test.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace std::chrono_literals;

namespace {

awaitable<void> sleeps(duration d, int& ended) {
  auto [ec] = co_await clock::of(co_await asio::this_coro::executor).async_wait_for(d, asio::as_tuple(asio::deferred));
  ended += ec ? 100 : 1;
}

}  // namespace

TEST_CASE("background: tasks run by themselves, and a join waits for all of them, those that came meanwhile too") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    detail::background tasks(ex);
    int ended = 0;
    for (int i = 1; i <= 5; ++i) CHECK(tasks.spawn(sleeps(1us * i, ended)));
    CHECK(tasks.spawn([](detail::background& tasks, int& ended) -> awaitable<void> {
      co_await sleeps(1us, ended);
      CHECK(tasks.spawn(sleeps(2us, ended)));
    }(tasks, ended)));
    CHECK(tasks.live() >= 6);
    co_await tasks.async_join(asio::deferred);
    CHECK(ended == 7);
    CHECK(tasks.live() == 0);
    co_await tasks.async_join(asio::deferred);  // nothing to wait for
  });
}

TEST_CASE("background: cancelled, every task learns of it, and nothing more is taken") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    detail::background tasks(ex);
    int ended = 0;
    for (int i = 0; i < 3; ++i) tasks.spawn(sleeps(24h, ended));
    int dummy = 0;
    co_await sleeps(1us, dummy);
    tasks.cancel();
    auto mark = std::make_shared<int>();
    CHECK(!tasks.spawn([](std::shared_ptr<int>) -> awaitable<void> {
      FAIL_CHECK("it ran");
      co_return;
    }(mark)));
    CHECK(mark.use_count() == 1);
    co_await tasks.async_join(asio::deferred);
    CHECK(ended == 300);
  });
}

TEST_CASE("background: more at once than the limit are refused, later ones are not") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    detail::background tasks(ex, 2);
    int ended = 0;
    CHECK(tasks.spawn(sleeps(1us, ended)));
    CHECK(tasks.spawn(sleeps(1us, ended)));
    CHECK(!tasks.spawn(sleeps(1us, ended)));
    co_await tasks.async_join(asio::deferred);
    CHECK(ended == 2);
    CHECK(tasks.spawn(sleeps(1us, ended)));
    co_await tasks.async_join(asio::deferred);
    CHECK(ended == 3);
  });
}

TEST_CASE("background: its owner may go while tasks run, and a context with tasks at any step") {
  auto body = [](asio::any_io_executor ex) -> awaitable<void> {
    auto ended = std::make_shared<int>(0);
    {
      detail::background tasks(ex);
      for (int i = 0; i < 3; ++i)
        tasks.spawn([](std::shared_ptr<int> ended) -> awaitable<void> { co_await sleeps(1us, *ended); }(ended));
      tasks.cancel();
    }
    int dummy = 0;
    co_await sleeps(2us, dummy);
  };
  co_test(body);
  destroy_at_every_step(body);
}
