#include "cokv/runtime/retry.hpp"

#include <doctest/doctest.h>

#include <memory>
#include <stdexcept>
#include <vector>

#include "cokv/runtime/channel.hpp"
#include "support/co_test.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace std::chrono_literals;

namespace {

// Fails with these errors, one an attempt, then succeeds with the number of calls.
auto failing(std::vector<error_code> errors) {
  return [errors = std::move(errors), calls = 0]() mutable -> awaitable<result<int>> {
    const auto call = static_cast<std::size_t>(calls++);
    if (call < errors.size()) co_return errors[call];
    co_return calls;
  };
}

awaitable<void> sleep_for(duration d) {
  co_await clock::of(co_await asio::this_coro::executor).async_wait_for(d, asio::deferred);
}

std::vector<duration> pauses(detail::retry_schedule plan, int n) {
  std::vector<duration> out;
  for (int i = 0; i < n; ++i) {
    plan.begin();
    out.push_back(plan.pause({}).value());
  }
  return out;
}

}  // namespace

TEST_CASE("retry schedule: pauses are drawn evenly from zero to a bound that doubles up to the most") {
  const retry_options options{.attempts = 0, .first_pause = 10ms, .most_pause = 80ms};
  std::vector<duration> low(8, duration::max()), high(8), sum(8);
  constexpr int rounds = 4000;
  for (std::uint64_t seed = 1; seed <= rounds; ++seed) {
    const auto drawn = pauses({options, seed, time_point(5s)}, 8);
    for (std::size_t i = 0; i < 8; ++i) {
      low[i] = std::min(low[i], drawn[i]);
      high[i] = std::max(high[i], drawn[i]);
      sum[i] += drawn[i];
    }
  }
  for (std::size_t i = 0; i < 8; ++i) {
    const duration bound = std::min<duration>(80ms, 10ms * (1 << i));
    CHECK(high[i] <= bound);
    CHECK(high[i] > bound * 99 / 100);
    CHECK(low[i] < bound / 100);
    CHECK(sum[i] / rounds > bound * 47 / 100);
    CHECK(sum[i] / rounds < bound * 53 / 100);
  }
}

TEST_CASE("retry schedule: the same seed gives the same pauses, another one others, on every platform") {
  const retry_options options{.attempts = 0, .first_pause = 1s, .most_pause = 1s};
  CHECK(pauses({options, 7, {}}, 20) == pauses({options, 7, {}}, 20));
  CHECK(pauses({options, 7, {}}, 20) != pauses({options, 8, {}}, 20));
  CHECK(pauses({options, 1, {}}, 2) == std::vector<duration>{566561575ns, 745781758ns});
}

TEST_CASE("retry schedule: attempts and the deadline bound it, and nothing overflows") {
  detail::retry_schedule counted({.attempts = 3}, 1, {});
  for (int i = 1; i <= 3; ++i) {
    counted.begin();
    CHECK(counted.attempts() == i);
    CHECK(counted.pause({}).has_value() == (i < 3));
  }
  detail::retry_schedule timed({.attempts = 0, .first_pause = 0ns, .deadline = 1s}, 1, time_point(1s));
  CHECK(timed.left(time_point(1500ms)) == 500ms);
  CHECK(timed.left(time_point(3s)) == 0ns);
  CHECK(timed.pause(time_point(1500ms)) == duration(0));
  CHECK(!timed.pause(time_point(2s)));
  detail::retry_schedule endless({.attempts = 0, .first_pause = duration::max(), .most_pause = duration::max()}, 1,
                                 time_point(1s));
  CHECK(endless.left(time_point::max()) == duration::max());
  for (int i = 0; i < 100; ++i) CHECK(endless.pause({}).value() >= 0ns);
  detail::retry_schedule negative({.attempts = 0, .first_pause = -5s, .most_pause = -1s, .deadline = -1s}, 1, {});
  CHECK(negative.left({}) == 0ns);
  CHECK(!negative.pause({}));
}

