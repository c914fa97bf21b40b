// Calls what it is given, here and now. For the last step of a coroutine, which already runs where its handler belongs:
// co_spawn would dispatch that step through the erased executor, at a quarter of what the whole child costs.
//
//     template <class Executor>                            // in boost::asio, for a handler of co_spawn
//     struct associated_executor<handler, Executor> : cokv::detail::called_inline {};
#pragma once

#include <utility>

#include "cokv/runtime/asio.hpp"

namespace cokv::detail {

struct inline_executor {
  template <class F>
  void execute(F&& f) const {
    std::decay_t<F>(std::forward<F>(f))();
  }
  friend bool operator==(inline_executor, inline_executor) noexcept { return true; }
  friend bool operator!=(inline_executor, inline_executor) noexcept { return false; }
};

// Asio takes it for a handler without an executor of its own: co_spawn then emits a cancellation at once instead of
// posting it to a coroutine that may be gone by then.
struct called_inline {
  using type = inline_executor;
  using asio_associated_executor_is_unspecialised = void;
  template <class Handler, class Executor>
  static type get(const Handler&, const Executor&) noexcept {
    return {};
  }
  template <class Handler>
  static type get(const Handler&) noexcept {
    return {};
  }
};

}  // namespace cokv::detail
