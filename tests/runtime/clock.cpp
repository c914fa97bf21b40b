#include "cokv/runtime/clock.hpp"

#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_future.hpp>

#include "support/co_test.hpp"
#include "support/counting_allocator.hpp"

using namespace cokv;
using namespace std::chrono_literals;
using test::co_test;

TEST_CASE("a wait ends at or after its time, in order of deadlines") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto& time = clock::of(ex);
    auto start = time.now();
    co_await time.async_wait_for(3ms);
    CHECK(time.now() >= start + 3ms);

    std::vector<int> order;
    start = time.now();
    auto note = [&](int i) { return [&order, i](error_code ec) { order.push_back(ec ? -i : i); }; };
    time.async_wait_until(start + 9ms, note(3));
    time.async_wait_until(start + 3ms, note(1));
    time.async_wait_until(start + 6ms, note(2));
    co_await time.async_wait_until(start + 12ms);
    CHECK(order == std::vector{1, 2, 3});
    co_await time.async_wait_until(start);  // has passed
    co_await time.async_wait_for(-1s);
  });
}

TEST_CASE("a wait takes any completion token") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto& time = clock::of(ex);
    co_await time.async_wait_for(1us, asio::deferred);
    co_await time.async_wait_for(1us, asio::use_awaitable);
    auto [ec] = co_await time.async_wait_for(1us, asio::as_tuple(asio::use_awaitable));
    CHECK(!ec);
    auto again = time.async_wait_for(1us);
    co_await std::move(again);
    bool called = false;
    time.async_wait_for(1us, [&](error_code e) { called = !e; });
    CHECK(!called);  // never inside the initiating function
    co_await time.async_wait_for(1ms);
    CHECK(called);
  });
  asio::io_context context(1);  // a future completes on the system's executor, outside any simulation
  auto future = clock::of(context.get_executor()).async_wait_for(1us, asio::use_future);
  context.run();
  future.get();
}

TEST_CASE("a cancelled wait ends at once and leaves no timer behind") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto& time = clock::of(ex);
    for (auto type :
         {asio::cancellation_type::terminal, asio::cancellation_type::partial, asio::cancellation_type::total}) {
      asio::cancellation_signal signal;
      error_code got;
      time.async_wait_for(1h, asio::bind_cancellation_slot(signal.slot(), [&](error_code ec) { got = ec; }));
      signal.emit(type);
      signal.emit(type);
      CHECK(!got);
      co_await asio::post(ex, asio::deferred);
      co_await time.async_wait_for(1us);
      CHECK(got == asio::error::operation_aborted);
    }
  });
}

TEST_CASE("a clock that is only read brings its context no timer, which would make waking it dearer") {
  using timers = asio::detail::deadline_timer_service<
      asio::detail::chrono_time_traits<std::chrono::steady_clock, asio::wait_traits<std::chrono::steady_clock>>>;
  asio::io_context ctx(1);
  auto& time = clock::of(ctx.get_executor());
  CHECK(time.now() > time_point());
  CHECK(!asio::has_service<timers>(ctx));
  time.async_wait_for(1ns, asio::detached);
  CHECK(asio::has_service<timers>(ctx));
  ctx.run();
}

TEST_CASE("many deadlines that are cancelled cost no time: the context ends with its last operation") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto& time = clock::of(ex);
    auto start = time.now();
    int aborted = 0;
    std::vector<std::unique_ptr<asio::cancellation_signal>> signals;
    for (int i = 0; i < 1000; ++i) {
      signals.push_back(std::make_unique<asio::cancellation_signal>());
      time.async_wait_for(1h - i * 1s, asio::bind_cancellation_slot(signals.back()->slot(), [&](error_code ec) {
                            aborted += ec == asio::error::operation_aborted;
                          }));
    }
    for (auto& s : signals) s->emit(asio::cancellation_type::total);
    co_await time.async_wait_for(1ms);
    CHECK(aborted == 1000);
    CHECK(time.now() < start + 30min);
  });
}

TEST_CASE("a context whose only deadline was cancelled runs out of work") {
  asio::io_context context(1);
  auto& time = clock::of(context.get_executor());
  asio::cancellation_signal signal;
  int done = 0;
  time.async_wait_for(1h, asio::bind_cancellation_slot(signal.slot(), [&](error_code) { ++done; }));
  asio::post(context, [&] { signal.emit(asio::cancellation_type::terminal); });
  context.run();  // returns: the armed timer is no work
  CHECK(done == 1);
  context.restart();
  time.async_wait_for(1us, [&](error_code ec) { done += !ec; });
  context.run();
  CHECK(done == 2);
}

TEST_CASE("a wait uses its handler's allocator and frees before the upcall") {
  sim_context context(1);
  test::allocation_count counts;
  test::counting_allocator<> alloc(counts);
  int live = 99;
  clock::of(context.get_executor()).async_wait_for(1s, asio::bind_allocator(alloc, [&](error_code) {
                                                     live = counts.live;
                                                   }));
  CHECK(counts.total > 0);
  context.run();
  CHECK(live == 0);
}

TEST_CASE("waits that are pending when their context goes are destroyed with it") {
  auto token = std::make_shared<int>(1);
  {
    asio::io_context context(1);
    clock::of(context.get_executor()).async_wait_for(1h, [token](error_code) { FAIL("called"); });
    context.poll();
  }
  CHECK(token.use_count() == 1);
  {
    sim_context context(1);
    clock::of(context.get_executor()).async_wait_for(1h, [token](error_code) { FAIL("called"); });
  }
  CHECK(token.use_count() == 1);
}

TEST_CASE("waits survive cancellation and destruction at every step") {
  auto body = [](asio::any_io_executor ex) -> awaitable<void> {
    auto& time = clock::of(ex);
    for (int i = 0; i < 3; ++i) co_await time.async_wait_for(1s, asio::as_tuple(asio::deferred));
    co_await asio::experimental::make_parallel_group(time.async_wait_for(1s), time.async_wait_for(2s))
        .async_wait(asio::experimental::wait_for_one(), asio::deferred);
  };
  test::cancel_at_every_step(body);
  test::destroy_at_every_step(body);
}

TEST_CASE("virtual time stands still while handlers run and jumps to the next deadline") {
  sim_context context(1);
  auto& time = clock::of(context.get_executor());
  auto wall = time.wall_now();
  bool fired = false;
  time.async_wait_for(24h, [&](error_code) { fired = true; });
  CHECK(context.run_for(1h) == sim_context::outcome::reached);
  CHECK(!fired);
  CHECK(time.now().time_since_epoch() == 1h);
  CHECK(time.wall_now() - wall == 1h);
  CHECK(context.run() == sim_context::outcome::done);
  CHECK(fired);
  CHECK(time.now().time_since_epoch() == 24h);
}
