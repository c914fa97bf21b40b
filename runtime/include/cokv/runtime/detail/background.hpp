// The long-lived coroutines of one object: they hold what they need, end by themselves, and are cancelled with their
// owner. Whoever has to know that all have ended joins. What can fail belongs into a with() scope; here a failure is
// the task's own business and must not leave it.
//
//     detail::background tasks(ex);
//     tasks.spawn(save(shared_from_this(), block));
//     tasks.cancel();                                       // in the owner's destructor
#pragma once

#include "cokv/runtime/task_group.hpp"

namespace cokv::detail {

class background {
 public:
  explicit background(asio::any_io_executor ex, std::size_t limit = 65536) : scope_(std::make_shared<scope>(limit)) {
    scope_->start(std::move(ex));
  }

  // False when the task was refused: cancelled, or too many at once. It is destroyed without having run.
  bool spawn(awaitable<void> task) {
    if (scope_->live() >= scope_->limit()) return false;
    auto child = scope_->open(false);
    if (!child) return false;
    auto* c = child.get();
    auto start = [task = std::move(task)]() mutable { return std::move(task); };
    asio::co_spawn(scope_->executor(), run_child(c, std::move(start), std::type_identity<void>()),
                   child_done{std::move(child)});
    return true;
  }

  void cancel() { scope_->cancel(true); }
  std::size_t live() const { return scope_->live(); }

  // void(error_code), always success: when the last one has ended. One waiter at a time; cancelling it cancels the tasks.
  template <class Token>
  auto async_join(Token&& token) {
    return scope_->async_join(std::forward<Token>(token));
  }

 private:
  std::shared_ptr<scope> scope_;
};

}  // namespace cokv::detail
