// The one helper that touches completion handlers, cancellation slots and handler allocators. A waiting operation is
// an `operation<void(error_code, T...), State>`: its owner keeps it in an `operation_list` and later calls
// `op.complete(ec, values...)`; what Asio asks of an asynchronous operation happens here, once for all of them.
//
//     class gate {                                        // completes every waiter when it opens
//      public:
//       explicit gate(asio::any_io_executor ex) : ex_(std::move(ex)) {}
//       template <class Token = asio::deferred_t>
//       auto async_wait(Token&& token = Token()) {
//         return detail::initiate<void(error_code)>(std::forward<Token>(token), ex_, [this](waiter& op) {
//           if (open_) return op.complete({});             // completes by post, never inside the initiating function
//           waiters_.push_back(op);                        // cancelled: unlinked and completed as aborted, unasked
//         });
//       }
//       void open() { open_ = true; waiters_.complete_all({}); }
//      private:
//       using waiter = detail::operation<void(error_code)>;
//       asio::any_io_executor ex_;
//       bool open_ = false;
//       detail::operation_list<waiter> waiters_;           // destroyed with waiters: they complete as aborted
//     };
//
// The owner's side:
// - `start(op)` runs inside the initiating function, on the context's thread, and must not throw. It completes the
//   operation or puts it somewhere from where it will be completed. After complete() or abandon() `op` is gone.
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

#include <boost/asio/recycling_allocator.hpp>
#include <concepts>
#include <memory>
#include <new>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

#include "cokv/runtime/asio.hpp"
#include "cokv/runtime/detail/operation.hpp"
#include "cokv/runtime/detail/post_to.hpp"

namespace cokv::detail {

template <class Signature, class State, class Handler, class Executor>
class operation_impl final : public operation<Signature, State> {
  using base = operation<Signature, State>;
  using handler_executor = asio::associated_executor_t<Handler, Executor>;
  using allocator = typename std::allocator_traits<
      asio::associated_allocator_t<Handler, asio::recycling_allocator<void>>>::template rebind_alloc<operation_impl>;
  using traits = std::allocator_traits<allocator>;

 public:
  static operation_impl* create(Handler&& handler, const Executor& ex) {
    allocator alloc(asio::get_associated_allocator(handler, asio::recycling_allocator<void>()));
    operation_impl* self = traits::allocate(alloc, 1);
    try {
      return ::new (static_cast<void*>(self)) operation_impl(std::move(handler), ex);
    } catch (...) {
      traits::deallocate(alloc, self, 1);
      throw;
    }
  }

  void connect_slot() {
    if (auto slot = asio::get_associated_cancellation_slot(handler_); slot.is_connected()) {
      slot.assign([op = static_cast<base*>(this)](asio::cancellation_type_t type) {
        if (type != asio::cancellation_type::none) op->cancel(type);
      });
    }
  }

 private:
  operation_impl(Handler&& handler, const Executor& ex)
      : base(&operation_impl::finish),
        handler_(std::move(handler)),
        work_(asio::get_associated_executor(handler_, ex)) {
    // One guard is enough where both executors are the same, as in every coroutine of one context.
    if constexpr (std::is_same_v<handler_executor, Executor>) {
      if (work_.get_executor() == ex) return;
    }
    io_work_.emplace(ex);
  }
  ~operation_impl() = default;

  static void finish(operation_base* erased, void* values) {
    auto* self = static_cast<operation_impl*>(static_cast<base*>(erased));
    static_cast<owner_link*>(self)->unlink();
    static_cast<registry_link*>(self)->unlink();
    Handler handler(std::move(self->handler_));
    auto io_work(std::move(self->io_work_));
    auto work(std::move(self->work_));
    allocator alloc(asio::get_associated_allocator(handler, asio::recycling_allocator<void>()));
    self->~operation_impl();
    traits::deallocate(alloc, self, 1);
    // The slot's function points at what is gone now; a second signal must not find it.
    if (auto slot = asio::get_associated_cancellation_slot(handler); slot.is_connected()) slot.clear();
    if (!values) return;
    auto& v = *static_cast<typename base::values*>(values);
    if constexpr (std::is_same_v<handler_executor, Executor>) {
      // What is posted is outstanding work of its executor by itself.
      if (!io_work) return asio::post(work.get_executor(), posted{alloc, upcall{std::move(handler), std::move(v)}});
    }
    auto ex = work.get_executor();
    auto io_ex = io_work->get_executor();
    post_to(ex, io_ex, alloc,
            [call = upcall{std::move(handler), std::move(v)}, work = std::move(work),
             io_work = std::move(io_work)]() mutable { call(); });
  }

  struct upcall {
    Handler handler;
    typename base::values values;
    void operator()() {
      std::apply([&](auto&&... value) { std::move(handler)(std::move(value)...); }, std::move(values));
    }
  };

  Handler handler_;
  asio::executor_work_guard<handler_executor> work_;
  std::optional<asio::executor_work_guard<Executor>> io_work_;
};

template <class Signature, class State, class Executor, class Start>
class initiation {
 public:
  using executor_type = Executor;  // lets adapters find the I/O executor
  initiation(const Executor& ex, Start start) : executor_(ex), start_(std::move(start)) {}
  executor_type get_executor() const noexcept { return executor_; }

  // Some tokens (use_promise) hand the handler over as an lvalue, so it is decay-copied.
  template <class Handler>
  void operator()(Handler&& lent) && {
    using impl = operation_impl<Signature, State, std::decay_t<Handler>, Executor>;
    auto& registry = operation_registry::of(executor_);
    impl* op = impl::create(std::decay_t<Handler>(std::forward<Handler>(lent)), executor_);
    if (registry.closing()) return op->abandon();
    op->connect_slot();
    registry.add(*op);
    start(*op);
  }

  // A stored operation may be started more than once.
  template <class Handler>
  void operator()(Handler&& lent) const&
    requires std::copy_constructible<Start>
  {
    initiation (*this)(std::forward<Handler>(lent));
  }

 private:
  void start(operation<Signature, State>& op) noexcept { std::move(start_)(op); }

  Executor executor_;
  Start start_;
};

// Initiates an operation on an executor's context. `start` is called with `operation<Signature, State>&`.
template <class Signature, class State = std::monostate, class Token, class Executor, class Start>
auto initiate(Token&& token, const Executor& ex, Start start) {
  return asio::async_initiate<Token, Signature>(initiation<Signature, State, Executor, Start>(ex, std::move(start)),
                                                token);
}

}  // namespace cokv::detail
