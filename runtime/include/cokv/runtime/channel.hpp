// channel<T>: a bounded first-in first-out queue between the coroutines of one context. A full channel holds its
// senders back; close() keeps what is buffered, so receivers drain it before they learn of the end.
//
//     channel<chunk> chunks(ex, 16);
//     co_await chunks.async_send(std::move(c));                       // waits while 16 are buffered
//     while (result<chunk> c = co_await chunks.async_receive(as_result)) consume(*c);   // ends with errc::closed
//
// | operation     | completes with                                      | cancellation                 | the value        |
// |---------------|-----------------------------------------------------|------------------------------|------------------|
// | async_send    | success when buffered or handed over; errc::closed  | every kind: leaves the queue | dropped on error |
// | async_receive | the oldest value; errc::closed once drained         | every kind: takes nothing    | T() on error     |
//
// Destroying the channel completes what waits as operation_aborted. Used from its context's thread only.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include "cokv/runtime/detail/initiate.hpp"
#include "cokv/runtime/detail/operation.hpp"
#include "cokv/runtime/detail/prepared_executor.hpp"
#include "cokv/runtime/error.hpp"

namespace cokv {

template <class T>
class channel {
 public:
  using executor_type = asio::any_io_executor;

  // With capacity 0 every value is handed from a waiting sender to a receiver.
  channel(asio::any_io_executor ex, std::size_t capacity)
      : ex_(std::move(ex)), capacity_(capacity), slots_(std::make_unique<std::optional<T>[]>(capacity)) {}
  channel(const channel&) = delete;
  channel& operator=(const channel&) = delete;

  executor_type get_executor() const { return ex_.get(); }
  bool is_open() const noexcept { return !closed_; }
  std::size_t size() const noexcept { return size_; }
  std::size_t capacity() const noexcept { return capacity_; }

  // False when full or closed: the value is then left as it was.
  template <class U = T>
  bool try_send(U&& value) {
    if (closed_) return false;
    if (!receivers_.empty()) {
      receivers_.front().complete({}, T(std::forward<U>(value)));
      return true;
    }
    if (size_ == capacity_) return false;
    push(std::forward<U>(value));
    return true;
  }

  std::optional<T> try_receive() {
    std::optional<T> value;
    if (size_ != 0) {
      value = pop();
      if (!senders_.empty()) refill();
    } else if (!senders_.empty()) {
      value = std::move(senders_.front().state());
      senders_.front().complete({});
    }
    return value;
  }

  template <class Token = asio::deferred_t>
  auto async_send(T value, Token&& token = Token()) {
    return detail::initiate<void(error_code), std::optional<T>>(
        std::forward<Token>(token), ex_, [this, value = std::move(value)](sending& begin) mutable {
          if (closed_) return begin.complete(errc::closed);
          if (try_send(std::move(value))) return begin.complete({});
          sender& op = begin.wait();
          op.state().emplace(std::move(value));
          senders_.push_back(op);
        });
  }

  template <class Token = asio::deferred_t>
  auto async_receive(Token&& token = Token()) {
    return detail::initiate<void(error_code, T)>(std::forward<Token>(token), ex_, [this](receiving& begin) {
      if (auto value = try_receive()) return begin.complete({}, std::move(*value));
      if (closed_) return begin.fail(errc::closed);
      receivers_.push_back(begin.wait());
    });
  }

  // No more values: waiting senders and receivers get errc::closed, what is buffered stays for receivers to come.
  void close() {
    closed_ = true;
    senders_.complete_all(errc::closed);
    receivers_.complete_all(errc::closed);
  }

 private:
  using sender = detail::operation<void(error_code), std::optional<T>>;
  using receiver = detail::operation<void(error_code, T)>;
  using sending = detail::beginning<void(error_code), std::optional<T>>;
  using receiving = detail::beginning<void(error_code, T)>;

  template <class U>
  void push(U&& value) {
    std::size_t at = first_ + size_;
    if (at >= capacity_) at -= capacity_;
    slots_[at].emplace(std::forward<U>(value));
    ++size_;
  }

  T pop() {
    T value = std::move(*slots_[first_]);
    slots_[first_].reset();
    if (++first_ == capacity_) first_ = 0;
    --size_;
    return value;
  }

  void refill() {
    sender& next = senders_.front();
    push(std::move(*next.state()));
    next.complete({});
  }

  detail::prepared_executor ex_;
  std::size_t capacity_;
  std::size_t first_ = 0;
  std::size_t size_ = 0;
  bool closed_ = false;
  std::unique_ptr<std::optional<T>[]> slots_;
  detail::operation_list<sender> senders_;
  detail::operation_list<receiver> receivers_;
};

}  // namespace cokv