TEST_CASE("transient: what may be gone a moment later, and nothing else") {
  for (error_code ec : {error_code(errc::deadline), error_code(errc::unavailable), error_code(errc::queue_full),
                        error_code(asio::error::connection_refused), error_code(asio::error::connection_reset),
                        error_code(asio::error::timed_out), error_code(asio::error::eof),
                        error_code(asio::error::broken_pipe), error_code(asio::error::try_again),
                        error_code(asio::error::host_not_found_try_again), error_code(asio::error::host_unreachable)})
    CHECK_MESSAGE(is_transient(ec), ec.message());
  for (error_code ec : {error_code(), error_code(asio::error::operation_aborted), error_code(errc::not_found),
                        error_code(errc::digest_mismatch), error_code(errc::permission_denied),
                        error_code(errc::device_lost), error_code(errc::closed), error_code(errc::invalid_argument),
                        error_code(asio::error::host_not_found), error_code(asio::error::access_denied)})
    CHECK_MESSAGE(!is_transient(ec), ec.message());
}

TEST_CASE("retry: until the first success, and it says after how many attempts") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    const retry_options quick{.attempts = 4, .first_pause = 1us};
    auto first = co_await retry(failing({}), quick);
    CHECK(first.value() == 1);
    CHECK(first.attempts() == 1);
    auto third = co_await retry(failing({errc::unavailable, errc::deadline}), quick);
    CHECK(third.value() == 3);
    CHECK(third.attempts() == 3);
    auto none = co_await retry(failing(std::vector<error_code>(9, errc::unavailable)), quick);
    CHECK(none.error() == errc::unavailable);
    CHECK(none.attempts() == 4);
  });
}

TEST_CASE("retry: an error that no other attempt can mend ends it, by default or by the caller's word") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    const retry_options quick{.attempts = 4, .first_pause = 1us};
    auto lost = co_await retry(failing({errc::unavailable, errc::not_found}), quick);
    CHECK(lost.error() == errc::not_found);
    CHECK(lost.attempts() == 2);
    auto mine = co_await retry(failing({errc::not_found}), quick, [](error_code ec) { return ec == errc::not_found; });
    CHECK(mine.value() == 2);
    auto aborted = co_await retry(failing({asio::error::operation_aborted}), quick, [](error_code) { return true; });
    CHECK(aborted.error() == asio::error::operation_aborted);
    CHECK(aborted.attempts() == 1);
  });
}

TEST_CASE("retry: the task may return anything that can fail, or throw") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    const retry_options quick{.attempts = 3, .first_pause = 1us};
    int calls = 0;
    retried<void> nothing = co_await retry(
        [&]() -> awaitable<void> {
          if (++calls < 3) throw boost::system::system_error(errc::unavailable);
          co_return;
        },
        quick);
    CHECK(nothing);
    CHECK(nothing.attempts() == 3);
    retried<void> code = co_await retry([]() -> awaitable<error_code> { co_return errc::unavailable; }, quick);
    CHECK(code.error() == errc::unavailable);
    channel<std::unique_ptr<int>> ch(ex, 1);
    ch.try_send(std::make_unique<int>(7));
    retried<std::unique_ptr<int>> op = co_await retry([&] { return ch.async_receive(); }, quick);
    CHECK(**op == 7);
    bool thrown = false;
    try {
      (void)co_await retry(
          []() -> awaitable<void> {
            throw std::logic_error("bug");
            co_return;
          },
          quick);
    } catch (const std::logic_error&) {
      thrown = true;
    }
    CHECK(thrown);
    retried<int> early = co_await retry(
        [&]() -> awaitable<int> {
          if (++calls < 5) throw boost::system::system_error(errc::unavailable);  // before there is a coroutine
          return []() -> awaitable<int> { co_return 1; }();
        },
        quick);
    CHECK(early.value() == 1);
  });
}

TEST_CASE("retry: the deadline cuts an attempt, and no pause outlasts it") {
  co_options options{.real = false, .seeds = 50};
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto& time = clock::of(ex);
        auto start = time.now();
        auto hung = co_await retry([] { return sleep_for(1h); }, {.attempts = 5, .deadline = 2s});
        CHECK(hung.error() == errc::deadline);
        CHECK(hung.attempts() == 1);
        CHECK(time.now() - start == 2s);
        start = time.now();
        auto failing_on = co_await retry(failing(std::vector<error_code>(100000, errc::unavailable)),
                                         {.attempts = 0, .first_pause = 10ms, .most_pause = 100ms, .deadline = 2s});
        CHECK(failing_on.error() == errc::unavailable);
        CHECK(failing_on.attempts() > 10);
        CHECK(time.now() - start < 2s);
        CHECK(time.now() - start > 1900ms);
        start = time.now();
        auto each = co_await retry([] { return with_deadline(sleep_for(1h), 100ms); },
                                   {.attempts = 3, .first_pause = 0ns, .deadline = 1h});
        CHECK(each.error() == errc::deadline);
        CHECK(each.attempts() == 3);
        CHECK(time.now() - start == 300ms);
      },
      options);
}

