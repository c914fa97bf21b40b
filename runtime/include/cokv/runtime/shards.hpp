// shards: n contexts with one thread each, for programs that share nothing between them but messages. Every shard runs
// coroutines of its own; a message is a coroutine that runs there and whose result comes back here.
//
//     shards workers(ex, 4);
//     auto verdict = co_await workers.run([](shard_ref self) -> awaitable<void> { ... });    // one on each, all joined
//     result<int> n = co_await on(workers[2], [key]() -> awaitable<int> { ... });         // on that one
//
// |              | run                                           | on                                            |
// |--------------|-----------------------------------------------|-----------------------------------------------|
// | completes    | when the last shard's coroutine has ended     | when the coroutine has ended, on the caller's |
// |              |                                               | executor                                      |
// | result       | the verdict of a scope: the first failure     | as with_deadline: what it returns or the code |
// |              | cancels the rest, children are shard numbers  | of a system_error; rethrows anything else     |
// | cancellation | every kind: all are cancelled, and have ended before it completes                             |
// | errors       | errc::queue_full: `in_flight` messages to that shard have not ended; errc::closed: stopped    |
//
// What runs on a shard belongs to its thread: this_coro::executor there is its context, for devices, sockets, timers
// and channels of its own. The function given to on() is called there, destroyed with what it returned by the caller,
// and may refer to the caller's frame. An exception that leaves a handler which nobody waits for ends the process, as
// on any thread.
//
// stop(), also by the destructor and by the end of the owner's context: nothing more is accepted, what runs is
// cancelled, and when it has ended the threads are joined. On a sim_context there are no threads: the shards are
// coroutines of the owner's context, taken in an order that the seed picks, and die with its host; stop() then cancels
// and what it cancelled ends with the next handlers. These threads and those of the devices are all that there are.
#pragma once

#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/detail/initiate.hpp"
#include "cokv/runtime/detail/require.hpp"
#include "cokv/runtime/detail/shard_call.hpp"
#include "cokv/runtime/with.hpp"

namespace cokv {

struct shards_options {
  std::size_t in_flight = 1024;  // messages to one shard that have not ended
  bool pin = false;              // each thread to a processor of its own, in turn where there are fewer
};

// One of them. Cheap to copy, used from any thread, outlives the shards: everything is then errc::closed.
class shard_ref {
 public:
  explicit shard_ref(std::shared_ptr<detail::shard_state> state) : state_(std::move(state)) {}

  std::size_t index() const noexcept { return state_->index(); }

  // Runs f() there, some time. False when it was refused: too many messages, or stopped.
  template <class F>
  bool try_post(F&& f) {
    return !state_->post(std::forward<F>(f));
  }

  const std::shared_ptr<detail::shard_state>& state() const noexcept { return state_; }

 private:
  std::shared_ptr<detail::shard_state> state_;
};

template <class F>
awaitable<typename detail::shard_call_of<F>::outcome> on(shard_ref to, F f) {
  const auto ex = co_await asio::this_coro::executor;
  auto call = std::make_shared<detail::shard_call_of<F>>(std::move(f));
  auto [ec] = co_await detail::initiate<void(error_code), std::shared_ptr<detail::shard_call>>(
      asio::as_tuple(asio::deferred), ex,
      [call, ex, to](detail::shard_call::waiter& op) { call->start(op, ex, to.state()); });
  if (ec) co_return ec;
  co_return call->take();
}

class shards {
 public:
  // Throws std::system_error when there is no thread to be had, or it can't be pinned.
  shards(const asio::any_io_executor& owner, std::size_t count, shards_options options = {});
  ~shards() { stop(); }
  shards(const shards&) = delete;
  shards& operator=(const shards&) = delete;

  std::size_t size() const noexcept { return states_.size(); }
  shard_ref operator[](std::size_t i) const {
    COKV_REQUIRE(i < states_.size(), "a shard's number is below their count");
    return shard_ref(states_[i]);
  }

  // Calls main(shard_ref) on each of them: a coroutine of void, error_code or result<void>.
  template <class F>
  awaitable<verdict> run(F main) {
    auto all = states_;
    co_return co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      for (auto& state : all)
        group.spawn(on(shard_ref(state), [main, state]() mutable { return main(shard_ref(state)); }));
      co_return;
    });
  }

  // Not from a shard: its thread can't wait for itself.
  void stop();

 private:
  std::vector<std::shared_ptr<detail::shard_state>> states_;
  std::shared_ptr<detail::shard_threads> threads_;
};

}  // namespace cokv
