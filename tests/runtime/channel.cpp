#include "cokv/runtime/channel.hpp"

#include <doctest/doctest.h>

#include <boost/asio/use_future.hpp>
#include <memory>
#include <vector>

#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"

using namespace cokv;

namespace {

awaitable<void> send_all(channel<int>& ch, int from, int n) {
  for (int i = 0; i < n; ++i) co_await ch.async_send(from + i);
}

}  // namespace

TEST_CASE("a channel is first in first out and bounded") {
  asio::io_context ctx(1);
  channel<std::unique_ptr<int>> ch(ctx.get_executor(), 2);
  CHECK(ch.try_send(std::make_unique<int>(1)));
  CHECK(ch.try_send(std::make_unique<int>(2)));
  auto third = std::make_unique<int>(3);
  CHECK(!ch.try_send(std::move(third)));
  REQUIRE(third);  // a refused value is left as it was
  CHECK(**ch.try_receive() == 1);
  CHECK(ch.try_send(std::move(third)));
  CHECK(**ch.try_receive() == 2);
  CHECK(**ch.try_receive() == 3);
  CHECK(!ch.try_receive());
}

TEST_CASE("senders wait for room and keep their turn, with any capacity") {
  for (std::size_t capacity : {0, 1, 2, 7}) {
    asio::io_context ctx(1);
    channel<int> ch(ctx.get_executor(), capacity);
    std::vector<int> got;
    asio::co_spawn(
        ctx,
        [&]() -> awaitable<void> {
          auto v = co_await with(task_group{}, [&](task_group& g) -> awaitable<void> {
            g.spawn([&]() -> awaitable<void> {
              co_await send_all(ch, 0, 100);
              ch.close();
            });
            g.spawn([&]() -> awaitable<void> {
              while (auto x = co_await ch.async_receive(as_result)) got.push_back(*x);
            });
            co_return;
          });
          CHECK(v);
        },
        asio::detached);
    ctx.run();
    REQUIRE(got.size() == 100);
    for (int i = 0; i < 100; ++i) CHECK(got[i] == i);
  }
}

TEST_CASE("close keeps what is buffered, then everyone learns of it") {
  asio::io_context ctx(1);
  channel<int> ch(ctx.get_executor(), 2);
  ch.try_send(1);
  ch.try_send(2);
  error_code waiting;
  ch.async_send(3, [&](error_code ec) { waiting = ec; });
  ch.close();
  std::vector<int> got;
  error_code end, late;
  for (int i = 0; i < 3; ++i) ch.async_receive([&](error_code ec, int v) { ec ? void(end = ec) : got.push_back(v); });
  ch.async_send(4, [&](error_code ec) { late = ec; });
  ctx.run();
  CHECK(waiting == errc::closed);
  CHECK(late == errc::closed);
  CHECK(end == errc::closed);
  CHECK(got == std::vector<int>{1, 2});
  CHECK(!ch.try_send(5));
  CHECK(!ch.is_open());
}

TEST_CASE("a waiting receiver is closed, not forgotten") {
  asio::io_context ctx(1);
  channel<int> ch(ctx.get_executor(), 2);
  error_code end;
  ch.async_receive([&](error_code ec, int) { end = ec; });
  ctx.poll();
  ch.close();
  ctx.restart();
  ctx.run();
  CHECK(end == errc::closed);
}

TEST_CASE("a channel takes every completion token") {
  asio::io_context ctx(1);
  channel<int> ch(ctx.get_executor(), 1);
  int callback = 0, coroutine = 0;
  auto future = ch.async_receive(asio::use_future);
  ch.async_receive([&](error_code ec, int v) { callback = ec ? -1 : v; });
  asio::co_spawn(
      ctx,
      [&]() -> awaitable<void> {
        coroutine += co_await ch.async_receive();
        coroutine += co_await ch.async_receive(asio::use_awaitable);
        auto [ec, v] = co_await ch.async_receive(asio::as_tuple(asio::deferred));
        CHECK(!ec);
        coroutine += v;
      },
      asio::detached);
  asio::co_spawn(ctx, send_all(ch, 1, 5), asio::detached);
  ctx.run();
  CHECK(future.get() == 1);
  CHECK(callback == 2);
  CHECK(coroutine == 3 + 4 + 5);
}

TEST_CASE("a cancelled sender or receiver leaves the queue and takes nothing") {
  for (auto kind :
       {asio::cancellation_type::terminal, asio::cancellation_type::partial, asio::cancellation_type::total}) {
    asio::io_context ctx(1);
    channel<int> ch(ctx.get_executor(), 1);
    asio::cancellation_signal receive, send;
    error_code received, sent;
    int first = 0;
    ch.async_receive(asio::bind_cancellation_slot(receive.slot(), [&](error_code ec, int) { received = ec; }));
    receive.emit(kind);
    ch.try_send(1);
    ch.async_send(2, asio::bind_cancellation_slot(send.slot(), [&](error_code ec) { sent = ec; }));
    send.emit(kind);
    ch.async_receive([&](error_code, int v) { first = v; });
    ctx.run();
    CHECK(received == asio::error::operation_aborted);
    CHECK(sent == asio::error::operation_aborted);
    CHECK(first == 1);
    CHECK(ch.size() == 0);
    CHECK(!ch.try_receive());
  }
}

TEST_CASE("a channel or a context destroyed under waiters leaves nothing behind") {
  asio::io_context ctx(1);
  error_code received, sent;
  {
    channel<int> empty(ctx.get_executor(), 1), full(ctx.get_executor(), 0);
    empty.async_receive([&](error_code ec, int) { received = ec; });
    full.async_send(1, [&](error_code ec) { sent = ec; });
  }
  ctx.run();
  CHECK(received == asio::error::operation_aborted);
  CHECK(sent == asio::error::operation_aborted);

  auto alive = std::make_shared<int>();
  {
    asio::io_context gone(1);
    channel<int> ch(gone.get_executor(), 0);
    asio::co_spawn(
        gone, [](std::shared_ptr<int> a, channel<int>& c) -> awaitable<void> { co_await c.async_receive(); }(alive, ch),
        asio::detached);
    asio::co_spawn(
        gone,
        [](std::shared_ptr<int> a) -> awaitable<void> {
          channel<int> own(co_await asio::this_coro::executor, 0);
          co_await own.async_send(1);
        }(alive),
        asio::detached);
    gone.poll();
    CHECK(alive.use_count() == 3);
  }
  CHECK(alive.use_count() == 1);
}
