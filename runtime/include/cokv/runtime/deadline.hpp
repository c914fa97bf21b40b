// with_deadline(): an awaitable or an operation that has to end in time. What ran late is cancelled and has ended, all
// of it, before errc::deadline is reported; a failure is reported as itself and at once, not after the delay.
//
//     result<std::size_t> n = co_await with_deadline(socket.async_read_some(buffer), 200ms);
//     result<match> m = co_await with_deadline(lookup(keys), 50ms);     // lookup: awaitable<match or result<match>>
//     if (m.error() == errc::deadline) ...
//
// An operation that succeeds although it was cancelled has succeeded. A cancellation from outside reaches the
// operation and gives operation_aborted. Time is clock::of(the coroutine's executor).
#pragma once

#include <optional>

#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"

namespace cokv {

namespace detail {

template <class R>
struct as_outcome {
  using type = result<R>;
};
template <class T>
struct as_outcome<result<T>> {
  using type = result<T>;
};
template <>
struct as_outcome<error_code> {
  using type = result<void>;
};

template <class R>
awaitable<typename as_outcome<R>::type> settle(awaitable<R> task) {
  if constexpr (std::is_void_v<R>) {
    co_await std::move(task);
    co_return result<void>();
  } else if constexpr (std::is_same_v<R, error_code>) {
    error_code ec = co_await std::move(task);
    if (ec) co_return ec;
    co_return result<void>();
  } else {
    co_return co_await std::move(task);
  }
}

template <class R, class Op>
awaitable<R> settle_operation(Op operation) {
  co_return co_await std::move(operation)(as_result);
}

template <class R>
awaitable<R> settle_by(awaitable<R> task, duration d) {
  std::optional<R> settled;
  bool late = false;
  auto& time = clock::of(co_await asio::this_coro::executor);
  auto v = co_await with(task_group{}, [&](task_group& group) {
    group.spawn([&]() -> awaitable<void> {
      settled.emplace(co_await std::move(task));
      group.cancel();
    });
    group.spawn(time.async_wait_for(d, asio::deferred([&](error_code ec) {
                                      late = !ec;
                                      return asio::deferred.values(late && !settled ? make_error_code(errc::deadline)
                                                                                    : ec);
                                    })));
  });
  if (settled && (*settled || !late)) co_return std::move(*settled);
  if (late) co_return make_error_code(errc::deadline);
  co_return v ? make_error_code(errc::deadline) : v.error();
}

}  // namespace detail

template <class R>
awaitable<typename detail::as_outcome<R>::type> with_deadline(awaitable<R> task, duration d) {
  return detail::settle_by(detail::settle(std::move(task)), d);
}

template <class Op>
  requires asio::is_async_operation<Op>::value
auto with_deadline(Op operation, duration d) {
  using signature = typename asio::completion_signature_of<Op>::type;
  using settled = typename detail::result_signature<signature>::args::type;
  return detail::settle_by(detail::settle_operation<settled>(std::move(operation)), d);
}

}  // namespace cokv
