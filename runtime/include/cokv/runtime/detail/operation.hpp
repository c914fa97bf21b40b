// What waits: an operation as its owner sees it, without its handler, and the list an owner keeps its operations in.
// `detail/initiate.hpp` makes them; its head says what an owner may do with one and what the caller is guaranteed.
//
//     using waiter = detail::operation<void(error_code, std::size_t)>;
//     detail::operation_list<waiter> waiters_;      // destroyed with waiters: they complete as aborted
//     if (!waiters_.empty()) waiters_.front().complete({}, n);
#pragma once

#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

#include "cokv/runtime/asio.hpp"

namespace cokv::detail {

// A circular link: it leaves its list without knowing which one it is in.
class link {
 public:
  link() = default;
  link(const link&) = delete;
  link& operator=(const link&) = delete;

  bool linked() const noexcept { return next_ != this; }
  link* next() const noexcept { return next_; }
  link* prev() const noexcept { return prev_; }

  void insert_before(link& position) noexcept {
    prev_ = position.prev_;
    next_ = &position;
    prev_->next_ = this;
    position.prev_ = this;
  }

  void unlink() noexcept {
    prev_->next_ = next_;
    next_->prev_ = prev_;
    prev_ = next_ = this;
  }

 protected:
  ~link() = default;

 private:
  link* prev_ = this;
  link* next_ = this;
};

struct list_head : link {};
struct owner_link : link {};
struct registry_link : link {};

// What an operation is to those who know neither its signature nor its handler.
class operation_base : public owner_link, public registry_link {
 public:
  // Destroys the handler without calling it.
  void abandon() { finish_(this, nullptr); }

 protected:
  using finish_function = void (*)(operation_base*, void* values);  // values: the completion's tuple, or null
  explicit operation_base(finish_function finish) noexcept : finish_(finish) {}
  ~operation_base() = default;

  finish_function finish_;
};

// Every operation that waits in a context, so that the context can abandon them when it shuts down.
class operation_registry final : public asio::execution_context::service {
 public:
  inline static asio::execution_context::id id;
  explicit operation_registry(asio::execution_context& context) : service(context) {}

  template <class Executor>
  static operation_registry& of(const Executor& ex) {
    return asio::use_service<operation_registry>(asio::query(ex, asio::execution::context));
  }

  bool closing() const noexcept { return closing_; }
  bool empty() const noexcept { return !operations_.linked(); }
  void add(registry_link& op) noexcept { op.insert_before(operations_); }

 private:
  void shutdown() override {
    closing_ = true;
    while (operations_.linked())
      static_cast<operation_base*>(static_cast<registry_link*>(operations_.next()))->abandon();
  }

  list_head operations_;
  bool closing_ = false;
};

template <class Signature, class State = std::monostate>
class operation;

template <class... T, class State>
class operation<void(error_code, T...), State> : public operation_base {
 public:
  using values = std::tuple<error_code, T...>;
  using cancel_function = void (*)(operation&, asio::cancellation_type_t);

  State& state() noexcept { return state_; }
  const State& state() const noexcept { return state_; }

  // The operation is over; `*this` is gone when this returns.
  void complete(error_code ec, T... value) {
    values v(ec, std::move(value)...);
    finish_(this, &v);
  }

  // Completes with an error and empty values.
  void fail(error_code ec) {
    values v(ec, T()...);
    finish_(this, &v);
  }

  void on_cancel(cancel_function f) noexcept { cancel_ = f; }
  void cancel(asio::cancellation_type_t type) { cancel_ ? cancel_(*this, type) : fail(asio::error::operation_aborted); }

 protected:
  using operation_base::operation_base;
  ~operation() = default;

 private:
  [[no_unique_address]] State state_{};
  cancel_function cancel_ = nullptr;
};

// What an initiating function has in hand before anything waits: it completes at once, which is a post and nothing
// else, or from wait() on it is an operation. One of the two, once; wait() may throw std::bad_alloc.
template <class Signature, class State = std::monostate>
class beginning;

template <class... T, class State>
class beginning<void(error_code, T...), State> {
 public:
  using values = std::tuple<error_code, T...>;

  beginning(const beginning&) = delete;
  beginning& operator=(const beginning&) = delete;

  void complete(error_code ec, T... value) { finish({ec, std::move(value)...}); }
  void fail(error_code ec) { finish({ec, T()...}); }
  virtual operation<void(error_code, T...), State>& wait() = 0;

 protected:
  beginning() = default;
  ~beginning() = default;
  virtual void finish(values&& v) = 0;
};

// The waiting operations of one owner, in the order it chose. Moving it takes the operations along; destroying it
// completes them as aborted.
template <class Operation>
class operation_list {
 public:
  operation_list() = default;
  operation_list(operation_list&& other) noexcept { take(other); }
  operation_list& operator=(operation_list&& other) noexcept {
    if (this != &other) {
      complete_all(asio::error::operation_aborted);
      take(other);
    }
    return *this;
  }
  ~operation_list() { complete_all(asio::error::operation_aborted); }

  bool empty() const noexcept { return !head_.linked(); }
  Operation& front() noexcept { return as_operation(head_.next()); }
  Operation& back() noexcept { return as_operation(head_.prev()); }
  void push_back(Operation& op) noexcept { static_cast<owner_link&>(op).insert_before(head_); }

  // Before the first operation, seen from the back, that `precedes(op)` is true for: keeps a list sorted.
  template <class Precedes>
  void insert_after_last(Operation& op, Precedes precedes) {
    link* at = head_.prev();
    while (at != &head_ && !precedes(as_operation(at))) at = at->prev();
    static_cast<owner_link&>(op).insert_before(*at->next());
  }

  // Takes the front out of the list without completing it.
  Operation& pop_front() noexcept {
    Operation& op = front();
    static_cast<owner_link&>(op).unlink();
    return op;
  }

  // Completes every waiter with this error (or success) and empty values.
  void complete_all(error_code ec) {
    while (!empty()) front().fail(ec);
  }

  // Visits the operations in order; f may complete the one it is given, no other.
  template <class F>
  void for_each(F f) {
    for (link* at = head_.next(); at != &head_;) {
      link* next = at->next();
      f(as_operation(at));
      at = next;
    }
  }

 private:
  static Operation& as_operation(link* at) noexcept {
    return static_cast<Operation&>(static_cast<operation_base&>(static_cast<owner_link&>(*at)));
  }
  void take(operation_list& other) noexcept {
    if (other.empty()) return;
    head_.insert_before(other.head_);
    static_cast<link&>(other.head_).unlink();
  }

  list_head head_;
};

}  // namespace cokv::detail
