// with(): a scope that children cannot outlive. It runs the body with a group, waits until the body and every child
// have ended, also after an exception or a cancellation, and says what became of them. The body and what it captured
// live until then. A body that only spawns need not be a coroutine, and costs nothing as a plain function.
//
//     auto verdict = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
//       for (auto& peer : peers) group.spawn(serve(peer));
//       co_await quit.async_wait();
//     });
//     if (!verdict) log(verdict.error());
//
//     co_await with(task_group{}, [&](task_group& group) { group.spawn(left()), group.spawn(right()); });
//
// Cancellation: any kind given to with() reaches the body and every child as cancellation_type::all, so a transfer in
// the scope drains before it completes; with() completes when all have ended. Errors: a system_error that a child
// throws is its code; any other exception is rethrown here after the join.
#pragma once

#include "cokv/runtime/task_group.hpp"

namespace cokv {

namespace detail {

// Group and body outlive the children whatever the order in which a destroyed context drops coroutines.
template <class Group, class Body>
struct with_frame {
  Group group;
  Body body;
};

}  // namespace detail

// body: a coroutine or a function of Group&; what it returns is void, error_code, result<void> or verdict.
template <class Group, class Body>
  requires std::derived_from<Group, task_group>
awaitable<verdict> with(Group group, Body body) {
  using returned = std::invoke_result_t<Body&, Group&>;
  auto state = co_await asio::this_coro::cancellation_state;
  if (state.cancelled() != asio::cancellation_type::none) co_return verdict(asio::error::operation_aborted);
  const bool throwing = co_await asio::this_coro::throw_if_cancelled();
  co_await asio::this_coro::throw_if_cancelled(false);

  auto scope = static_cast<task_group&>(group).scope_;
  scope->start(co_await asio::this_coro::executor);
  if constexpr (detail::task_outcome<returned>) {
    scope->run([&] { return body(group); });
    co_await scope->async_join(asio::deferred);
  } else {
    auto frame = std::make_shared<detail::with_frame<Group, Body>>(std::move(group), std::move(body));
    static_cast<task_group&>(frame->group)
        .template launch<typename detail::awaited<returned>::type>([frame] { return frame->body(frame->group); }, true);
    co_await scope->async_join(asio::deferred);
  }

  co_await asio::this_coro::throw_if_cancelled(throwing);
  co_return scope->take_verdict();
}

}  // namespace cokv
