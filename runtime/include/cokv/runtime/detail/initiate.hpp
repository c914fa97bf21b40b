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
#include <cstddef>
#include <exception>
#include <memory>
#include <new>
#include <optional>
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

// A function with an allocator of its own. Not bind_allocator: what that returns looks to Asio as if it might have an
// executor of its own too, and is dispatched a second time for it.
template <class Allocator, class F>
struct posted {
  using allocator_type = Allocator;
  Allocator allocator;
  F f;
  allocator_type get_allocator() const noexcept { return allocator; }
  void operator()() { std::move(f)(); }
};
template <class Allocator, class F>
posted(Allocator, F) -> posted<Allocator, F>;

// Posts f to a handler's executor. The erased executor of an any_completion_handler can't be posted to, only
// dispatched: there the post goes to the I/O executor, and what it runs dispatches.
template <class Executor, class IoExecutor, class Allocator, class F>
void post_to(const Executor& ex, const IoExecutor& io_ex, const Allocator& alloc, F f) {
  if constexpr (asio::can_require<Executor, asio::execution::blocking_t::never_t>::value ||
                asio::is_executor<Executor>::value) {
    asio::post(ex, posted<Allocator, F>{alloc, std::move(f)});
  } else {
    auto hop = [ex, alloc, f = std::move(f)]() mutable {
      asio::dispatch(ex, posted<Allocator, F>{alloc, std::move(f)});
    };
    asio::post(io_ex, posted<Allocator, decltype(hop)>{alloc, std::move(hop)});
  }
}

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

// For operations whose implementation is virtual or lives in a .cpp: `start` is called with the handler, erased.
//
//     template <class Token = asio::deferred_t>
//     auto async_match(std::vector<block_key> keys, Token&& token = Token()) {
//       return detail::initiate_erased<void(error_code, std::size_t)>(
//           std::forward<Token>(token), get_executor(), [this, keys = std::move(keys)](match_handler h) mutable {
//             do_match(std::move(keys), std::move(h));     // virtual; match_handler: any_completion_handler<...>
//           });
//     }
//
// do_match then calls initiate<void(error_code, std::size_t)>(h, ex, ...) with the handler as the token, or hands a
// coroutine to `run_as_operation(ex, body(), std::move(h))`.
template <class Signature, class Executor, class Start>
class erased_initiation {
 public:
  using executor_type = Executor;
  erased_initiation(const Executor& ex, Start start) : executor_(ex), start_(std::move(start)) {}
  executor_type get_executor() const noexcept { return executor_; }

  template <class Handler>
  void operator()(Handler&& lent) && {
    std::move(start_)(asio::any_completion_handler<Signature>(std::decay_t<Handler>(std::forward<Handler>(lent))));
  }

  template <class Handler>
  void operator()(Handler&& lent) const&
    requires std::copy_constructible<Start>
  {
    erased_initiation (*this)(std::forward<Handler>(lent));
  }

 private:
  Executor executor_;
  Start start_;
};

template <class Signature, class Token, class Executor, class Start>
auto initiate_erased(Token&& token, const Executor& ex, Start start) {
  return asio::async_initiate<Token, Signature>(erased_initiation<Signature, Executor, Start>(ex, std::move(start)),
                                                token);
}

// What a coroutine returns, as the values of a completion.
template <class R>
struct completion_of;

template <>
struct completion_of<error_code> {
  using signature = void(error_code);
  static std::tuple<error_code> values(error_code ec) { return {ec}; }
  static std::tuple<error_code> failed(error_code ec) { return {ec}; }
};

template <class T>
struct completion_of<result<T>> {
  using signature = void(error_code, T);
  static std::tuple<error_code, T> values(result<T> r) {
    if (!r) return {r.error(), T()};
    return {error_code(), std::move(*r)};
  }
  static std::tuple<error_code, T> failed(error_code ec) { return {ec, T()}; }
};

