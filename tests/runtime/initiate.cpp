
#include <doctest/doctest.h>

#include <boost/asio/experimental/promise.hpp>
#include <boost/asio/experimental/use_promise.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_future.hpp>
#include <set>

#include "cokv/runtime/detail/initiate.hpp"
#include "cokv/runtime/detail/initiate_erased.hpp"
#include "cokv/runtime/detail/operation.hpp"
#include "cokv/runtime/detail/prepared_executor.hpp"
#include "cokv/runtime/detail/run_as_operation.hpp"
#include "cokv/runtime/error.hpp"
#include "support/counting_allocator.hpp"

using namespace cokv;
using cokv::test::allocation_count;
using cokv::test::counting_allocator;

namespace {

// The smallest owner: hands a number to everyone who waits.
class source {
 public:
  using waiter = detail::operation<void(error_code, int)>;
  explicit source(asio::any_io_executor ex) : ex_(std::move(ex)) {}

  template <class Token = asio::deferred_t>
  auto async_next(Token&& token = Token()) {
    return detail::initiate<void(error_code, int)>(std::forward<Token>(token), ex_,
                                                   [this](waiter& op) { waiters_.push_back(op); });
  }
  bool waiting() const { return !waiters_.empty(); }
  void give(int value) {
    while (!waiters_.empty()) waiters_.front().complete({}, value);
  }

 private:
  asio::any_io_executor ex_;
  detail::operation_list<waiter> waiters_;
};

// An operation that has begun: a total cancellation is noted, a terminal one ends it.
struct transfer_state {
  int* asked = nullptr;
};
using transfer = detail::operation<void(error_code), transfer_state>;

struct noisy {
  int* destroyed;
  explicit noisy(int& d) : destroyed(&d) {}
  noisy(noisy&& other) noexcept : destroyed(std::exchange(other.destroyed, nullptr)) {}
  ~noisy() {
    if (destroyed) ++*destroyed;
  }
};

}  // namespace

TEST_CASE("initiate: callback, future, promise, deferred and use_awaitable each get their value once") {
  asio::io_context ctx(1);
  source s(ctx.get_executor());
  int called = 0, sum = 0;
  s.async_next([&](error_code ec, int v) { called += !ec, sum += v; });
  auto future = s.async_next(asio::use_future);
  auto promise = s.async_next(asio::experimental::use_promise);
  promise([&](error_code ec, int v) { called += !ec, sum += v; });
  asio::co_spawn(
      ctx,
      [](source& s, int& called, int& sum) -> awaitable<void> {
        auto op = s.async_next();
        sum += co_await std::move(op);
        sum += co_await s.async_next(asio::use_awaitable);
        auto [ec, v] = co_await s.async_next(asio::as_tuple(asio::deferred));
        called += !ec;
        sum += v;
      }(s, called, sum),
      asio::detached);
  ctx.poll();
  s.give(7);
  CHECK(called == 0);  // by post, never inside
  for (int i = 0; i < 3; ++i) ctx.poll(), s.give(7);
  ctx.run();
  CHECK(called == 3);
  CHECK(sum == 5 * 7);
  CHECK(future.get() == 7);
}

TEST_CASE("initiate: what is known at once completes by one post, with one allocation from the handler's allocator") {
  asio::io_context ctx(1);
  allocation_count count;
  detail::prepared_executor ex(ctx.get_executor());
  int live = -1, got = 0;
  detail::initiate<void(error_code, int)>(
      asio::bind_allocator(counting_allocator<>(count),
                           [&](error_code ec, int v) { got = ec ? -1 : v, live = count.live; }),
      ex, [](detail::beginning<void(error_code, int)>& begin) { begin.complete({}, 7); });
  CHECK(got == 0);
  CHECK(count.total == 1);
  CHECK(ex.registry().empty());
  CHECK(ctx.run() == 1);
  CHECK(got == 7);
  CHECK(live == 0);
}

TEST_CASE("initiate: what begins may wait, and is then an operation like any other") {
  asio::io_context ctx(1);
  detail::prepared_executor ex(ctx.get_executor());
  detail::operation_list<source::waiter> waiters;
  asio::cancellation_signal signal;
  std::vector<error_code> got;
  auto wait = [&](detail::beginning<void(error_code, int)>& begin) { waiters.push_back(begin.wait()); };
  detail::initiate<void(error_code, int)>([&](error_code ec, int) { got.push_back(ec); }, ex, wait);
  detail::initiate<void(error_code, int)>(
      asio::bind_cancellation_slot(signal.slot(), [&](error_code ec, int) { got.push_back(ec); }), ex, wait);
  CHECK(!ex.registry().empty());
  CHECK(ctx.poll() == 0);
  CHECK(!ctx.stopped());
  signal.emit(asio::cancellation_type::terminal);
  waiters.front().complete({}, 1);
  CHECK(ex.registry().empty());
  CHECK(ctx.run() == 2);
  CHECK(got == std::vector<error_code>{asio::error::operation_aborted, error_code()});
}

