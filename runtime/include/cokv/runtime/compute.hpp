// Work for other threads as an operation: `co_await on(arena, fn)` runs fn on an arena's or a device's threads and
// comes back with what it returned, or throws what it threw. Parallel algorithms of oneTBB inside fn use all those
// threads.
//
//     cokv::arena threads(ex, 4);
//     auto digest = co_await on(threads, [&] { return hash(bytes); });
//     co_await on(device, [&] { register_memory(bytes); });       // what can block stays off the loop
//
// |              | on                                                                                    |
// |--------------|---------------------------------------------------------------------------------------|
// | cancellation | not begun: never runs, system_error(operation_aborted); begun: drains, so fn may use  |
// |              | the caller's memory                                                                   |
// | errors       | the exception of fn; system_error(errc::closed) when the context is gone              |
//
// fn and what it returns live in the operation until the caller resumes. A context that is destroyed waits for what has
// begun; the rest never runs. In virtual time fn runs as a handler, at the moment that the seed picks.
//
// An arena is an executor too: asio::post(threads.executor(), f). And inside fn, wait_in_task (wait_in_task.hpp) waits
// for a coroutine of the context without holding the thread up.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

#include "cokv/runtime/asio.hpp"
#include "cokv/runtime/detail/initiate.hpp"
#include "cokv/runtime/detail/mailbox.hpp"
#include "cokv/runtime/detail/operation.hpp"
#include "cokv/runtime/device.hpp"
#include "cokv/runtime/error.hpp"

namespace cokv {

namespace detail {

// A function on its way through another thread. Whoever takes it first decides: a worker that runs it, or a
// cancellation.
class remote_call : public std::enable_shared_from_this<remote_call> {
 public:
  using waiter = operation<void(error_code), std::shared_ptr<remote_call>>;

  virtual ~remote_call() = default;
  void start(waiter& op, const asio::any_io_executor& ex, submit_target& target);

 protected:
  virtual void call() noexcept = 0;

 private:
  std::atomic<bool> taken_{false};
  waiter* waiter_ = nullptr;  // the context's thread only
};

template <class F>
class call_of final : public remote_call {
 public:
  using value = std::invoke_result_t<F&>;
  explicit call_of(F&& f) : f_(std::move(f)) {}

  value take() {
    if (thrown_) std::rethrow_exception(thrown_);
    if constexpr (!std::is_void_v<value>) return std::move(*value_);
  }

 private:
  void call() noexcept override {
    try {
      if constexpr (std::is_void_v<value>)
        f_();
      else
        value_.emplace(f_());
    } catch (...) {
      thrown_ = std::current_exception();
    }
  }

  F f_;
  std::optional<std::conditional_t<std::is_void_v<value>, std::monostate, value>> value_;
  std::exception_ptr thrown_;
};

template <class F>
awaitable<std::invoke_result_t<F&>> run_on(asio::any_io_executor ex, std::shared_ptr<submit_target> target, F f) {
  auto call = std::make_shared<call_of<F>>(std::move(f));
  co_await initiate<void(error_code), std::shared_ptr<remote_call>>(
      asio::deferred, ex, [call, target, ex](remote_call::waiter& op) { call->start(op, ex, *target); });
  co_return call->take();
}

std::shared_ptr<submit_target> make_arena(const asio::any_io_executor& ex, int threads);

}  // namespace detail

// Threads of one's own. Dropping it waits for nothing; what was submitted still runs.
class arena {
 public:
  // threads of 0: one a hardware thread.
  explicit arena(asio::any_io_executor ex, int threads = 0)
      : executor_(std::move(ex)), target_(detail::make_arena(executor_, threads)) {}

  const asio::any_io_executor& get_executor() const noexcept { return executor_; }  // of the context
  int concurrency() const noexcept { return target_->concurrency(); }

  // The threads, for Asio. What is posted runs in any order and at the same time: coroutines need a strand of it. It is
  // no work of the context, whose run() may return before it has run; where the context goes first it is dropped. A
  // function that throws ends the process.
  class executor_type;
  executor_type executor() const;

 private:
  template <class F>
  friend awaitable<std::invoke_result_t<F&>> on(const arena& a, F f) {
    return detail::run_on(a.executor_, a.target_, std::move(f));
  }

  asio::any_io_executor executor_;
  std::shared_ptr<detail::submit_target> target_;
};

class arena::executor_type {
 public:
  asio::execution_context& query(asio::execution::context_t) const noexcept { return *context_; }
  static constexpr asio::execution::blocking_t::never_t query(asio::execution::blocking_t) noexcept { return {}; }

  template <class F>
  void execute(F&& f) const {
    target_->submit(std::forward<F>(f));
  }

  bool operator==(const executor_type&) const noexcept = default;

 private:
  friend class arena;
  executor_type(asio::execution_context& context, std::shared_ptr<detail::submit_target> target)
      : context_(&context), target_(std::move(target)) {}

  asio::execution_context* context_;
  std::shared_ptr<detail::submit_target> target_;
};

inline arena::executor_type arena::executor() const {
  return {asio::query(executor_, asio::execution::context), target_};
}

template <class F>
awaitable<std::invoke_result_t<F&>> on(const device& d, F f) {
  return detail::run_on(d.get_executor(), d.backend(), std::move(f));
}

}  // namespace cokv
