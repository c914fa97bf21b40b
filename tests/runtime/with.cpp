#include "cokv/runtime/with.hpp"

#include <doctest/doctest.h>

#include <boost/asio/steady_timer.hpp>
#include <optional>
#include <string>

#include "cokv/runtime/detail/background.hpp"
#include "cokv/runtime/error.hpp"

using namespace cokv;
using namespace std::chrono_literals;

namespace {

// Suspends until it is cancelled, then counts itself out.
awaitable<void> forever(int& ended) {
  struct count {
    int& n;
    ~count() { ++n; }
  } on_exit{ended};
  asio::steady_timer timer(co_await asio::this_coro::executor, 24h);
  co_await timer.async_wait(asio::deferred);
}

awaitable<void> steps(int n) {
  for (int i = 0; i < n; ++i) co_await asio::post(asio::deferred);
}

awaitable<error_code> fails_after(int n, error_code ec) {
  co_await steps(n);
  co_return ec;
}

// Runs one coroutine to its end and rethrows what left it.
template <class F>
void run(F body) {
  asio::io_context ctx(1);
  std::exception_ptr thrown;
  bool ended = false;
  asio::co_spawn(
      ctx, [&]() -> awaitable<void> { co_await body(); },
      [&](std::exception_ptr e) {
        thrown = e;
        ended = true;
      });
  ctx.run();
  CHECK(ended);
  if (thrown) std::rethrow_exception(thrown);
}

}  // namespace

TEST_CASE("with joins children that outlast the body") {
  int done = 0;
  run([&]() -> awaitable<void> {
    auto v = co_await with(task_group{}, [&](task_group& g) -> awaitable<void> {
      for (int i = 0; i < 10; ++i)
        g.spawn([&done, i]() -> awaitable<void> {
          co_await steps(i);
          ++done;
        });
      co_return;
    });
    CHECK(v);
    CHECK(v.errors().empty());
    CHECK(done == 10);
  });
}

TEST_CASE("with runs a body and children that never suspend") {
  int done = 0;
  run([&]() -> awaitable<void> {
    for (int i = 0; i < 1000; ++i) {
      auto v = co_await with(task_group{}, [&](task_group& g) -> awaitable<void> {
        g.spawn([&]() -> awaitable<void> {
          ++done;
          co_return;
        });
        co_return;
      });
      CHECK(v);
    }
  });
  CHECK(done == 1000);
}

TEST_CASE("with keeps the body's captures alive while children run") {
  std::string seen;
  run([&]() -> awaitable<void> {
    auto v = co_await with(task_group{}, [&seen, text = std::string(100, 'y')](task_group& g) -> awaitable<void> {
      g.spawn([&]() -> awaitable<void> {
        co_await steps(20);
        seen = text;
      });
      co_return;
    });
    CHECK(v);
  });
  CHECK(seen == std::string(100, 'y'));
}

TEST_CASE("a body that only spawns may be a plain function") {
  int ended = 0;
  run([&]() -> awaitable<void> {
    auto v = co_await with(task_group{}, [&ended, text = std::string(100, 'y')](task_group& g) {
      for (int i = 0; i < 3; ++i)
        g.spawn([&, i]() -> awaitable<void> {
          co_await steps(i);
          ended += text == std::string(100, 'y');
        });
    });
    CHECK(v);
    CHECK(ended == 3);

    v = co_await with(task_group{}, [](task_group&) {});
    CHECK(v);

    ended = 0;
    v = co_await with(task_group{}, [&](task_group& g) -> error_code {
      g.spawn(forever(ended));
      return errc::closed;
    });
    CHECK(ended == 1);
    CHECK(v.error() == errc::closed);
    REQUIRE(v.errors().size() == 2);
    CHECK(v.errors()[0].child == child_error::body);

    v = co_await with(task_group{}, [&](task_group& g) {
      g.spawn(forever(ended));
      throw boost::system::system_error(make_error_code(errc::deadline));
    });
    CHECK(ended == 2);
    CHECK(v.error() == errc::deadline);

    v = co_await with(task_group{{.limit = 2}}, [&](task_group& g) {
      for (int i = 0; i < 2; ++i) g.spawn(steps(1));
    });
    CHECK(v);
    v = co_await with(task_group{{.limit = 2}}, [&](task_group& g) {
      for (int i = 0; i < 3; ++i) g.spawn(steps(1));
    });
    CHECK(v.error() == errc::queue_full);

    bool rethrown = false;
    try {
      (void)co_await with(task_group{}, [&](task_group& g) {
        g.spawn(forever(ended));
        throw std::runtime_error("a bug");
      });
    } catch (const std::runtime_error&) {
      rethrown = true;
    }
    CHECK(rethrown);
    CHECK(ended == 3);
  });
}

