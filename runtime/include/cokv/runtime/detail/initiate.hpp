// The one helper that touches completion handlers, cancellation slots and handler allocators. A waiting operation is
// an `operation<void(error_code, T...), State>`: its owner keeps it in an `operation_list` and later calls
// `op.complete(ec, values...)`; what Asio asks of an asynchronous operation happens here, once for all of them.
//
//     class gate {                                        // completes every waiter when it opens
//      public:
//       explicit gate(asio::any_io_executor ex) : ex_(std::move(ex)) {}
//       template <class Token = asio::deferred_t>
//       auto async_wait(Token&& token = Token()) {
//         return detail::initiate<void(error_code)>(std::forward<Token>(token), ex_, [this](beginning& begin) {
//           if (open_) return begin.complete({});          // completes by post, never inside the initiating function
//           waiters_.push_back(begin.wait());              // cancelled: unlinked and completed as aborted, unasked
//         });
//       }
//       void open() { open_ = true; waiters_.complete_all({}); }
//      private:
//       using waiter = detail::operation<void(error_code)>;
//       using beginning = detail::beginning<void(error_code)>;
//       detail::prepared_executor ex_;
//       bool open_ = false;
//       detail::operation_list<waiter> waiters_;           // destroyed with waiters: they complete as aborted
//     };
//
// The owner's side:
// - `start(begin)` runs inside the initiating function, on the context's thread. It calls complete(), which costs one
//   post, or wait(), which makes the operation and may throw std::bad_alloc; after that it must not throw.
// - `start(op)` for an operation that always waits: its function takes the operation itself. It completes it or puts it
//   somewhere from where it will be completed, and must not throw. After complete() or abandon() `op` is gone.
// - `op.state()` is the owner's data in the operation (`operation<void(error_code, std::size_t), my_state>`,
//   `initiate<void(error_code, std::size_t), my_state>(...)`): a target, a size, a pointer back.
// - `op.on_cancel(f)`, f a captureless lambda `(operation&, asio::cancellation_type_t)`, replaces what a cancellation
//   does. Without it every type completes the operation as operation_aborted: right for a wait, wrong for a transfer
//   that has begun. f may ignore the request and let the operation drain.
// - complete() unlinks the operation, frees its memory, then posts the handler to its associated executor. It may be
//   called once, from the context's thread only: another thread first comes back by detail/mailbox.hpp.
// - When the context shuts down, every operation is abandoned: its handler is destroyed, not called. The owner has
//   nothing to do for that; its lists are empty afterwards. What is initiated later is abandoned at once.
//
// What is guaranteed to the caller: the handler's allocator is used (a recycling one by default) and its memory is free
// before the upcall; both executors have outstanding work meanwhile; the handler is called exactly once, by post; the
// cancellation slot is taken only if it is connected, and free again before the upcall.
#pragma once

#include <boost/assert.hpp>
#include <concepts>
#include <memory>
#include <new>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

#include "cokv/runtime/asio.hpp"
#include "cokv/runtime/detail/completion.hpp"
#include "cokv/runtime/detail/operation.hpp"
#include "cokv/runtime/detail/prepared_executor.hpp"

namespace cokv::detail {

template <class Signature, class State, class Handler>
class operation_impl final : public operation<Signature, State> {
  using base = operation<Signature, State>;
  using tag = std::type_identity<operation_impl>;

 public:
  static operation_impl& create(Handler&& handler, const prepared_executor& ex) {
    auto alloc = handler_allocator(handler, tag());
    using traits = std::allocator_traits<decltype(alloc)>;
    operation_impl* self = traits::allocate(alloc, 1);
    try {
      ::new (static_cast<void*>(self)) operation_impl(std::move(handler), ex);
    } catch (...) {
      traits::deallocate(alloc, self, 1);
      throw;
    }
    self->connect_slot();
    ex.registry().add(*self);
    return *self;
  }

 private:
  operation_impl(Handler&& handler, const prepared_executor& ex)
      : base(&operation_impl::finish), handler_(std::move(handler)), work_(ex, handler_) {}
  ~operation_impl() = default;