TEST_CASE("initiate: a handler runs on its executor, whatever that is, at once or after a wait") {
  asio::io_context ctx(1);
  detail::prepared_executor ex(ctx.get_executor());
  int called = 0;
  auto check = [&](auto executor) {
    auto handler = [&, executor](error_code) {
      ++called;
      if constexpr (requires { executor.running_in_this_thread(); }) CHECK(executor.running_in_this_thread());
    };
    detail::initiate<void(error_code)>(asio::bind_executor(executor, handler), ex,
                                       [](detail::beginning<void(error_code)>& begin) { begin.complete({}); });
    detail::initiate<void(error_code)>(asio::bind_executor(executor, handler), ex,
                                       [](detail::operation<void(error_code)>& op) { op.complete({}); });
    detail::initiate<void(error_code)>(
        asio::any_completion_handler<void(error_code)>(asio::bind_executor(executor, handler)), ex,
        [](detail::operation<void(error_code)>& op) { op.complete({}); });
    CHECK(called == 0);
  };
  check(ctx.get_executor());
  check(asio::any_io_executor(ctx.get_executor()));
  check(asio::any_io_executor(asio::require(ctx.get_executor(), asio::execution::blocking.never)));
  check(asio::make_strand(ctx));
  check(asio::any_io_executor(asio::make_strand(ctx)));
  ctx.run();
  CHECK(called == 15);
}

TEST_CASE(
    "initiate: what completes at once still runs on another context's thread if that is where its handler lives") {
  asio::io_context ctx(1);
  asio::thread_pool pool(1);
  std::thread::id ran_on = std::this_thread::get_id();
  detail::initiate<void(error_code)>(asio::bind_executor(asio::any_io_executor(pool.get_executor()),
                                                         [&](error_code) { ran_on = std::this_thread::get_id(); }),
                                     ctx.get_executor(),
                                     [](detail::beginning<void(error_code)>& begin) { begin.complete({}); });
  ctx.run();
  pool.join();
  CHECK(ran_on != std::this_thread::get_id());
}

TEST_CASE("initiate: a stored deferred operation can be started twice") {
  asio::io_context ctx(1);
  source s(ctx.get_executor());
  const auto op = s.async_next(asio::deferred);
  int sum = 0;
  op([&](error_code, int v) { sum += v; });
  op([&](error_code, int v) { sum += v; });
  s.give(3);
  ctx.run();
  CHECK(sum == 6);
}

TEST_CASE("initiate: the context stays alive while an operation waits, and ends when it is done") {
  asio::io_context ctx(1);
  source s(ctx.get_executor());
  bool done = false;
  s.async_next([&](error_code, int) { done = true; });
  CHECK(ctx.poll() == 0);
  CHECK(!ctx.stopped());
  s.give(1);
  CHECK(ctx.run() == 1);
  CHECK(done);
  CHECK(ctx.stopped());
}

TEST_CASE("initiate: the handler runs on its associated executor, its memory comes from its allocator") {
  asio::io_context ctx(1);
  asio::thread_pool pool(1);
  allocation_count count;
  int live_at_upcall = -1;
  std::thread::id ran_on;
  {
    source s(ctx.get_executor());
    s.async_next(asio::bind_executor(pool.get_executor(),
                                     asio::bind_allocator(counting_allocator<>(count), [&](error_code, int) {
                                       ran_on = std::this_thread::get_id();
                                       live_at_upcall = count.live;
                                     })));
    CHECK(count.total >= 1);
    s.give(1);
    ctx.run();
    pool.join();
  }
  CHECK(ran_on != std::thread::id());
  CHECK(ran_on != std::this_thread::get_id());
  CHECK(live_at_upcall == 0);
  CHECK(count.live == 0);
}

