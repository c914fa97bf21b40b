// with(): a scope that children cannot outlive. It runs the body with a group, waits until the body and every child
// have ended, also after an exception or a cancellation, and says what became of them. The body and what it captured
// live until then.
//
//     auto verdict = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
//       for (auto& peer : peers) group.spawn(serve(peer));
//       co_return;
//     });
//     if (!verdict) log(verdict.error());
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

template <class Group, class Body>
  requires std::derived_from<Group, task_group>
awaitable<verdict> with(Group group, Body body) {
  using returned = std::invoke_result_t<Body&, Group&>;
  auto state = co_await asio::this_coro::cancellation_state;
  if (state.cancelled() != asio::cancellation_type::none) co_return verdict(asio::error::operation_aborted);
  const bool throwing = co_await asio::this_coro::throw_if_cancelled();
  co_await asio::this_coro::throw_if_cancelled(false);

  auto frame = std::make_shared<detail::with_frame<Group, Body>>(std::move(group), std::move(body));
  task_group& tasks = frame->group;
  auto scope = tasks.scope_;
  scope->start(co_await asio::this_coro::executor);
  tasks.template launch<typename detail::awaited<returned>::type>([frame] { return frame->body(frame->group); }, true);
  co_await scope->async_join(asio::deferred);

  co_await asio::this_coro::throw_if_cancelled(throwing);
  co_return scope->take_verdict();
}

}  // namespace cokv