template <class... T>
struct completion_of<std::tuple<error_code, T...>> {
  using signature = void(error_code, T...);
  static std::tuple<error_code, T...> values(std::tuple<error_code, T...> r) { return r; }
  static std::tuple<error_code, T...> failed(error_code ec) { return {ec, T()...}; }
};

// How a cancellation finds a coroutine that may not have begun: co_spawn alone would throw out of run() there.
struct body_cancellation {
  asio::cancellation_signal signal;
  bool started = false;
  bool cancelled = false;
};

template <class R>
awaitable<R> guarded_body(std::shared_ptr<body_cancellation> cancellation, awaitable<R> body) {
  if (cancellation->cancelled) {
    co_await asio::this_coro::throw_if_cancelled(false);
    throw boost::system::system_error(asio::error::operation_aborted);
  }
  cancellation->started = true;
  co_await asio::this_coro::reset_cancellation_state(asio::enable_total_cancellation());
  std::exception_ptr thrown;
  std::optional<R> r;
  try {
    r.emplace(co_await std::move(body));
  } catch (...) {
    thrown = std::current_exception();
  }
  // The last step is co_spawn's own, and must not throw in a cancelled coroutine.
  co_await asio::this_coro::throw_if_cancelled(false);
  if (thrown) std::rethrow_exception(thrown);
  co_return std::move(*r);
}

// A handler of co_spawn that names its slot itself. Bound with bind_cancellation_slot it would count as one with an
// executor of its own; co_spawn then posts a cancellation that comes from outside run(), and by the time that is done
// the coroutine may be gone.
template <class F>
struct with_slot {
  asio::cancellation_slot slot;
  F finish;

  using cancellation_slot_type = asio::cancellation_slot;
  cancellation_slot_type get_cancellation_slot() const noexcept { return slot; }
  template <class R>
  void operator()(std::exception_ptr error, R r) {
    finish(std::move(error), std::move(r));
  }
};

// Runs a coroutine as the body of an operation: it returns error_code, result<T> or tuple<error_code, T...>. A
// cancellation of the handler reaches the coroutine, whatever its kind and however early; a system_error that escapes
// becomes its code, any other exception is a bug and leaves the context's run().
template <class R, class Executor>
void run_as_operation(const Executor& ex, awaitable<R> body,
                      asio::any_completion_handler<typename completion_of<R>::signature> handler) {
  auto cancellation = std::make_shared<body_cancellation>();
  auto slot = asio::get_associated_cancellation_slot(handler);
  if (slot.is_connected()) {
    slot.assign([cancellation](asio::cancellation_type_t type) {
      if (type == asio::cancellation_type::none) return;
      cancellation->cancelled = true;
      if (cancellation->started) cancellation->signal.emit(type);
    });
  }
  // It holds `cancellation` too: co_spawn's last step looks at the slot after the body is gone.
  auto finish = [ex, slot, cancellation, work = asio::make_work_guard(asio::get_associated_executor(handler, ex)),
                 handler = std::move(handler)](std::exception_ptr error, R r) mutable {
    if (slot.is_connected()) slot.clear();
    auto values = [&]() -> decltype(completion_of<R>::failed({})) {
      if (!error) return completion_of<R>::values(std::move(r));
      try {
        std::rethrow_exception(error);
      } catch (const boost::system::system_error& e) {
        return completion_of<R>::failed(e.code());
      }
    }();
    auto to = work.get_executor();
    auto alloc = asio::get_associated_allocator(handler, asio::recycling_allocator<void>());
    post_to(to, ex, alloc, [handler = std::move(handler), values = std::move(values)]() mutable {
      std::apply([&](auto&&... v) { std::move(handler)(std::move(v)...); }, std::move(values));
    });
  };
  asio::co_spawn(ex, guarded_body(cancellation, std::move(body)),
                 with_slot<decltype(finish)>{cancellation->signal.slot(), std::move(finish)});
}

}  // namespace cokv::detail
