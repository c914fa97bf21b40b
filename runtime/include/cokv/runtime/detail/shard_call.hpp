// How a message reaches a shard and its result comes back: a shard_call goes there inside a `presence`, which tells the
// caller of the end however it comes: the coroutine returned, was never begun, or was dropped with its context.
#pragma once

#include <atomic>
#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/detail/background.hpp"
#include "cokv/runtime/detail/mailbox.hpp"
#include "cokv/runtime/detail/operation.hpp"
#include "cokv/runtime/detail/unique_function.hpp"
#include "cokv/runtime/error.hpp"

namespace cokv::detail {

class shard_threads;

class shard_state : public std::enable_shared_from_this<shard_state> {
 public:
  shard_state(const asio::any_io_executor& ex, std::size_t index, std::size_t bound)
      : index_(index), bound_(bound), to_(ex), tasks_(ex, bound + 1) {}

  // From any thread.
  std::size_t index() const noexcept { return index_; }
  std::size_t in_flight() const noexcept { return in_flight_.load(); }
  error_code post(unique_function<void()> f);  // counted until f has run, or was dropped

  void close() noexcept { closed_ = true; }  // admits nothing any more

  // One of the messages in flight.
  class ticket {
   public:
    ticket(ticket&& o) noexcept = default;
    ~ticket() {
      if (of_) leave(std::move(of_));
    }

   private:
    friend class shard_state;
    explicit ticket(std::shared_ptr<shard_state> s) : of_(std::move(s)) {}
    std::shared_ptr<shard_state> of_;
  };
  result<ticket> admit();
  template <class F>
  bool deliver(F&& f) {  // without a ticket of its own
    return to_.post(std::forward<F>(f));
  }

  // On the shard's thread.
  background& tasks() noexcept { return tasks_; }
  // Cancels what runs, and calls f when that has ended and no message is on its way any more. Closed before.
  void drain(unique_function<void()> f);

 private:
  static void leave(std::shared_ptr<shard_state> self);
  void look();

  const std::size_t index_, bound_;
  std::atomic<std::size_t> in_flight_{0};
  std::atomic<bool> closed_{false};
  mailbox to_;
  background tasks_;
  bool joined_ = false;
  unique_function<void()> drained_;
};

class shard_call : public std::enable_shared_from_this<shard_call> {
 public:
  using waiter = operation<void(error_code), std::shared_ptr<shard_call>>;

  virtual ~shard_call() = default;
  void start(waiter& op, const asio::any_io_executor& ex, std::shared_ptr<shard_state> target);

 protected:
  virtual awaitable<void> run() = 0;  // on the shard's thread

  error_code failed_ = errc::closed;
  std::exception_ptr thrown_;

 private:
  struct presence;
  // What a cancellation finds there; the call itself may be over and gone. The shard's thread.
  struct control {
    task_group* group = nullptr;
    bool cancelled = false;
  };
  static awaitable<void> drive(presence here);

  waiter* waiter_ = nullptr;            // the caller's thread
  std::shared_ptr<shard_state> shard_;  // where the call is
  const std::shared_ptr<control> control_ = std::make_shared<control>();
};

template <class F>
class shard_call_of final : public shard_call {
 public:
  using outcome = typename as_outcome<typename awaited<std::invoke_result_t<F&>>::type>::type;

  explicit shard_call_of(F&& f) : f_(std::move(f)) {}

  outcome take() {
    if (thrown_) std::rethrow_exception(thrown_);
    if (returned_) return std::move(*returned_);
    return failed_ ? failed_ : make_error_code(asio::error::operation_aborted);
  }

 private:
  awaitable<void> run() override { returned_.emplace(co_await settle(f_())); }

  F f_;
  std::optional<outcome> returned_;
};

}  // namespace cokv::detail
