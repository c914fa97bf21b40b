// Owns everything of a context that has threads or hardware behind it, so that handles can be dropped at any time
// without waiting, and nothing runs any more when the context is gone.
#pragma once

#include <memory>
#include <vector>

#include "cokv/runtime/asio.hpp"
#include "cokv/runtime/detail/operation.hpp"
#include "task_waits.hpp"

namespace cokv::detail {

class device_resource {
 public:
  virtual ~device_resource() = default;
  // Refuses new work, drops what has not begun, waits for what has. Called once, when the context shuts down.
  virtual void shutdown() = 0;
  // Nothing is running or queued.
  virtual bool idle() = 0;
};

class device_service final : public asio::execution_context::service {
 public:
  inline static asio::execution_context::id id;

  // The registry comes first, so that it shuts down last: what an operation's frame holds is destroyed only when no
  // worker uses it any more.
  explicit device_service(asio::execution_context& context)
      : service(context), waits_(asio::use_service<task_waits>(context)) {
    asio::use_service<operation_registry>(context);
  }

  static device_service& of(const asio::any_io_executor& ex) {
    return asio::use_service<device_service>(asio::query(ex, asio::execution::context));
  }

  // Keeps it until nobody else refers to it and it is idle, at the latest until the context ends.
  void own(std::shared_ptr<device_resource> resource) {
    std::erase_if(owned_, [](auto& r) {
      if (r.use_count() != 1 || !r->idle()) return false;
      r->shutdown();
      return true;
    });
    owned_.push_back(std::move(resource));
  }

 private:
  void shutdown() override {
    waits_.close();  // tasks that wait for coroutines would never end
    for (auto& r : owned_) r->shutdown();
    owned_.clear();
  }

  task_waits& waits_;
  std::vector<std::shared_ptr<device_resource>> owned_;
};

}  // namespace cokv::detail
