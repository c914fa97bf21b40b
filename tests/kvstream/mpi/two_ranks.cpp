// Links between two ranks, as real as mpirun makes them. Started as two processes that run the same cases.
#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>

#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/with.hpp"
#include "kvstream/transfers.hpp"
#include "ranks.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace std::chrono_literals;

namespace {

auto put(peer_link& link, window_ref to, buffer from, std::uint64_t at = 0) {
  return async_flush(std::move(from), link.to(to), at, {}, completion_level::visible, as_result);
}
auto get(peer_link& link, window_ref from, buffer into, std::uint64_t at = 0) {
  return async_fetch(link.from(from), at, std::move(into), {}, as_result);
}

std::vector<buffer> pieces_of(const buffer& b, std::size_t size) {
  std::vector<buffer> out;
  for (std::size_t at = 0; at < b.size(); at += size) out.push_back(b.slice(at, std::min(size, b.size() - at)));
  return out;
}

}  // namespace

TEST_CASE("mpi: both ranks know who the other is, and messages come in order, however the loop is driven") {
  for (auto how : {driven::by_cokv_run, driven::by_context_run})
    on_both(
        {.name = own_rank() == 0 ? "near" : "far"},
        [](window_table&, peer_link& link) -> awaitable<void> {
          CHECK(link.peer().name == "far");
          CHECK(link.peer().address == "rank 1");
          for (std::size_t i = 0; i < 300; ++i)
            CHECK((co_await link.async_send(link_message(i * 200, static_cast<std::byte>(i)), as_result)).has_value());
          CHECK((co_await link.async_receive()).empty());  // all were taken
        },
        [](window_table&, peer_link& link) -> awaitable<void> {
          CHECK(link.peer().name == "near");
          for (std::size_t i = 0; i < 300; ++i)
            CHECK(co_await link.async_receive() == link_message(i * 200, static_cast<std::byte>(i)));
          co_await link.async_send({});
          CHECK((co_await link.async_receive(as_result)).error() == errc::closed);  // rank 0 leaves first
        },
        how);
}

