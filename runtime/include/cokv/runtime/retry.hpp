// retry(): runs a task until it succeeds, fails for good, or is out of attempts or time. Between two attempts it pauses
// for a random time whose bound doubles (full jitter). Time is clock::of the coroutine's executor; in virtual time the
// pauses are the context seed's.
//
//     auto blocks = co_await retry([&] { return remote.match(keys); }, {.attempts = 4, .deadline = 2s});
//     if (!blocks) log("gave up after {}: {}", blocks.attempts(), blocks.error().message());
//
// The task is a function that is called for every attempt and returns an awaitable (of T, result<T>, error_code or
// void) or an operation. It lives until retry() completes, and so may be a coroutine lambda. An attempt that may hang
// gets a bound of its own: retry([&] { return with_deadline(remote.match(keys), 200ms); }, ...).
//
// |              | retry                                                                                       |
// |--------------|---------------------------------------------------------------------------------------------|
// | completes    | with the first success, or the last attempt's error; always with the number of attempts     |
// | attempts     | another one after an error that `worth` accepts: is_transient unless given; never after     |
// |              | operation_aborted or a cancellation                                                         |
// | deadline     | cuts the attempt under way: errc::deadline once that has ended. When no pause fits any more |
// |              | the last error arrives at once, not at the deadline                                         |
// | cancellation | reaches the attempt as cancellation_type::all; completes when it has ended, with what it    |
// |              | ended with; in a pause at once, with operation_aborted                                      |
// | errors       | a system_error that an attempt throws is its code; any other exception leaves retry()       |
#pragma once

#include <concepts>
#include <optional>
#include <type_traits>
#include <utility>

#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/detail/require.hpp"
#include "cokv/runtime/detail/retry_schedule.hpp"
#include "cokv/runtime/detail/seed_source.hpp"

namespace cokv {

// Errors that may be gone a moment later: a peer that restarts, a full queue, a lost connection, a deadline.
bool is_transient(error_code ec) noexcept;

template <class T>
class [[nodiscard]] retried : public result<T> {
 public:
  retried(result<T> last, int attempts) : result<T>(std::move(last)), attempts_(attempts) {}
  int attempts() const noexcept { return attempts_; }

 private:
  int attempts_;
};

namespace detail {

template <class R>
struct attempt_of {
  using type = typename result_signature<typename asio::completion_signature_of<R>::type>::args::type;
};
template <class R>
struct attempt_of<awaitable<R>> : as_outcome<R> {};

template <class F>
using attempt_result = typename attempt_of<std::invoke_result_t<F&>>::type;

// The task is called in here, so that what it throws is the attempt's.
template <class F>
awaitable<attempt_result<F>> attempt(F& task) {
  if constexpr (requires { typename awaited<std::invoke_result_t<F&>>::type; })
    co_return co_await settle(task());
  else
    co_return co_await task()(as_result);
}

}  // namespace detail

template <std::invocable F, std::predicate<error_code> Worth = bool(*)(error_code)>
awaitable<retried<typename detail::attempt_result<F>::value_type>> retry(F task, retry_options options = {},
                                                                         Worth worth = is_transient) {
  COKV_REQUIRE(options.attempts > 0 || options.deadline != duration::max(),
               "retry needs a bound: a number of attempts or a deadline");
  const auto ex = co_await asio::this_coro::executor;
  auto& time = clock::of(ex);
  detail::retry_schedule plan(options, options.seed ? options.seed : detail::seed_source::of(ex).next(), time.now());
  std::optional<detail::attempt_result<F>> last;
  auto cancelled = [](const asio::cancellation_state& s) { return s.cancelled() != asio::cancellation_type::none; };
  for (;;) {
    if (cancelled(co_await asio::this_coro::cancellation_state)) {
      last.emplace(make_error_code(asio::error::operation_aborted));
      break;
    }
    plan.begin();
    last.emplace(co_await with_deadline(detail::attempt(task), plan.left(time.now())));
    if (*last || last->error() == asio::error::operation_aborted || !worth(last->error())) break;
    const auto pause = plan.pause(time.now());
    if (!pause || cancelled(co_await asio::this_coro::cancellation_state)) break;
    co_await time.async_wait_for(*pause, asio::as_tuple(asio::deferred));
  }
  co_return retried<typename detail::attempt_result<F>::value_type>(std::move(*last), plan.attempts());
}

}  // namespace cokv
