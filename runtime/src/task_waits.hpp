// The tasks on other threads that wait for coroutines of a context. When it goes, they are told before anybody waits
// for those tasks.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "cokv/runtime/asio.hpp"

namespace cokv::detail {

class task_wait;

class task_waits final : public asio::execution_context::service {
 public:
  inline static asio::execution_context::id id;
  explicit task_waits(asio::execution_context& context) : service(context) {}

  // From any thread.
  bool enter(std::shared_ptr<task_wait> w);  // false: the context is going
  void leave(const task_wait& w);

  // On the context's thread: ends every wait, those to come too.
  void close();

 private:
  void shutdown() override { close(); }

  std::mutex mutex_;
  bool closed_ = false;
  std::vector<std::shared_ptr<task_wait>> waits_;
};

}  // namespace cokv::detail
