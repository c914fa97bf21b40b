// Posts to a handler's executor with the handler's allocator, whatever kind of executor that is.
//
//     post_to(asio::get_associated_executor(handler, ex), ex, allocator, [handler = std::move(handler)]() mutable {...});
#pragma once

#include <type_traits>
#include <utility>

#include "cokv/runtime/asio.hpp"

namespace cokv::detail {

// A function with an allocator of its own. Not bind_allocator: what that returns looks to Asio as if it might have an
// executor of its own too, and is dispatched a second time for it.
template <class Allocator, class F>
struct posted {
  using allocator_type = Allocator;
  Allocator allocator;
  F f;
  allocator_type get_allocator() const noexcept { return allocator; }
  void operator()() { std::move(f)(); }
};
template <class Allocator, class F>
posted(Allocator, F) -> posted<Allocator, F>;

// Posts f to a handler's executor. The erased executor of an any_completion_handler can't be posted to, only
// dispatched: there the post goes to the I/O executor, and what it runs dispatches.
template <class Executor, class IoExecutor, class Allocator, class F>
void post_to(const Executor& ex, const IoExecutor& io_ex, const Allocator& alloc, F f) {
  if constexpr (asio::can_require<Executor, asio::execution::blocking_t::never_t>::value ||
                asio::is_executor<Executor>::value) {
    asio::post(ex, posted<Allocator, F>{alloc, std::move(f)});
  } else {
    auto hop = [ex, alloc, f = std::move(f)]() mutable {
      asio::dispatch(ex, posted<Allocator, F>{alloc, std::move(f)});
    };
    asio::post(io_ex, posted<Allocator, decltype(hop)>{alloc, std::move(hop)});
  }
}

}  // namespace cokv::detail
