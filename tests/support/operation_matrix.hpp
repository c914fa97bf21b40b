// Every operation keeps the same promises to its caller, whatever it waits for. check_operation() takes one operation
// and tries them all, in virtual time on a few seeds: each token gets one completion, never inside the initiating
// call; the handler's executor, allocator and cancellation slot are used; a cancelled one ends by itself; one whose
// context goes is dropped uncalled.
//
//     check_operation("semaphore", [](sim_context& ctx) {
//       auto s = std::make_shared<semaphore>(ctx.get_executor(), 0);
//       return matrix_row([s](auto&& token) { return s->async_acquire(1, std::forward<decltype(token)>(token)); },
//                         [s] { s->release(1); });          // what lets it succeed
//     });
#pragma once

#include <doctest/doctest.h>

#include <boost/asio/strand.hpp>
#include <boost/asio/use_future.hpp>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "cokv/runtime/result.hpp"
#include "cokv/runtime/sim_context.hpp"
#include "support/counting_allocator.hpp"

namespace cokv::test {

template <class Start>
struct matrix_row {
  Start start;                   // start(token) initiates it
  std::function<void()> finish;  // none: it succeeds by itself
  bool only_a_post = false;      // there is nothing to wait for: what a post allocates is its executor's business
  matrix_row(Start s, std::function<void()> f = [] {}) : start(std::move(s)), finish(std::move(f)) {}
};

// Runs a coroutine that must come to its end.
inline void run_to_end(sim_context& ctx, awaitable<void> body) {
  bool ended = false;
  asio::co_spawn(ctx.get_executor(), std::move(body), [&](std::exception_ptr e) {
    ended = true;
    if (e) std::rethrow_exception(e);
  });
  (void)ctx.run();
  CHECK(ended);
}

namespace detail {

struct outcome {
  int called = 0;
  error_code ec = asio::error::would_block;
};

// A callback that counts, and knows whether it was destroyed.
struct recording {
  outcome* to;
  std::shared_ptr<int> alive;
  template <class... T>
  void operator()(error_code ec, T&&...) {
    ++to->called;
    to->ec = ec;
  }
};

template <class Row, class Token>
awaitable<void> await_with(Row& row, Token token, outcome& out) {
  if constexpr (std::is_same_v<Token, as_result_t<asio::deferred_t>>) {
    auto r = co_await row.start(token);
    out.ec = r ? error_code() : r.error();
  } else {
    auto values = co_await row.start(token);
    out.ec = std::get<0>(values);
  }
  ++out.called;
}

}  // namespace detail

template <class Make>
void check_operation(const std::string& name, Make make) {
  using detail::outcome, detail::recording;
  CAPTURE(name);
  // What: a function of the row and the context; the rest of the run, and that it succeeded once, is the same for all.
  const auto each_seed = [&](const std::string& what, auto body) {
    CAPTURE(what);
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      CAPTURE(seed);
      sim_context ctx(seed);
      auto row = make(ctx);
      body(row, ctx);
    }
  };
  const auto succeeds = [&](const std::string& what, auto initiate) {
    each_seed(what, [&](auto& row, sim_context& ctx) {
      outcome out;
      initiate(row, ctx, out);
      CHECK(out.called == 0);  // never inside the initiating call
      (void)ctx.poll();        // a coroutine has initiated it now
      row.finish();
      (void)ctx.run();
      CHECK(out.called == 1);
      CHECK(!out.ec);
    });
  };

  succeeds("callback", [](auto& row, sim_context&, outcome& out) { row.start(recording{&out, nullptr}); });
  succeeds("deferred", [](auto& row, sim_context&, outcome& out) {
    auto later = row.start(asio::deferred);
    std::move(later)(recording{&out, nullptr});
  });
  succeeds("as_tuple in a coroutine", [](auto& row, sim_context& ctx, outcome& out) {
    asio::co_spawn(ctx.get_executor(), detail::await_with(row, asio::as_tuple(asio::use_awaitable), out),
                   asio::detached);
  });
  succeeds("as_result in a coroutine", [](auto& row, sim_context& ctx, outcome& out) {
    asio::co_spawn(ctx.get_executor(), detail::await_with(row, as_result, out), asio::detached);
  });
  succeeds("an executor of the handler's own", [](auto& row, sim_context& ctx, outcome& out) {
    auto strand = asio::make_strand(ctx.get_executor());
    row.start(asio::bind_executor(asio::any_io_executor(strand), [strand, &out](error_code ec, auto&&...) {
      CHECK(strand.running_in_this_thread());
      recording{&out, nullptr}(ec);
    }));
  });

  each_seed("use_future", [](auto& row, sim_context& ctx) {
    auto future = row.start(asio::use_future);
    row.finish();
    (void)ctx.run();
    REQUIRE(future.wait_for(std::chrono::minutes(1)) == std::future_status::ready);  // set on a thread of Asio's own
    CHECK_NOTHROW((void)future.get());
  });
  each_seed("detached", [](auto& row, sim_context& ctx) {
    row.start(asio::detached);
    row.finish();
    CHECK(ctx.run() == sim_context::outcome::done);
  });
  each_seed("an allocator of the handler's own", [](auto& row, sim_context& ctx) {
    allocation_count count;
    outcome out;
    row.start(asio::bind_allocator(counting_allocator<>(count), recording{&out, nullptr}));
    CHECK((count.total > 0 || row.only_a_post));
    row.finish();
    (void)ctx.run();
    CHECK(out.called == 1);
    CHECK(count.live == 0);
  });

  for (auto type :
       {asio::cancellation_type::terminal, asio::cancellation_type::partial, asio::cancellation_type::total})
    for (std::size_t steps = 0; steps < 4; ++steps)
      each_seed("cancelled", [&](auto& row, sim_context& ctx) {
        CAPTURE(static_cast<int>(type));
        CAPTURE(steps);
        outcome out;
        asio::cancellation_signal signal;
        row.start(asio::bind_cancellation_slot(signal.slot(), recording{&out, nullptr}));
        for (std::size_t i = 0; i < steps; ++i) (void)ctx.step();
        signal.emit(type);
        (void)ctx.run();  // without anybody finishing it
        CHECK(out.called == 1);
        CHECK((!out.ec || out.ec == asio::error::operation_aborted));
        signal.emit(type);  // nobody listens any more
        row.finish();
        (void)ctx.run();
        CHECK(out.called == 1);
      });

  for (std::size_t steps = 0; steps < 4; ++steps) {
    CAPTURE(steps);
    outcome out;
    auto alive = std::make_shared<int>();
    std::weak_ptr<int> watch = alive;
    {
      sim_context ctx(1);
      auto row = make(ctx);
      row.start(recording{&out, std::move(alive)});
      for (std::size_t i = 0; i < steps && out.called == 0; ++i) (void)ctx.step();
    }
    CHECK(watch.expired());
    CHECK(out.called <= 1);
    if (out.called == 1) CHECK(!out.ec);  // it was done before
  }
}

}  // namespace cokv::test
