#include "cokv/runtime/detail/lazy_deadline.hpp"

#include <vector>

#include "support/co_test.hpp"

using namespace cokv;
using namespace std::chrono_literals;
using detail::lazy_deadline;

namespace {

// In virtual time, from 0.
void at_times(const std::function<awaitable<void>(cokv::clock&, std::vector<duration>&, lazy_deadline&)>& body,
              std::vector<duration> expected) {
  test::co_test(
      [&](asio::any_io_executor ex) -> awaitable<void> {
        auto& time = cokv::clock::of(ex);
        const auto start = time.now();
        std::vector<duration> expired;
        lazy_deadline deadline(ex, [&] { expired.push_back(time.now() - start); });
        co_await body(time, expired, deadline);
        CHECK(expired == expected);
      },
      {.real = false});
}

}  // namespace

TEST_CASE("a lazy deadline passes once, unless it is relaxed before") {
  at_times(
      [](cokv::clock& time, auto&, lazy_deadline& d) -> awaitable<void> {
        d.expect_within(3s);
        co_await time.async_wait_for(10s);
        d.expect_within(3s);
        co_await time.async_wait_for(2s);
        d.relax();
        co_await time.async_wait_for(10s);
      },
      {3s});
}

TEST_CASE("the last one that was set counts, be it later or nearer") {
  at_times(
      [](cokv::clock& time, auto& expired, lazy_deadline& d) -> awaitable<void> {
        d.expect_within(3s);
        co_await time.async_wait_for(2s);
        d.expect_within(3s);  // at 5 s
        co_await time.async_wait_for(2s);
        CHECK(expired.empty());
        co_await time.async_wait_for(2s);
        d.expect_within(100s);
        d.expect_within(1s);  // at 7 s
        co_await time.async_wait_for(200s);
        d.expect_within(duration::max());
        co_await time.async_wait_for(200s);
      },
      {5s, 7s});
}

TEST_CASE("many deadlines in turn are one wait of the clock") {
  at_times(
      [](cokv::clock& time, auto&, lazy_deadline& d) -> awaitable<void> {
        auto& context = static_cast<sim_context&>(asio::query(time.get_executor(), asio::execution::context));
        d.expect_within(3s);
        const auto before = context.steps();
        for (int i = 0; i < 1000; ++i) d.expect_within(3s + std::chrono::milliseconds(i)), d.relax();
        CHECK(context.steps() == before);
        co_await time.async_wait_for(10s);
      },
      {});
}

TEST_CASE("a lazy deadline may be destroyed by what it calls, and leaves no wait behind") {
  asio::io_context context(1);
  auto deadline = std::make_unique<lazy_deadline>(context.get_executor(), [] {});
  deadline->expect_within(1h);
  deadline.reset();
  context.run();  // returns

  bool over = false;
  std::optional<lazy_deadline> again;
  again.emplace(context.get_executor(), [&] {
    again.reset();
    over = true;
  });
  again->expect_within(1ms);
  context.restart();
  context.run();
  CHECK(over);
}
