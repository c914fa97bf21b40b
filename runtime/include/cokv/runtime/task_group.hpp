// task_group: the children of one scope. They run on the parent's executor, the first that fails cancels the rest, and
// with() (with.hpp) does not return before all of them have ended; its verdict lists every child's error.
//
//     auto verdict = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
//       group.spawn(pump(left, right));                       // an awaitable of void, error_code or result<void>
//       group.spawn([&]() -> awaitable<void> { ... });        // a coroutine lambda, kept for as long as it runs
//       group.spawn(stream.async_drain());                    // an operation void(error_code)
//       co_return;
//     });
//     if (!verdict) co_return verdict.error();
#pragma once

#include <boost/intrusive/list.hpp>
#include <concepts>
#include <cstddef>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "cokv/runtime/asio.hpp"
#include "cokv/runtime/detail/initiate.hpp"
#include "cokv/runtime/detail/inline_executor.hpp"
#include "cokv/runtime/detail/operation.hpp"
#include "cokv/runtime/detail/prepared_executor.hpp"

namespace cokv {

struct child_error {
  static constexpr std::size_t body = std::numeric_limits<std::size_t>::max();

  std::size_t child;  // in order of spawning, from 0; `body` for the scope's own body
  error_code code;
};

// What became of a scope. True when the body and every child succeeded.
class [[nodiscard]] verdict {
 public:
  verdict() = default;
  explicit verdict(error_code ec) : error_(ec) {}
  verdict(error_code ec, std::vector<child_error> errors) : error_(ec), errors_(std::move(errors)) {}

  explicit operator bool() const noexcept { return !error_; }
  error_code error() const noexcept { return error_; }                         // the first failure: the cause
  const std::vector<child_error>& errors() const noexcept { return errors_; }  // all, in the order they happened

 private:
  error_code error_;
  std::vector<child_error> errors_;
};

namespace detail {

class scope;

// One running child, owned by its completion handler: whether that is called or dropped, the scope learns of it.
struct scope_child : boost::intrusive::list_base_hook<boost::intrusive::link_mode<boost::intrusive::auto_unlink>> {
  scope_child(std::shared_ptr<scope> s, std::size_t i) : in(std::move(s)), index(i) {}
  scope_child(const scope_child&) = delete;
  ~scope_child();

  std::shared_ptr<scope> in;
  std::size_t index;
  asio::cancellation_signal signal;
  bool started = false;  // may be signalled: until then a cancellation only keeps it from starting
  bool cancelled = false;
  bool completed = false;  // false in the destructor: its context is being destroyed
};

inline error_code outcome(error_code ec) { return ec; }
inline error_code outcome(const result<void>& r) { return r ? error_code() : r.error(); }
inline error_code outcome(const verdict& v) { return v.error(); }

template <class R>
concept task_outcome = std::is_void_v<R> || requires(R r) { outcome(r); };

class scope : public std::enable_shared_from_this<scope> {
 public:
  explicit scope(std::size_t limit) : limit_(limit) {}

  void start(asio::any_io_executor ex) { ex_ = std::move(ex); }
  bool started() const { return static_cast<bool>(ex_.get()); }
  const asio::any_io_executor& executor() const { return ex_.get(); }
  std::size_t live() const { return live_; }
  std::size_t limit() const { return limit_; }
  bool cancelled() const { return cancelled_; }

  // Null when the scope takes no more children: the task is then destroyed without having run.
  std::unique_ptr<scope_child> open(bool body);
  void note(std::size_t child, error_code ec, std::exception_ptr thrown);

  // A body that is no coroutine.
  template <class F>
  void run(F body) {
    ++live_;
    error_code ec;
    std::exception_ptr thrown;
    try {
      if constexpr (std::is_void_v<std::invoke_result_t<F&>>)
        body();
      else
        ec = outcome(body());
    } catch (const boost::system::system_error& e) {
      ec = e.code();
    } catch (...) {
      thrown = std::current_exception();
    }
    note(child_error::body, ec, std::move(thrown));
    leave(true);
  }
  void leave(bool completed);
  void cancel(bool on_purpose);
  verdict take_verdict();  // rethrows what a child threw, unless that was a system_error

  // void(error_code), always success: the end of the last child. There is one waiter, with().
  template <class Token>
  auto async_join(Token&& token) {
    return initiate<void(error_code), scope*>(std::forward<Token>(token), ex_,
                                              [self = shared_from_this()](joiner& op) { self->join(op); });
  }

 private:
  using children = boost::intrusive::list<scope_child, boost::intrusive::constant_time_size<false>>;

  using joiner = operation<void(error_code), scope*>;

  void join(joiner& op);
  void finish_join();

