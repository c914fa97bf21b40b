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
#include "cokv/runtime/detail/deadline_heap.hpp"
#include "cokv/runtime/detail/initiate.hpp"
#include "cokv/runtime/detail/operation.hpp"
#include "cokv/runtime/detail/prepared_executor.hpp"

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

namespace detail {

struct deadline_state;
struct sim_task;
using deadline_operation = operation<void(error_code), deadline_state>;
using deadline_beginning = beginning<void(error_code), deadline_state>;

class clock_impl {
 public:
  virtual ~clock_impl() = default;
  virtual time_point now() const noexcept = 0;
  virtual wall_time wall_now() const noexcept = 0;
  virtual void open() {}                                    // before the first deadline; may throw
  virtual void add(deadline_operation& op) noexcept = 0;    // its state().when is set
  virtual void remove(deadline_state& state) noexcept = 0;  // its operation ends
  virtual void shutdown() = 0;
};

struct deadline_state : heap_node {
  time_point when{};
  clock_impl* owner = nullptr;
  deadline_operation* operation = nullptr;
  sim_task* task = nullptr;
  std::uint64_t ticket = 0;

  deadline_state() = default;
  deadline_state(const deadline_state&) = delete;
  deadline_state& operator=(const deadline_state&) = delete;
  ~deadline_state() {
    if (owner) owner->remove(*this);
  }
};

}  // namespace detail

// One per context, used from the context's thread.
class clock : public asio::execution_context::service {
 public:
  inline static asio::execution_context::id id;
  explicit clock(asio::execution_context& context) : service(context) {}
  clock(asio::execution_context& context, asio::any_io_executor ex, std::unique_ptr<detail::clock_impl> p)
      : service(context), ex_(std::move(ex)), impl_(std::move(p)) {}

  static clock& of(const asio::any_io_executor& ex);
  const asio::any_io_executor& get_executor() const noexcept { return ex_.get(); }

  time_point now() const noexcept { return impl_->now(); }
  wall_time wall_now() const noexcept { return impl_->wall_now(); }

  // void(error_code): success at or after `when` (at once for a point that has passed, still by post),
  // operation_aborted when cancelled. terminal, partial and total cancellation.
  template <class Token = asio::deferred_t>
  auto async_wait_until(time_point when, Token&& token = Token()) {
    return detail::initiate<void(error_code), detail::deadline_state>(
        std::forward<Token>(token), ex_, [this, when](detail::deadline_beginning& begin) { add(begin, when); });
  }

  // The same, counted from when the operation is started. duration::max() is never.
  template <class Token = asio::deferred_t>
  auto async_wait_for(duration d, Token&& token = Token()) {
    return detail::initiate<void(error_code), detail::deadline_state>(
        std::forward<Token>(token), ex_, [this, d](detail::deadline_beginning& begin) {
          time_point start = now();
          add(begin, d > time_point::max() - start ? time_point::max() : start + d);
        });
  }

 private:
  void add(detail::deadline_beginning& begin, time_point when) {
    if (!open_) impl_->open();
    open_ = true;
    auto& op = begin.wait();
    op.state().when = when;
    op.state().owner = impl_.get();
    op.state().operation = &op;
    impl_->add(op);
  }
  void shutdown() override {
    if (impl_) impl_->shutdown();
  }

  detail::prepared_executor ex_;
  std::unique_ptr<detail::clock_impl> impl_;
  bool open_ = false;
};

}  // namespace cokv
