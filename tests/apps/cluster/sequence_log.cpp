#include "cluster/sequence_log.hpp"

#include "cokv/runtime/error.hpp"
#include "cokv/runtime/with.hpp"
#include "support/co_test.hpp"

using namespace cokv;
using namespace cokv::cluster;
using namespace cokv::test;
using namespace std::chrono_literals;

namespace {

generated token(token_id t) { return {.token = t, .text = std::to_string(t)}; }

awaitable<void> pause(duration d) {
  co_await clock::of(co_await asio::this_coro::executor).async_wait_for(d, asio::deferred);
}

// All that is read until the end, as "0:a 1:b end".
awaitable<std::string> all_of(sequence_log::reader reader) {
  std::string out;
  for (;;) {
    auto next = co_await reader.next();
    if (!next) {
      if (next.error() != asio::error::eof) out += next.error().message();
      co_return out;
    }
    if (const auto* p = std::get_if<piece>(&*next))
      out += std::to_string(p->index) + ':' + p->what.text + ' ';
    else
      out += std::get<ending>(*next).code ? "error " : "end ";
  }
}

}  // namespace

TEST_CASE("sequence_log: a reader has every piece once and in order, from where it asks, also behind the end") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    sequence_log log(ex);
    std::string first, late;
    auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      group.spawn([&]() -> awaitable<void> { first = co_await all_of(log.read(0)); });
      for (token_id t = 10; t < 14; ++t) {
        co_await pause(t % 2 == 0 ? 1ms : 0ms);
        log.add(token(t));
      }
      co_await pause(1ms);
      log.end({});
      log.add(token(99));
      log.end({errc::closed, "late"});
    });
    CHECK(bool(v));
    CHECK(first == "0:10 1:11 2:12 3:13 end ");
    CHECK(log.pieces() == 4);
    CHECK(co_await all_of(log.read(2)) == "2:12 3:13 end ");
    CHECK(co_await all_of(log.read(4)) == "end ");
    CHECK(!log.being_read());
  });
}

TEST_CASE("sequence_log: a newer reader ends the one before, and loses nothing to it") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    sequence_log log(ex);
    log.add(token(1));
    std::string old, newer;
    auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      group.spawn([&]() -> awaitable<void> { old = co_await all_of(log.read(0)); });
      co_await pause(1ms);
      group.spawn([&]() -> awaitable<void> { newer = co_await all_of(log.read(0)); });
      co_await pause(1ms);
      log.add(token(2));
      co_await pause(1ms);
      log.end({errc::unavailable, "gone"});
    });
    CHECK(bool(v));
    CHECK(old == "0:1 " + make_error_code(errc::closed).message());
    CHECK(newer == "0:1 1:2 error ");
  });
}

TEST_CASE("sequence_log: a sequence is orphaned when nobody reads it for so long, and not before") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto& time = clock::of(ex);
        sequence_log log(ex);
        const auto start = time.now();
        auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
          group.spawn([&]() -> awaitable<void> {
            co_await pause(8s);
            auto reader = log.read(0);
            co_await pause(30s);
          });
          co_await log.until_unread(10s);
          CHECK(time.now() - start == 48s);
        });
        CHECK(bool(v));
        co_await log.until_unread(5s);  // long since
        CHECK(time.now() - start == 48s);
        {
          auto reader = log.read(0);
        }
        v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
          group.spawn([&]() -> awaitable<void> {
            co_await pause(1s);
            log.end({});
          });
          co_await log.until_unread(10s, sequence_log::until::unread_or_ended);
          CHECK(time.now() - start == 49s);
          co_await log.until_unread(10s, sequence_log::until::unread_or_ended);
          CHECK(time.now() - start == 49s);
          co_await log.until_unread(10s);  // what has ended is kept for a retry
          CHECK(time.now() - start == 58s);
          {
            auto reader = log.read(0);
          }
          log.forget();
          co_await log.until_unread(10s);
          CHECK(time.now() - start == 58s);
        });
        CHECK(bool(v));
      },
      {.real = false});
}

TEST_CASE("sequence_log: a reader outlives its log, and learns of its end") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto log = std::make_unique<sequence_log>(ex);
    log->add(token(1));
    std::string read;
    auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      group.spawn([&]() -> awaitable<void> { read = co_await all_of(log->read(0)); });
      co_await pause(1ms);
      log.reset();
    });
    CHECK(bool(v));
    CHECK(read == "0:1 " + make_error_code(errc::closed).message());
  });
}

TEST_CASE("sequence_log: cancelled or destroyed at any step it leaves no reader behind") {
  auto body = [](asio::any_io_executor ex) -> awaitable<void> {
    sequence_log log(ex);
    auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      group.spawn([&]() -> awaitable<void> { (void)co_await all_of(log.read(0)); });
      group.spawn(log.until_unread(1s, sequence_log::until::unread_or_ended));
      for (token_id t = 0; t < 3; ++t) {
        co_await pause(1ms);
        log.add(token(t));
      }
      log.end({});
    });
    CHECK(!log.being_read());
  };
  cancel_at_every_step(body, {.real = false});
  destroy_at_every_step(body, {.real = false});
}