TEST_CASE("mpi: what is put lies in the window, what is got is what lies there, whatever the pieces") {
  for (auto digest : {digest_algorithm::none, digest_algorithm::xxh3_64})
    for (std::uint32_t connections : {1u, 3u})
      for (auto [piece, chunk] : {std::pair<std::size_t, std::uint64_t>{3'000'001, 1 << 20},
                                  {100'000, 4 << 20},
                                  {20'011, 64 << 10},
                                  {999, 1 << 20}}) {
        const link_options o{.digest = digest, .connections = connections, .credits = 8, .chunk = chunk};
        const std::size_t bytes = 3'000'001;
        const auto data = patterned(bytes, piece);
        on_both(
            o,
            [&](window_table&, peer_link& link) -> awaitable<void> {
              const auto to = window_in(co_await link.async_receive());
              CHECK((co_await put(link, to, data)).has_value());
              auto back = blank(bytes), part = blank(1000);
              CHECK((co_await get(link, to, back)).has_value());
              CHECK(same(back, data));
              CHECK((co_await get(link, to, part, 70'007)).has_value());
              CHECK(same(part, data.slice(70'007, 1000)));
              // Many pieces of this side in one chunk.
              auto mixed = link.to(to).backend()->put(0, pieces_of(data, 30'001), {});
              CHECK(!co_await std::move(mixed));
              CHECK((co_await link.to(to).async_commit(as_result)).has_value());
              CHECK((co_await put(link, to, part)).error() == errc::closed);
            },
            [&](window_table& windows, peer_link& link) -> awaitable<void> {
              auto memory = blank(bytes);
              auto w = windows.expose(pieces_of(memory, piece), window_access::both).value();
              co_await link.async_send(message_of(w.ref()));
              co_await w.async_committed();
              CHECK(same(memory, data));
              CHECK(w.bytes_put() == 2 * bytes);
              (void)co_await link.async_closed();
            });
      }
}

TEST_CASE("mpi: nothing writes a window's memory after its revocation, and the link lives on") {
  for (int round = 0; round < 20; ++round)
    on_both(
        {.chunk = 256 << 10},
        [&](window_table&, peer_link& link) -> awaitable<void> {
          const auto to = window_in(co_await link.async_receive());
          const auto data = patterned(32 << 20);
          const auto cut = co_await put(link, to, data);
          CHECK((cut.has_value() || cut.error() == errc::stale_reference));
          CHECK((co_await put(link, to, data.slice(0, 10))).error() == errc::stale_reference);
          CHECK(!link.error());
          co_await link.async_send({});
          CHECK((co_await link.async_receive()).empty());
        },
        [&](window_table& windows, peer_link& link) -> awaitable<void> {
          auto memory = blank(32 << 20);
          auto w = windows.expose(pieces_of(memory, 300'000), window_access::put).value();
          co_await link.async_send(message_of(w.ref()));
          while (w.bytes_put() < static_cast<std::uint64_t>(round) << 20) co_await asio::post(asio::deferred);
          CHECK((co_await w.async_revoke(as_result)).has_value());
          CHECK(memory.use_count() == 1);
          std::ranges::fill(memory.bytes(), std::byte{0x55});
          CHECK((co_await link.async_receive()).empty());  // rank 0 has put all it wanted
          CHECK(std::ranges::all_of(memory.bytes(), [](std::byte b) { return b == std::byte{0x55}; }));
          co_await link.async_send({});
          (void)co_await link.async_closed();
        });
}

TEST_CASE("mpi: who does not take messages holds the sender up, not the puts") {
  on_both(
      {.credits = 1, .messages = 2},
      [](window_table&, peer_link& link) -> awaitable<void> {
        const auto to = window_in(co_await link.async_receive());
        int taken = 0;
        for (; taken < 10; ++taken)
          if (!co_await with_deadline(link.async_send({}), 50ms)) break;
        CHECK(taken == 2);
        CHECK((co_await put(link, to, patterned(5 << 20))).has_value());
        CHECK((co_await link.to(to).async_commit(as_result)).has_value());
        CHECK((co_await link.async_send({}, as_result)).has_value());  // there is room again
        (void)co_await link.async_closed();
      },
      [](window_table& windows, peer_link& link) -> awaitable<void> {
        auto w = windows.expose({blank(5 << 20)}, window_access::put).value();
        co_await link.async_send(message_of(w.ref()));
        co_await w.async_committed();
        for (int i = 0; i < 3; ++i) co_await link.async_receive();
      });
}

TEST_CASE("mpi: a peer that leaves in the middle is an error to what is under way, and nothing is left of it") {
  const auto data = patterned(64 << 20);
  on_both(
      {.chunk = 1 << 20},
      [&](window_table&, peer_link& link) -> awaitable<void> {
        const auto to = window_in(co_await link.async_receive());
        CHECK((co_await put(link, to, data)).error() == errc::closed);
        CHECK((co_await link.async_closed(as_result)).has_value());
        CHECK(link.error() == errc::closed);
        CHECK((co_await put(link, to, data)).error() == errc::closed);
      },
      [&](window_table& windows, peer_link& link) -> awaitable<void> {
        auto memory = blank(64 << 20);
        auto w = windows.expose({memory}, window_access::put).value();
        co_await link.async_send(message_of(w.ref()));
        while (w.bytes_put() == 0) co_await asio::post(asio::deferred);
        link.close();
        co_await link.async_closed();
        w = {};
        CHECK(memory.use_count() == 1);
      });
  while (data.use_count() > 1) run_body([]() -> awaitable<void> { co_return; }());
}

TEST_CASE("mpi: a cancelled put ends when what has begun has, and the link lives on") {
  for (int round = 0; round < 10; ++round)
    on_both(
        {.credits = 16, .chunk = 64 << 10},
        [&](window_table&, peer_link& link) -> awaitable<void> {
          const auto to = window_in(co_await link.async_receive());
          const auto data = patterned(16 << 20);
          auto cut = co_await with_deadline(async_flush(data, link.to(to), 0), std::chrono::microseconds(1 << round));
          CHECK((cut.has_value() || cut.error() == errc::deadline));
          CHECK((co_await put(link, to, data)).has_value());
          CHECK((co_await link.to(to).async_commit(as_result)).has_value());
          CHECK((co_await link.async_receive()).empty());
        },
        [&](window_table& windows, peer_link& link) -> awaitable<void> {
          auto memory = blank(16 << 20);
          auto w = windows.expose({memory}, window_access::put).value();
          co_await link.async_send(message_of(w.ref()));
          co_await w.async_committed();
          CHECK(same(memory, patterned(16 << 20)));
          co_await link.async_send({});
          (void)co_await link.async_closed();
        });
}

TEST_CASE("mpi: a peer that stands still is gone after the silence, and the next link works") {
  const link_options o{.chunk = 1 << 20, .silence = 400ms};
  on_both(
      o,
      [&](window_table&, peer_link& link) -> awaitable<void> {
        const auto to = window_in(co_await link.async_receive());
        pid_t peer = 0;
        const auto m = co_await link.async_receive();
        std::memcpy(&peer, m.data(), sizeof peer);
        ::kill(peer, SIGSTOP);
        auto data = patterned(16 << 20);
        CHECK((co_await put(link, to, data)).error() == errc::unavailable);
        CHECK((co_await link.async_closed(as_result)).has_value());
        ::kill(peer, SIGCONT);
      },
      [&](window_table& windows, peer_link& link) -> awaitable<void> {
        auto memory = blank(16 << 20);
        auto w = windows.expose({memory}, window_access::put).value();
        co_await link.async_send(message_of(w.ref()));
        const auto me = ::getpid();
        link_message m(sizeof me);
        std::memcpy(m.data(), &me, sizeof me);
        co_await link.async_send(m);
        co_await link.async_closed();
        CHECK(link.error());
        CHECK((co_await w.async_revoke(as_result)).has_value());
      });
  on_both(
      o,
      [](window_table&, peer_link& link) -> awaitable<void> {
        const auto to = window_in(co_await link.async_receive());
        CHECK((co_await put(link, to, patterned(3 << 20))).has_value());
      },
      [](window_table& windows, peer_link& link) -> awaitable<void> {
        auto w = windows.expose({blank(3 << 20)}, window_access::put).value();
        co_await link.async_send(message_of(w.ref()));
        (void)co_await link.async_closed();
        CHECK(w.bytes_put() == 3 << 20);
      });
}

TEST_CASE("mpi: links both ways and to oneself, at once") {
  run_body([]() -> awaitable<void> {
    auto ex = co_await asio::this_coro::executor;
    window_table windows(ex);
    auto memory = blank(1 << 20);
    auto w = windows.expose({memory}, window_access::both).value();
    auto door = link_listener::listen(windows, "mpi://").value();
    CHECK((door.url() == "mpi://0" || door.url() == "mpi://1"));
    CHECK(link_listener::listen(windows, "mpi://").error() == errc::in_use);
    CHECK((co_await async_connect(windows, "mpi://2", {}, as_result)).error() == errc::invalid_argument);
    std::vector<peer_link> made, taken;
    auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      for (int to : {0, 1, 0, 1}) {
        group.spawn([&, to]() -> awaitable<void> {
          made.push_back(co_await connect_to(windows, "mpi://" + std::to_string(to), {}));
        });
        group.spawn([&]() -> awaitable<void> { taken.push_back(co_await door.async_accept()); });
      }
      co_return;
    });
    CHECK(!v.error());
    CHECK(made.size() + taken.size() == 8);
    for (auto& link : taken) co_await link.async_send(message_of(w.ref()));
    for (auto& link : made) {
      const auto to = window_in(co_await link.async_receive());
      CHECK((co_await put(link, to, patterned(1 << 20))).has_value());
    }
    for (auto& link : made) co_await link.async_send({});
    for (auto& link : taken) CHECK((co_await link.async_receive()).empty());
    CHECK(same(memory, patterned(1 << 20)));
  }());
}

// The same memory over and over, so that the test costs no gigabytes; the last piece is its own.
TEST_CASE("mpi: one put of more than 2 GiB") {
  constexpr std::size_t piece = 64 << 20, times = 33, rest = 1'000'003, bytes = piece * times + rest;
  const auto repeated = [](const buffer& b, const buffer& last) {
    std::vector<buffer> pieces(times, b);
    pieces.push_back(last);
    return pieces;
  };
  on_both(
      {.chunk = 64 << 20, .silence = 60s},
      [&](window_table&, peer_link& link) -> awaitable<void> {
        const auto to = window_in(co_await link.async_receive());
        CHECK(to.size == bytes);
        CHECK(!co_await link.to(to).backend()->put(0, repeated(patterned(piece, 1), patterned(rest, 2)), {}));
        CHECK((co_await link.to(to).async_commit(as_result)).has_value());
        (void)co_await link.async_closed();
      },
      [&](window_table& windows, peer_link& link) -> awaitable<void> {
        auto memory = blank(piece), last = blank(rest);
        auto w = windows.expose(repeated(memory, last), window_access::put).value();
        co_await link.async_send(message_of(w.ref()));
        CHECK((co_await w.async_committed(as_result)).has_value());
        CHECK(w.bytes_put() == bytes);
        CHECK(same(memory, patterned(piece, 1)));
        CHECK(same(last, patterned(rest, 2)));
      });
}
