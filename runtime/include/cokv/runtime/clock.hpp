// Time, as everything here sees it: nothing else reads a clock or sleeps. clock::of(executor) is the machine's clock
// on a real context and virtual time on a sim_context. All deadlines of a context share one heap behind one system
// timer, so a deadline per operation costs nanoseconds, not a timer.
//
//     auto& time = cokv::clock::of(co_await asio::this_coro::executor);
//     auto start = time.now();
//     co_await time.async_wait_for(10ms, asio::deferred);
//     cokv::duration took = time.now() - start;
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

#include "cokv/runtime/asio.hpp"

namespace cokv {

using duration = std::chrono::nanoseconds;

// Monotonic time of a context. Points of two contexts are not comparable.
struct clock_tag {
  using duration = cokv::duration;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<clock_tag>;
  static constexpr bool is_steady = true;
};
using time_point = clock_tag::time_point;
using wall_time = std::chrono::sys_time<duration>;

// One per context, used from the context's thread.
class clock : public asio::execution_context::service {
 public:
  using handler = asio::any_completion_handler<void(error_code)>;

  class impl {
   public:
    virtual ~impl() = default;
    virtual time_point now() const noexcept = 0;
    virtual wall_time wall_now() const noexcept = 0;
    virtual void wait_until(time_point when, handler done) = 0;
    virtual void shutdown() = 0;
  };

  inline static asio::execution_context::id id;
  explicit clock(asio::execution_context& context) : service(context) {}
  clock(asio::execution_context& context, asio::any_io_executor ex, std::unique_ptr<impl> p)
      : service(context), ex_(std::move(ex)), impl_(std::move(p)) {}

  static clock& of(const asio::any_io_executor& ex);
  const asio::any_io_executor& get_executor() const noexcept { return ex_; }

  time_point now() const noexcept { return impl_->now(); }
  wall_time wall_now() const noexcept { return impl_->wall_now(); }

  // void(error_code): success at or after `when` (a point that has passed completes at once, still by post),
  // operation_aborted when cancelled. terminal, partial and total cancellation.
  template <class Token = asio::deferred_t>
  auto async_wait_until(time_point when, Token&& token = Token()) {
    return asio::async_initiate<Token, void(error_code)>(initiate_wait{this}, token, when);
  }

  // The same, counted from when the operation is initiated.
  template <class Token = asio::deferred_t>
  auto async_wait_for(duration d, Token&& token = Token()) {
    return asio::async_initiate<Token, void(error_code)>(initiate_wait{this}, token, d);
  }

 private:
  struct initiate_wait {
    using executor_type = asio::any_io_executor;
    clock* self;
    executor_type get_executor() const noexcept { return self->ex_; }
    template <class Handler>
    void operator()(Handler&& done, time_point when) const {
      self->impl_->wait_until(when, std::forward<Handler>(done));
    }
    template <class Handler>
    void operator()(Handler&& done, duration d) const {
      self->impl_->wait_until(after(self->impl_->now(), d), std::forward<Handler>(done));
    }
  };

  static time_point after(time_point t, duration d) {  // saturates: duration::max() is never
    return d > time_point::max() - t ? time_point::max() : t + d;
  }

  void shutdown() override {
    if (impl_) impl_->shutdown();
  }

  asio::any_io_executor ex_;
  std::unique_ptr<impl> impl_;
};

}  // namespace cokv