TEST_CASE("initiate: every cancellation type ends a plain wait, once, and a second signal finds nothing") {
  for (auto type : {asio::cancellation_type::total, asio::cancellation_type::partial, asio::cancellation_type::terminal,
                    asio::cancellation_type::all}) {
    asio::io_context ctx(1);
    source s(ctx.get_executor());
    asio::cancellation_signal signal;
    int called = 0;
    error_code got;
    s.async_next(asio::bind_cancellation_slot(signal.slot(), [&](error_code ec, int) { ++called, got = ec; }));
    signal.emit(asio::cancellation_type::none);
    CHECK(s.waiting());
    signal.emit(type);
    CHECK(!s.waiting());
    CHECK(called == 0);
    signal.emit(type);
    s.give(1);
    ctx.run();
    CHECK(called == 1);
    CHECK(got == asio::error::operation_aborted);
  }
}

TEST_CASE("initiate: a signal after completion, before the upcall, changes nothing") {
  asio::io_context ctx(1);
  source s(ctx.get_executor());
  asio::cancellation_signal signal;
  error_code got = errc::closed;
  s.async_next(asio::bind_cancellation_slot(signal.slot(), [&](error_code ec, int) { got = ec; }));
  s.give(1);
  signal.emit(asio::cancellation_type::all);
  ctx.run();
  CHECK(!got);
}

TEST_CASE("initiate: on_cancel lets an operation that has begun drain, and end at once when terminal") {
  asio::io_context ctx(1);
  auto ex = ctx.get_executor();
  asio::cancellation_signal signal;
  detail::operation_list<transfer> begun;
  int asked = 0, called = 0;
  auto start = [&](transfer& op) {
    op.state().asked = &asked;
    op.on_cancel([](transfer& self, asio::cancellation_type_t type) {
      ++*self.state().asked;
      if ((type & asio::cancellation_type::terminal) != asio::cancellation_type::none)
        self.complete(asio::error::operation_aborted);
    });
    begun.push_back(op);
  };
  detail::initiate<void(error_code), transfer_state>(
      asio::bind_cancellation_slot(signal.slot(), [&](error_code) { ++called; }), ex, start);
  signal.emit(asio::cancellation_type::total);
  CHECK(asked == 1);
  CHECK(!begun.empty());
  signal.emit(asio::cancellation_type::terminal);
  CHECK(asked == 2);
  CHECK(begun.empty());
  ctx.run();
  CHECK(called == 1);
}

TEST_CASE("initiate: an owner destroyed with waiters aborts them; moved, it takes them along") {
  asio::io_context ctx(1);
  error_code got;
  auto list = std::make_unique<detail::operation_list<source::waiter>>();
  detail::initiate<void(error_code, int)>([&](error_code ec, int) { got = ec; }, ctx.get_executor(),
                                          [&](source::waiter& op) { list->push_back(op); });
  auto moved = std::make_unique<detail::operation_list<source::waiter>>(std::move(*list));
  list.reset();
  CHECK(ctx.poll() == 0);
  CHECK(!moved->empty());
  moved.reset();
  ctx.run();
  CHECK(got == asio::error::operation_aborted);
}

TEST_CASE("initiate: a context destroyed with waiters abandons them: destroyed, not called") {
  int destroyed = 0, called = 0, unwound = 0;
  std::optional<source> outlives;
  {
    asio::io_context ctx(1);
    outlives.emplace(ctx.get_executor());
    outlives->async_next([&called, n = noisy(destroyed)](error_code, int) { ++called; });
    asio::co_spawn(
        ctx,
        [](source& s, noisy) -> awaitable<void> {
          source inner(co_await asio::this_coro::executor);
          co_await asio::experimental::make_parallel_group(s.async_next(), inner.async_next())
              .async_wait(asio::experimental::wait_for_all(), asio::deferred);
        }(*outlives, noisy(unwound)),
        asio::detached);
    ctx.poll();
    CHECK(destroyed == 0);
  }
  CHECK(!outlives->waiting());
  CHECK(destroyed == 1);
  CHECK(unwound == 1);
  CHECK(called == 0);
}

TEST_CASE("initiate: a sorted list keeps equal elements in order of arrival") {
  asio::io_context ctx(1);
  using waiter = detail::operation<void(error_code), int>;
  detail::operation_list<waiter> list;
  std::vector<int> order;
  for (int key : {3, 1, 2, 1})
    detail::initiate<void(error_code), int>([&order, key](error_code) { order.push_back(key); }, ctx.get_executor(),
                                            [&](waiter& op) {
                                              op.state() = key;
                                              list.insert_after_last(op, [key](waiter& o) { return o.state() <= key; });
                                            });
  list.complete_all({});
  ctx.run();
  CHECK(order == std::vector<int>{1, 1, 2, 3});
}