TEST_CASE("the first failure cancels the rest and the verdict names them all") {
  int ended = 0;
  run([&]() -> awaitable<void> {
    auto v = co_await with(task_group{}, [&](task_group& g) -> awaitable<void> {
      g.spawn(forever(ended));
      g.spawn(fails_after(3, errc::digest_mismatch));
      g.spawn(forever(ended));
      co_await forever(ended);
    });
    CHECK(ended == 3);
    CHECK(v.error() == errc::digest_mismatch);
    REQUIRE(v.errors().size() == 4);
    CHECK(v.errors()[0].child == 1);
    CHECK(v.errors()[0].code == errc::digest_mismatch);
    for (int i = 1; i < 4; ++i) CHECK(v.errors()[i].code == asio::error::operation_aborted);
  });
}

TEST_CASE("a failing body cancels the children") {
  int ended = 0;
  run([&]() -> awaitable<void> {
    auto v = co_await with(task_group{}, [&](task_group& g) -> awaitable<error_code> {
      g.spawn(forever(ended));
      co_await steps(1);
      co_return errc::closed;
    });
    CHECK(ended == 1);
    CHECK(v.error() == errc::closed);
    CHECK(v.errors()[0].child == child_error::body);
  });
}

TEST_CASE("a system_error thrown by a child is its code, another exception is rethrown after the join") {
  int ended = 0;
  run([&]() -> awaitable<void> {
    auto v = co_await with(task_group{}, [&](task_group& g) -> awaitable<void> {
      g.spawn([]() -> awaitable<void> {
        co_await steps(2);
        throw boost::system::system_error(make_error_code(errc::protocol));
      });
      g.spawn(forever(ended));
      co_return;
    });
    CHECK(v.error() == errc::protocol);
    CHECK(ended == 1);
  });
  CHECK_THROWS_AS(run([&]() -> awaitable<void> {
                    auto v = co_await with(task_group{}, [&](task_group& g) -> awaitable<void> {
                      g.spawn(forever(ended));
                      co_await steps(1);
                      throw std::logic_error("bug");
                    });
                    CHECK(false);
                  }),
                  std::logic_error);
  CHECK(ended == 2);
}

TEST_CASE("a scope ended on purpose is a success") {
  int ended = 0;
  run([&]() -> awaitable<void> {
    auto v = co_await with(task_group{}, [&](task_group& g) -> awaitable<void> {
      g.spawn(forever(ended));
      co_await steps(2);
      g.cancel();
      g.spawn(forever(ended));  // refused: destroyed without having run
    });
    CHECK(v);
    CHECK(ended == 1);
  });
}

TEST_CASE("a child that ends its own scope without suspending does no harm") {
  run([&]() -> awaitable<void> {
    auto v = co_await with(task_group{}, [&](task_group& g) -> awaitable<void> {
      g.spawn([&g]() -> awaitable<void> {
        g.fail(errc::closed);
        co_return;
      });
      co_await steps(1);
    });
    CHECK(v.error() == errc::closed);
  });
}

TEST_CASE("operations are children too") {
  run([&]() -> awaitable<void> {
    asio::steady_timer never(co_await asio::this_coro::executor, 24h);
    asio::steady_timer soon(co_await asio::this_coro::executor, 0ms);
    auto v = co_await with(task_group{}, [&](task_group& g) -> awaitable<void> {
      g.spawn(never.async_wait(asio::deferred));
      g.spawn(soon.async_wait(asio::deferred));
      co_await steps(5);
      g.fail(errc::deadline);
    });
    CHECK(v.error() == errc::deadline);
    CHECK(v.errors().back().code == asio::error::operation_aborted);
  });
}

TEST_CASE("more children than the limit fail the scope") {
  int ended = 0;
  run([&]() -> awaitable<void> {
    auto v = co_await with(task_group{{.limit = 2}}, [&](task_group& g) -> awaitable<void> {
      for (int i = 0; i < 3; ++i) g.spawn(forever(ended));
      co_return;
    });
    CHECK(v.error() == errc::queue_full);
    CHECK(ended == 2);
  });
}

TEST_CASE("scopes nest and a cancellation from outside reaches every leaf, whatever its kind") {
  for (auto kind : {asio::cancellation_type::terminal, asio::cancellation_type::all}) {
    asio::io_context ctx(1);
    asio::cancellation_signal signal;
    int ended = 0, body_ended = 0;
    bool done = false;
    asio::co_spawn(
        ctx,
        [&]() -> awaitable<void> {
          auto v = co_await with(task_group{}, [&](task_group& outer) -> awaitable<void> {
            outer.spawn(forever(ended));
            outer.spawn([&]() -> awaitable<error_code> {
              auto inner = co_await with(task_group{}, [&](task_group& g) -> awaitable<void> {
                g.spawn(forever(ended));
                g.spawn(forever(ended));
                co_await forever(body_ended);
              });
              co_return inner.error();
            });
            co_return;
          });
          CHECK(v.error() == asio::error::operation_aborted);
          CHECK(ended == 3);
          CHECK(body_ended == 1);
          done = true;
        },
        asio::bind_cancellation_slot(signal.slot(), asio::detached));
    for (int i = 0; i < 20; ++i) ctx.poll_one();
    signal.emit(kind);
    ctx.restart();
    ctx.run();
    CHECK(done);
  }
}