  prepared_executor ex_;
  std::size_t limit_;
  std::size_t live_ = 0;
  std::size_t spawned_ = 0;
  bool cancelled_ = false;
  bool on_purpose_ = false;  // cancel() by the scope itself: a child it aborts has not failed
  bool abandoned_ = false;
  children running_;
  children signalled_;
  error_code first_;
  std::exception_ptr thrown_;
  std::vector<child_error> errors_;
  operation_list<joiner> join_;
};

template <class T>
struct awaited {};
template <class R>
struct awaited<awaitable<R>> {
  using type = R;
};

template <class Start, class R>
awaitable<void> run_child(scope_child* child, Start start, std::type_identity<R>) {
  error_code ec = asio::error::operation_aborted;
  std::exception_ptr thrown;
  if (!child->cancelled) {
    child->started = true;
    // Every kind of cancellation reaches the child: a transfer chooses the strongest promise it was offered.
    co_await asio::this_coro::reset_cancellation_state(asio::enable_total_cancellation());
    co_await asio::this_coro::throw_if_cancelled(true);
    try {
      if constexpr (std::is_void_v<R>) {
        co_await start();
        ec = {};
      } else {
        ec = outcome(co_await start());
      }
    } catch (const boost::system::system_error& e) {
      ec = e.code();
    } catch (...) {
      thrown = std::current_exception();
    }
  }
  // What follows is the spawner's own last step: in a cancelled child it would throw, and out of run().
  co_await asio::this_coro::throw_if_cancelled(false);
  child->in->note(child->index, ec, thrown);
}

struct child_done {
  using cancellation_slot_type = asio::cancellation_slot;

  std::unique_ptr<scope_child> child;

  cancellation_slot_type get_cancellation_slot() const noexcept { return child->signal.slot(); }
  void operator()(std::exception_ptr) {
    child->completed = true;
    child.reset();
  }
};

struct operation_done {
  using executor_type = asio::any_io_executor;
  using cancellation_slot_type = asio::cancellation_slot;

  std::unique_ptr<scope_child> child;

  executor_type get_executor() const noexcept { return child->in->executor(); }
  cancellation_slot_type get_cancellation_slot() const noexcept { return child->signal.slot(); }
  void operator()(error_code ec) {
    child->in->note(child->index, ec, nullptr);
    child->completed = true;
    child.reset();
  }
};

}  // namespace detail
}  // namespace cokv

template <class Executor>
struct boost::asio::associated_executor<cokv::detail::child_done, Executor> : cokv::detail::called_inline {};

namespace cokv {

struct task_group_options {
  std::size_t limit = 65536;  // children alive at once; one more fails the scope with errc::queue_full
};

// Moves freely until with() starts it.
class task_group {
 public:
  explicit task_group(task_group_options options = {}) : scope_(std::make_shared<detail::scope>(options.limit)) {}
  task_group(task_group&&) = default;
  task_group& operator=(task_group&&) = default;

  // Runs a child until it ends or the scope is cancelled; it starts at once, before spawn() returns, where the
  // executor permits. In a cancelled scope the task is destroyed without having run; where the scope was cancelled from
  // outside, its verdict is then operation_aborted.
  template <detail::task_outcome R>
  void spawn(awaitable<R> task) {
    auto start = [task = std::move(task)]() mutable { return std::move(task); };
    launch<R>(std::move(start), false);
  }

  template <class F>
    requires std::invocable<F&> && detail::task_outcome<typename detail::awaited<std::invoke_result_t<F&>>::type>
  void spawn(F task) {
    using R = typename detail::awaited<std::invoke_result_t<F&>>::type;
    launch<R>(std::move(task), false);
  }

  // Any operation that was made with deferred and has the signature void(error_code).
  template <class Op>
    requires asio::is_async_operation<Op>::value && (!std::invocable<Op&>)
  void spawn(Op operation) {
    static_assert(std::is_same_v<typename asio::completion_signature_of<Op>::type, void(error_code)>,
                  "an operation in a group has the signature void(error_code)");
    if (auto child = open()) std::move(operation)(detail::operation_done{std::move(child)});
  }

  // Ends the scope early: children and body are cancelled, and operation_aborted is then no failure of theirs.
  void cancel() { scope_->cancel(true); }
  // Ends the scope with this error, as a failed child would.
  void fail(error_code ec) { scope_->note(child_error::body, ec, nullptr); }

  bool cancelled() const noexcept { return scope_->cancelled(); }
  std::size_t live() const noexcept { return scope_->live(); }  // with the body
  asio::any_io_executor get_executor() const { return scope_->executor(); }

 protected:
  // For an operation that is begun otherwise: its handler holds what this returns, as operation_done does. Null: it is not
  // begun.
  std::unique_ptr<detail::scope_child> open() {
    auto child = scope_->open(false);
    if (child) child->started = true;
    return child;
  }

  template <class R, class Start>
  void launch(Start start, bool body) {
    auto child = scope_->open(body);
    if (!child) return;
    auto* c = child.get();
    asio::co_spawn(scope_->executor(), detail::run_child(c, std::move(start), std::type_identity<R>()),
                   detail::child_done{std::move(child)});
  }

 private:
  template <class Group, class Body>
    requires std::derived_from<Group, task_group>
  friend awaitable<verdict> with(Group group, Body body);

  std::shared_ptr<detail::scope> scope_;
};

}  // namespace cokv
