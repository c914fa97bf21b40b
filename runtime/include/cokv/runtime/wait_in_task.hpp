// The way back from work on other threads: a function that runs on an arena (compute.hpp) waits for a coroutine of a
// context. The thread doesn't block meanwhile: it runs other tasks of its arena, and the function goes on when the
// coroutine has ended. On a thread of no arena the thread blocks.
//
//     co_await on(threads, [&] {
//       for (auto& key : keys) {
//         auto block = wait_in_task(ex, [&] { return store.read(key); });   // the loop reads, this thread hashes others
//         digests.push_back(hash(block));
//       }
//     });
//
// The function given is called on the context's thread and returns an awaitable<R>; it may be a coroutine lambda, and
// lives as long as the coroutine. wait_in_task returns R.
//
// |              | wait_in_task                                                                                |
// |--------------|---------------------------------------------------------------------------------------------|
// | completes    | when the coroutine has ended: what it refers to on the waiting stack is there until then    |
// | errors       | what the coroutine throws; system_error(errc::closed) when the context is destroyed, or was |
// | cancellation | none from here: an on() that is cancelled drains. Bound the coroutine with with_deadline    |
//
// A context that is destroyed meanwhile first ends the wait, so that its arenas' tasks can end, and destroys the
// coroutine after that: destructors in its frame must not touch the waiting stack. The thread that runs the context
// can't wait for itself: that ends the process with a line that says so. In virtual time, where functions on other
// threads are handlers, a wait runs the simulation on until the coroutine has ended, so waits end in reverse order: one
// that can only end after an earlier one's function went on is errc::closed.
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

#include "cokv/runtime/asio.hpp"
#include "cokv/runtime/detail/unique_function.hpp"
#include "cokv/runtime/task_group.hpp"

namespace cokv {

namespace detail {

// Waits until the coroutine that `start` returns has ended, or never will.
void wait_in_task(const asio::any_io_executor& ex, unique_function<awaitable<void>()> start);

}  // namespace detail

template <class F>
auto wait_in_task(const asio::any_io_executor& ex, F f) {
  using value = typename detail::awaited<std::invoke_result_t<F&>>::type;
  struct call {
    F f;
    std::optional<std::conditional_t<std::is_void_v<value>, std::monostate, value>> returned;

    static awaitable<void> run(std::shared_ptr<call> self) {
      if constexpr (std::is_void_v<value>) {
        co_await self->f();
        self->returned.emplace();
      } else {
        self->returned.emplace(co_await self->f());
      }
    }
  };
  auto c = std::make_shared<call>(call{std::move(f), {}});
  detail::wait_in_task(ex, [c] { return call::run(c); });
  if constexpr (!std::is_void_v<value>) return std::move(*c->returned);
}

}  // namespace cokv