TEST_CASE("with can be cancelled at every step") {
  for (int at = 0; at < 90; ++at) {
    asio::io_context ctx(1);
    asio::cancellation_signal signal;
    int started = 0, ended = 0;
    bool finished = false;
    asio::co_spawn(
        ctx,
        [&]() -> awaitable<void> {
          for (int round = 0; round < 3; ++round) {
            auto v = co_await with(task_group{}, [&](task_group& g) -> awaitable<void> {
              for (int i = 0; i < 3; ++i)
                g.spawn([&, i]() -> awaitable<void> {
                  ++started;
                  struct count {
                    int& n;
                    ~count() { ++n; }
                  } on_exit{ended};
                  co_await steps(i);
                });
              co_await steps(4);
            });
            CHECK(started == ended);
            if (!v) co_return;
            v = co_await with(task_group{}, [&](task_group& g) {
              for (int i = 0; i < 2; ++i) g.spawn(steps(2 + i));
            });
            if (!v) co_return;
          }
        },
        asio::bind_cancellation_slot(signal.slot(), [&](std::exception_ptr) { finished = true; }));
    for (int i = 0; i < at; ++i) ctx.poll_one();
    if (!finished && at > 0) signal.emit(asio::cancellation_type::terminal);
    ctx.run();
    CHECK(finished);
    CHECK(started == ended);
  }
}

TEST_CASE("a context destroyed at any step of a scope leaves nothing behind") {
  for (int at = 0; at < 40; ++at) {
    int alive = 0;
    struct counted {
      int& n;
      explicit counted(int& c) : n(c) { ++n; }
      counted(const counted& o) : n(o.n) { ++n; }
      ~counted() { --n; }
    };
    {
      asio::io_context ctx(1);
      asio::co_spawn(
          ctx,
          [](int& alive) -> awaitable<void> {
            counted local(alive);
            (void)co_await with(task_group{}, [c = counted(alive)](task_group& g) -> awaitable<void> {
              for (int i = 0; i < 3; ++i)
                g.spawn([i, &c]() -> awaitable<void> {
                  counted mine(c);
                  co_await steps(i * 3);
                  asio::steady_timer timer(co_await asio::this_coro::executor, 24h);
                  if (i == 1) co_await timer.async_wait(asio::deferred);
                });
              counted mine(c);
              co_await steps(8);
            });
          }(alive),
          asio::detached);
      for (int i = 0; i < at; ++i) ctx.poll_one();
    }
    CHECK(alive == 0);
  }
}

TEST_CASE("a context destroyed at any step of a scope with a plain body leaves nothing behind") {
  for (int at = 0; at < 20; ++at) {
    int alive = 0;
    {
      asio::io_context ctx(1);
      asio::co_spawn(
          ctx,
          [](int& alive) -> awaitable<void> {
            (void)co_await with(task_group{}, [c = std::make_shared<int>(0), &alive](task_group& g) {
              for (int i = 0; i < 3; ++i)
                g.spawn([i, &alive]() -> awaitable<void> {
                  struct count {
                    int& n;
                    explicit count(int& n) : n(n) { ++n; }
                    ~count() { --n; }
                  } mine(alive);
                  co_await steps(i * 3);
                });
            });
          }(alive),
          asio::detached);
      for (int i = 0; i < at; ++i) ctx.poll_one();
    }
    CHECK(alive == 0);
  }
}

TEST_CASE("a child that a cancellation from outside kept from starting makes the scope fail") {
  asio::io_context ctx(1);
  asio::cancellation_signal stop;
  bool ran = false;
  std::optional<verdict> v;
  auto scope = [&]() -> awaitable<void> {
    co_await asio::this_coro::throw_if_cancelled(false);
    v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      co_await asio::this_coro::throw_if_cancelled(false);
      asio::steady_timer never(ctx, asio::steady_timer::time_point::max());
      co_await never.async_wait(asio::as_tuple(asio::deferred));
      group.spawn([&]() -> awaitable<void> {
        ran = true;
        co_return;
      });
    });
  };
  asio::co_spawn(ctx, scope(), asio::bind_cancellation_slot(stop.slot(), asio::detached));
  ctx.poll();
  stop.emit(asio::cancellation_type::terminal);
  ctx.run();
  CHECK(!ran);
  REQUIRE(v);
  CHECK(v->error() == asio::error::operation_aborted);
  CHECK(v->errors().size() == 1);
}

TEST_CASE("a join of background tasks waits for those begun before it completes, and completes once") {
  asio::io_context ctx(1);
  detail::background tasks(ctx.get_executor());
  int ended = 0, joined = 0;
  auto task = [](int& n) -> awaitable<void> {
    ++n;
    co_return;
  };
  auto join = [&] {
    tasks.async_join([&](error_code) {
      ++joined;
      CHECK(ended == joined);
    });
  };
  join();  // when nothing runs
  tasks.spawn(task(ended));
  ctx.run();
  CHECK(joined == 1);
  asio::post(ctx, [&] {
    join();
    tasks.spawn(task(ended));  // runs, and ends, here
  });
  ctx.restart();
  ctx.run();
  CHECK(joined == 2);
}