TEST_CASE("retry: in virtual time the context's seed decides the pauses, a seed of one's own decides them alone") {
  auto took = [](std::uint64_t context_seed, std::uint64_t seed) {
    duration d{};
    run_seed(context_seed, [&](asio::any_io_executor ex) -> awaitable<void> {
      auto& time = clock::of(ex);
      const auto start = time.now();
      (void)co_await retry(failing(std::vector<error_code>(9, errc::unavailable)), {.attempts = 6, .seed = seed});
      d = time.now() - start;
    });
    return d;
  };
  CHECK(took(1, 0) == took(1, 0));
  CHECK(took(1, 0) != took(2, 0));
  CHECK(took(1, 9) == took(2, 9));
  CHECK(took(1, 9) != took(1, 8));
}

TEST_CASE("retry: a cancellation ends the pause at once, and an attempt when it has ended") {
  co_options options{.real = false, .seeds = 50};
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto& time = clock::of(ex);
        const auto start = time.now();
        std::optional<retried<int>> pausing, draining, stubborn;
        auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
          group.spawn([&]() -> awaitable<void> {
            pausing.emplace(co_await retry(failing(std::vector<error_code>(9, errc::unavailable)),
                                           {.attempts = 9, .first_pause = 24h, .most_pause = 24h}));
          });
          group.spawn([&]() -> awaitable<void> {
            draining.emplace(co_await retry([]() -> awaitable<result<int>> {
              co_await asio::this_coro::throw_if_cancelled(false);
              auto [ec] = co_await clock::of(co_await asio::this_coro::executor)
                              .async_wait_for(1h, asio::as_tuple(asio::deferred));
              CHECK(ec == asio::error::operation_aborted);
              co_await asio::this_coro::reset_cancellation_state();
              co_await sleep_for(3ms);
              co_return errc::unavailable;  // worth another attempt, had nobody cancelled
            }));
          });
          group.spawn([&]() -> awaitable<void> {
            stubborn.emplace(co_await retry([]() -> awaitable<result<int>> {
              co_await asio::this_coro::throw_if_cancelled(false);
              co_await clock::of(co_await asio::this_coro::executor).async_wait_for(1h, asio::as_tuple(asio::deferred));
              co_return 5;
            }));
          });
          co_await sleep_for(1ms);
          group.cancel();
        });
        CHECK(v);
        CHECK(time.now() - start == 4ms);
        CHECK(pausing->error() == asio::error::operation_aborted);
        CHECK(pausing->attempts() == 1);
        CHECK(draining->error() == errc::unavailable);
        CHECK(draining->attempts() == 1);
        CHECK(stubborn->value() == 5);
      },
      options);
}

TEST_CASE("retry: cancelled or destroyed at every step it ends and leaves nothing behind") {
  auto body = [](asio::any_io_executor ex) -> awaitable<void> {
    int calls = 0;
    auto r = co_await retry(
        [&]() -> awaitable<result<int>> {
          std::string frame(100, 'x');
          co_await sleep_for(1ms);
          if (++calls < 3) co_return errc::unavailable;
          co_return calls;
        },
        {.attempts = 5, .deadline = 1h});
    const bool own_error = !r && r.error() == errc::unavailable;  // the attempt had failed when the cancellation came
    CHECK((r ? *r == 3 : own_error || r.error() == asio::error::operation_aborted));
    CHECK(r.attempts() <= 3);
  };
  cancel_at_every_step(body);
  destroy_at_every_step(body);
}

TEST_CASE("seed source: the system's is not repeated, a host of a simulation draws from its run") {
  asio::io_context ctx(1);
  auto& source = detail::seed_source::of(ctx.get_executor());
  CHECK(source.next() != source.next());
  sim_context a(3), b(3);
  CHECK(detail::seed_source::of(a.get_executor()).next() == detail::seed_source::of(b.get_executor()).next());
}