  void connect_slot() {
    if (auto slot = asio::get_associated_cancellation_slot(handler_); slot.is_connected()) {
      slot.assign([op = static_cast<base*>(this)](asio::cancellation_type_t type) {
        if (type != asio::cancellation_type::none) op->cancel(type);
      });
    }
  }

  static void finish(operation_base* erased, void* values) {
    auto* self = static_cast<operation_impl*>(static_cast<base*>(erased));
    static_cast<owner_link*>(self)->unlink();
    static_cast<registry_link*>(self)->unlink();
    Handler handler(std::move(self->handler_));
    auto work(std::move(self->work_));
    auto alloc = handler_allocator(handler, tag());
    self->~operation_impl();
    std::allocator_traits<decltype(alloc)>::deallocate(alloc, self, 1);
    // The slot's function points at what is gone now; a second signal must not find it.
    if (auto slot = asio::get_associated_cancellation_slot(handler); slot.is_connected()) slot.clear();
    if (values) std::move(work).post(std::move(handler), std::move(*static_cast<typename base::values*>(values)));
  }

  Handler handler_;
  outstanding_work<Handler> work_;
};

template <class Signature, class State, class Handler>
class beginning_impl final : public beginning<Signature, State> {
  using base = beginning<Signature, State>;

 public:
  beginning_impl(Handler&& handler, const prepared_executor& ex) : handler_(std::move(handler)), ex_(ex) {}

  operation<Signature, State>& wait() override {
    return operation_impl<Signature, State, Handler>::create(std::move(handler_), ex_);
  }

 private:
  void finish(typename base::values&& v) override { post_completion(ex_, std::move(handler_), std::move(v)); }

  Handler handler_;
  const prepared_executor& ex_;
};

// Ex: a prepared_executor, or a pointer to its owner's.
template <class Signature, class State, class Ex, class Start>
class initiation {
 public:
  using executor_type = asio::any_io_executor;  // lets adapters find the I/O executor
  initiation(Ex ex, Start start) : ex_(std::move(ex)), start_(std::move(start)) {}
  executor_type get_executor() const noexcept { return executor().get(); }

  // Some tokens (use_promise) hand the handler over as an lvalue, so it is decay-copied.
  template <class Handler>
  void operator()(Handler&& lent) && {
    using handler = std::decay_t<Handler>;
    const prepared_executor& ex = executor();
    handler h(std::forward<Handler>(lent));
    if (ex.registry().closing()) return;
    if constexpr (std::is_invocable_v<Start, operation<Signature, State>&>) {
      start(operation_impl<Signature, State, handler>::create(std::move(h), ex));
    } else {
      beginning_impl<Signature, State, handler> first(std::move(h), ex);
      std::move(start_)(static_cast<beginning<Signature, State>&>(first));
    }
  }

  // A stored operation may be started more than once.
  template <class Handler>
  void operator()(Handler&& lent) const&
    requires std::copy_constructible<Start>
  {
    initiation (*this)(std::forward<Handler>(lent));
  }

 private:
  const prepared_executor& executor() const noexcept {
    if constexpr (std::is_pointer_v<Ex>)
      return *ex_;
    else
      return ex_;
  }
  void start(operation<Signature, State>& op) noexcept { std::move(start_)(op); }

  Ex ex_;
  Start start_;
};

// Initiates an operation on an executor's context. `start` is called with `operation<Signature, State>&`, or with
// `beginning<Signature, State>&` if that is what it takes. A prepared_executor is not copied: `start` keeps it alive.
template <class Signature, class State = std::monostate, class Token, class Executor, class Start>
auto initiate(Token&& token, const Executor& ex, Start start) {
  using held =
      std::conditional_t<std::is_same_v<Executor, prepared_executor>, const prepared_executor*, prepared_executor>;
  auto hold = [&]() -> held {
    if constexpr (std::is_pointer_v<held>)
      return &ex;
    else
      return asio::any_io_executor(ex);
  };
  return asio::async_initiate<Token, Signature>(initiation<Signature, State, held, Start>(hold(), std::move(start)),
                                                token);
}

}  // namespace cokv::detail
