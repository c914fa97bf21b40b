// semaphore: a count of permits that coroutines of one context take in turn. First come, first served: a large request
// at the front is not overtaken by small ones behind it.
//
//     semaphore slots(ex, 8);
//     permit p = co_await slots.async_acquire(2);   // given back when p is destroyed
//
// async_acquire: success with the permit; every kind of cancellation leaves the queue with operation_aborted;
// destroying the semaphore completes waiters as operation_aborted. A permit may outlive its semaphore.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include "cokv/runtime/detail/initiate.hpp"
#include "cokv/runtime/detail/operation.hpp"
#include "cokv/runtime/detail/prepared_executor.hpp"

namespace cokv {

class permit;

namespace detail {

class semaphore_state : public std::enable_shared_from_this<semaphore_state> {
 public:
  struct request {
    std::size_t count = 0;
    std::shared_ptr<semaphore_state> from;
  };
  using waiter = operation<void(error_code, permit), request>;
  using acquisition = beginning<void(error_code, permit), request>;

  semaphore_state(asio::any_io_executor e, std::size_t n) : ex(std::move(e)), available(n) {}

  bool take(std::size_t n);
  void acquire(acquisition& begin, std::size_t n);
  void release(std::size_t n);

  prepared_executor ex;
  std::size_t available;
  operation_list<waiter> waiters;
};

}  // namespace detail

// Permits taken; moving hands them on, destruction or release() gives them back.
class [[nodiscard]] permit {
 public:
  permit() = default;
  permit(permit&& o) noexcept : from_(std::move(o.from_)), count_(std::exchange(o.count_, 0)) {}
  permit& operator=(permit&& o) noexcept {
    if (this != &o) {
      release();
      from_ = std::move(o.from_);
      count_ = std::exchange(o.count_, 0);
    }
    return *this;
  }
  ~permit() { release(); }

  std::size_t count() const noexcept { return count_; }
  void release();

 private:
  friend class detail::semaphore_state;
  friend class semaphore;
  permit(std::shared_ptr<detail::semaphore_state> from, std::size_t n) : from_(std::move(from)), count_(n) {}

  std::shared_ptr<detail::semaphore_state> from_;
  std::size_t count_ = 0;
};

class semaphore {
 public:
  using executor_type = asio::any_io_executor;

  semaphore(asio::any_io_executor ex, std::size_t permits)
      : state_(std::make_shared<detail::semaphore_state>(std::move(ex), permits)) {}
  semaphore(const semaphore&) = delete;
  semaphore& operator=(const semaphore&) = delete;
  ~semaphore() { state_->waiters.complete_all(asio::error::operation_aborted); }

  executor_type get_executor() const { return state_->ex.get(); }
  std::size_t available() const noexcept { return state_->available; }

  // Nothing while others wait: a try never overtakes.
  std::optional<permit> try_acquire(std::size_t n = 1) {
    if (!state_->take(n)) return std::nullopt;
    return permit(state_, n);
  }

  // void(error_code, permit)
  template <class Token = asio::deferred_t>
  auto async_acquire(std::size_t n, Token&& token = Token()) {
    return detail::initiate<void(error_code, permit), detail::semaphore_state::request>(
        std::forward<Token>(token), state_->ex,
        [state = state_, n](detail::semaphore_state::acquisition& begin) { state->acquire(begin, n); });
  }
  auto async_acquire() { return async_acquire(1, asio::deferred); }

  // Adds permits, beyond the initial count too: a semaphore that starts at 0 counts events.
  void release(std::size_t n = 1) { state_->release(n); }

 private:
  std::shared_ptr<detail::semaphore_state> state_;
};

}  // namespace cokv
