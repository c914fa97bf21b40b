// Runs a coroutine as the body of an operation: it returns error_code, result<T> or tuple<error_code, T...>. A
// cancellation of the handler reaches the coroutine, whatever its kind and however early; a system_error that escapes
// becomes its code, any other exception is a bug and leaves the context's run().
//
//     awaitable<result<std::size_t>> read_all(file& from);
//     detail::run_as_operation(ex, read_all(from), std::move(handler));  // handler: any_completion_handler<...>
#pragma once

#include <boost/asio/recycling_allocator.hpp>
#include <exception>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "cokv/runtime/asio.hpp"
#include "cokv/runtime/detail/inline_executor.hpp"
#include "cokv/runtime/detail/post_to.hpp"

namespace cokv::detail {

// What a coroutine returns, as the values of a completion.
template <class R>
struct completion_of;

template <>
struct completion_of<error_code> {
  using signature = void(error_code);
  static std::tuple<error_code> values(error_code ec) { return {ec}; }
  static std::tuple<error_code> failed(error_code ec) { return {ec}; }
};

template <class T>
struct completion_of<result<T>> {
  using signature = void(error_code, T);
  static std::tuple<error_code, T> values(result<T> r) {
    if (!r) return {r.error(), T()};
    return {error_code(), std::move(*r)};
  }
  static std::tuple<error_code, T> failed(error_code ec) { return {ec, T()}; }
};

template <class... T>
struct completion_of<std::tuple<error_code, T...>> {
  using signature = void(error_code, T...);
  static std::tuple<error_code, T...> values(std::tuple<error_code, T...> r) { return r; }
  static std::tuple<error_code, T...> failed(error_code ec) { return {ec, T()...}; }
};

// How a cancellation finds a coroutine that may not have begun: co_spawn alone would throw out of run() there.
struct body_cancellation {
  asio::cancellation_signal signal;
  bool started = false;
  bool cancelled = false;
};

template <class R>
awaitable<R> guarded_body(std::shared_ptr<body_cancellation> cancellation, awaitable<R> body) {
  if (cancellation->cancelled) {
    co_await asio::this_coro::throw_if_cancelled(false);
    throw boost::system::system_error(asio::error::operation_aborted);
  }
  cancellation->started = true;
  co_await asio::this_coro::reset_cancellation_state(asio::enable_total_cancellation());
  std::exception_ptr thrown;
  std::optional<R> r;
  try {
    r.emplace(co_await std::move(body));
  } catch (...) {
    thrown = std::current_exception();
  }
  // The last step is co_spawn's own, and must not throw in a cancelled coroutine.
  co_await asio::this_coro::throw_if_cancelled(false);
  if (thrown) std::rethrow_exception(thrown);
  co_return std::move(*r);
}

// A handler of co_spawn that names its slot itself. Bound with bind_cancellation_slot it would count as one with an
// executor of its own; co_spawn then posts a cancellation that comes from outside run(), and by the time that is done
// the coroutine may be gone.
template <class F>
struct with_slot {
  asio::cancellation_slot slot;
  F finish;

  using cancellation_slot_type = asio::cancellation_slot;
  cancellation_slot_type get_cancellation_slot() const noexcept { return slot; }
  template <class R>
  void operator()(std::exception_ptr error, R r) {
    finish(std::move(error), std::move(r));
  }
};

}  // namespace cokv::detail

template <class F, class Executor>
struct boost::asio::associated_executor<cokv::detail::with_slot<F>, Executor> : cokv::detail::called_inline {};

namespace cokv::detail {

template <class R, class Executor>
void run_as_operation(const Executor& ex, awaitable<R> body,
                      asio::any_completion_handler<typename completion_of<R>::signature> handler) {
  auto cancellation = std::make_shared<body_cancellation>();
  auto slot = asio::get_associated_cancellation_slot(handler);
  if (slot.is_connected()) {
    slot.assign([cancellation](asio::cancellation_type_t type) {
      if (type == asio::cancellation_type::none) return;
      cancellation->cancelled = true;
      if (cancellation->started) cancellation->signal.emit(type);
    });
  }
  // It holds `cancellation` too: co_spawn's last step looks at the slot after the body is gone.
  auto finish = [ex, slot, cancellation, work = asio::make_work_guard(asio::get_associated_executor(handler, ex)),
                 handler = std::move(handler)](std::exception_ptr error, R r) mutable {
    if (slot.is_connected()) slot.clear();
    auto values = [&]() -> decltype(completion_of<R>::failed({})) {
      if (!error) return completion_of<R>::values(std::move(r));
      try {
        std::rethrow_exception(error);
      } catch (const boost::system::system_error& e) {
        return completion_of<R>::failed(e.code());
      }
    }();
    auto to = work.get_executor();
    auto alloc = asio::get_associated_allocator(handler, asio::recycling_allocator<void>());
    post_to(to, ex, alloc, [handler = std::move(handler), values = std::move(values)]() mutable {
      std::apply([&](auto&&... v) { std::move(handler)(std::move(v)...); }, std::move(values));
    });
  };
  asio::co_spawn(ex, guarded_body(cancellation, std::move(body)),
                 with_slot<decltype(finish)>{cancellation->signal.slot(), std::move(finish)});
}

}  // namespace cokv::detail
