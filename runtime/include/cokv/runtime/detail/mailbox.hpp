// The way back into a context for threads that are not its own: device workers and file pools. A post that comes after
// the context has shut down is refused instead of touching freed memory.
//
//     detail::mailbox back(ex);                            // on the context's thread
//     std::thread([back, op] { work(); back.post([op] { op->complete({}); }); });
//
// Operations themselves belong to the context: capture a shared state that knows whether its operation still waits
// (or an operation that its on_cancel leaves alone), and complete it in the posted function. A mailbox is no
// outstanding work; the operation that waits is.
#pragma once

#include <memory>
#include <mutex>
#include <utility>

#include "cokv/runtime/asio.hpp"
#include "cokv/runtime/detail/prepared_executor.hpp"

namespace cokv::detail {

class mailbox {
 public:
  explicit mailbox(asio::any_io_executor ex)
      : executor_(std::move(ex)),
        door_(asio::use_service<doorkeeper>(asio::query(executor_.get(), asio::execution::context)).door) {}

  // From any thread. False when the context is gone: f is then destroyed here, uncalled.
  template <class F>
  bool post(F&& f) const {
    std::lock_guard lock(door_->mutex);
    if (!door_->open) return false;
    executor_.post(std::forward<F>(f));
    return true;
  }

  bool open() const {
    std::lock_guard lock(door_->mutex);
    return door_->open;
  }

  // On the context's thread.
  const asio::any_io_executor& get_executor() const noexcept { return executor_.get(); }
  const prepared_executor& executor() const noexcept { return executor_; }

 private:
  struct door {
    std::mutex mutex;
    bool open = true;
  };

  class doorkeeper final : public asio::execution_context::service {
   public:
    inline static asio::execution_context::id id;
    explicit doorkeeper(asio::execution_context& context) : service(context) {}
    std::shared_ptr<mailbox::door> door = std::make_shared<mailbox::door>();

   private:
    void shutdown() override {
      std::lock_guard lock(door->mutex);
      door->open = false;
    }
  };

  prepared_executor executor_;
  std::shared_ptr<door> door_;
};

}  // namespace cokv::detail