namespace {

struct counter_base {
  virtual ~counter_base() = default;
  virtual void do_count(int n, asio::any_completion_handler<void(error_code, int)> h) = 0;
  template <class Token = asio::deferred_t>
  auto async_count(int n, Token&& token = Token()) {
    return detail::initiate_erased<void(error_code, int)>(
        std::forward<Token>(token), ex,
        [this, n](asio::any_completion_handler<void(error_code, int)> h) { do_count(n, std::move(h)); });
  }
  asio::any_io_executor ex;
};

struct counter_by_list : counter_base {
  detail::operation_list<source::waiter> waiters;
  void do_count(int, asio::any_completion_handler<void(error_code, int)> h) override {
    detail::initiate<void(error_code, int)>(std::move(h), ex, [this](source::waiter& op) { waiters.push_back(op); });
  }
};

struct counter_by_coroutine : counter_base {
  source& from;
  explicit counter_by_coroutine(source& s) : from(s) {}
  awaitable<result<int>> count(int n) {
    if (n < 0) throw boost::system::system_error(make_error_code(errc::invalid_argument));
    int sum = 0;
    while (n--) sum += co_await from.async_next();
    co_return sum;
  }
  void do_count(int n, asio::any_completion_handler<void(error_code, int)> h) override {
    detail::run_as_operation(ex, count(n), std::move(h));
  }
};

}  // namespace

TEST_CASE("initiate_erased: a virtual operation completes, is cancelled and is abandoned like any other") {
  asio::cancellation_signal signal;
  asio::io_context ctx(1);
  counter_by_list c;
  c.ex = ctx.get_executor();
  error_code got, cancelled;
  int value = 0;
  c.async_count(1, [&](error_code ec, int v) { got = ec, value = v; });
  c.async_count(1, asio::bind_cancellation_slot(signal.slot(), [&](error_code ec, int) { cancelled = ec; }));
  c.waiters.front().complete({}, 5);
  signal.emit(asio::cancellation_type::total);
  ctx.run();
  CHECK(value == 5);
  CHECK(cancelled == asio::error::operation_aborted);
}

TEST_CASE("run_as_operation: a coroutine's result, its error and its cancellation reach the handler") {
  asio::io_context ctx(1);
  source s(ctx.get_executor());
  counter_by_coroutine c(s);
  c.ex = ctx.get_executor();
  int value = 0;
  error_code bad, cancelled, early;
  asio::cancellation_signal signal, at_once;
  c.async_count(9, asio::bind_cancellation_slot(at_once.slot(), [&](error_code ec, int) { early = ec; }));
  at_once.emit(asio::cancellation_type::total);  // before the coroutine has begun
  c.async_count(2, [&](error_code, int v) { value = v; });
  c.async_count(-1, [&](error_code ec, int) { bad = ec; });
  c.async_count(9, asio::bind_cancellation_slot(signal.slot(), [&](error_code ec, int) { cancelled = ec; }));
  for (int i = 0; i < 2; ++i) ctx.poll(), s.give(4);
  ctx.poll();
  signal.emit(asio::cancellation_type::terminal);
  ctx.run();
  CHECK(value == 8);
  CHECK(early == asio::error::operation_aborted);
  CHECK(bad == errc::invalid_argument);
  CHECK(cancelled == asio::error::operation_aborted);
}

TEST_CASE("run_as_operation: a cancellation from outside run() finds the coroutine at every step, or nothing") {
  static constexpr auto steps = [](asio::any_io_executor ex) -> awaitable<error_code> {
    for (int i = 0; i < 3; ++i) co_await asio::post(ex, asio::deferred);
    co_return error_code();
  };
  std::set<error_code> seen;
  for (int before = 0; before < 12; ++before) {
    asio::io_context ctx(1);
    asio::cancellation_signal signal;
    int completed = 0;
    detail::run_as_operation(ctx.get_executor(), steps(ctx.get_executor()),
                             asio::any_completion_handler<void(error_code)>(asio::bind_cancellation_slot(
                                 signal.slot(), [&](error_code ec) { ++completed, seen.insert(ec); })));
    for (int i = 0; i < before; ++i) ctx.run_one();
    signal.emit(asio::cancellation_type::terminal);
    ctx.restart();
    ctx.run();
    CHECK(completed == 1);
  }
  CHECK(seen == std::set<error_code>{error_code(), asio::error::operation_aborted});
}
