// Windows that both sides of a link have in memory: who puts or gets copies by itself. What is called back is not
// touched any more, and who stands still holds what it has.
#include <doctest/doctest.h>

#include <fstream>
#include <optional>

#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/sim_node.hpp"
#include "cokv/runtime/with.hpp"
#include "kvstream/link/shared_windows.hpp"
#include "link/window_layout.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace cokv::test::shared_windows;
using namespace std::chrono_literals;
using namespace cokv::detail;

TEST_CASE("window_layout: reads back as written, and nothing else is read") {
  const window_layout layout{.forgotten = {7}, .passed = {8, 9}, .pieces = {{8, 4096, 100}, {9, 0, 1}}};
  const auto bytes = encode(layout);
  CHECK(decode_layout(bytes).value() == layout);
  for (std::size_t n = 0; n < bytes.size(); ++n) CHECK(!decode_layout(std::span(bytes).first(n)));
  auto longer = bytes;
  longer.push_back({});
  CHECK(decode_layout(longer).error() == errc::protocol);
  auto refused = [](window_layout l) { return decode_layout(encode(l)).error() == errc::protocol; };
  CHECK(refused({}));                           // no bytes at all
  CHECK(refused({.pieces = {{1, 0, 0}}}));      // none of a piece
  CHECK(refused({.pieces = {{1, ~0ull, 2}}}));  // beyond all memory
  CHECK(refused({.pieces = {{1, 0, 1ull << 63}, {1, 0, 1ull << 63}}}));
  CHECK(refused({.passed = std::vector<std::uint32_t>(257), .pieces = {{1, 0, 1}}}));
  auto many = bytes;
  many[0] = std::byte{0xff};  // counts beyond what there is
  CHECK(decode_layout(many).error() == errc::protocol);
}

TEST_CASE("in place: puts and gets of any cut, into scattered memory, with and without digests") {
  for (auto digest : {digest_algorithm::none, digest_algorithm::xxh3_64})
    simulated(20, [&](sim_context& context) -> awaitable<void> {
      auto ex = context.get_executor();
      window_table here(ex), there(ex);
      auto o = small();
      o.digest = digest;
      auto door = link_listener::listen(there, place, o).value();
      auto near = co_await async_connect(here, std::string(place), o);
      auto far = co_await door.async_accept();
      // Two memories, pieces out of order, some smaller than what is streamed.
      auto first = shared_blank(200'000), second = shared_blank(200'000);
      std::vector<buffer> pieces{second.slice(1000, 100'000), first.slice(0, 3), first.slice(5000, 150'000),
                                 second.slice(0, 1000)};
      std::uint64_t size = 0;
      for (auto& p : pieces) size += p.size();
      auto w = there.expose(pieces, window_access::both).value();
      auto data = patterned(size, context.seed()), back = blank(size);
      for (std::uint64_t at = 0; at < size;) {
        const auto n = std::min<std::uint64_t>(size - at, 1 + context.below(60'000));
        CHECK((co_await put(data.slice(at, n), near, w.ref(), at)).has_value());
        at += n;
      }
      CHECK(w.bytes_put() == size);
      std::uint64_t at = 0;
      for (auto& p : pieces) {
        CHECK(same(p.bytes(), data.slice(at, p.size()).bytes()));
        at += p.size();
      }
      CHECK(all(first.slice(3, 4997), std::byte{0xdd}));
      CHECK((co_await async_fetch(near.from(w.ref()), 0, back, {}, as_result)).has_value());
      CHECK(same(back.bytes(), data.bytes()));
      CHECK(w.bytes_got() == size);
      CHECK((co_await put(data.slice(0, 10), near, w.ref(), size - 9)).error() == errc::out_of_range);
      auto lying = w.ref();
      lying.size += 1000;
      CHECK((co_await put(data.slice(0, 10), near, lying, size)).error() == errc::out_of_range);
      lying = w.ref();
      ++lying.generation;
      CHECK((co_await put(data, near, lying)).error() == errc::stale_reference);
      auto guarded = there.expose({first}, window_access::get).value();
      CHECK((co_await put(data.slice(0, 1000), near, guarded.ref())).error() == errc::permission_denied);
      CHECK(!near.error());
      near.close();
      (void)co_await near.async_closed();
      (void)co_await far.async_closed();
      (void)co_await w.async_revoke();
      pieces.clear();
      guarded = {};
      CHECK(first.use_count() == second.use_count());
    });
}

TEST_CASE("in place: once a revocation is complete nothing is written; a commit waits for everybody who writes") {
  std::size_t cut_off = 0;
  simulated(200, [&](sim_context& context) -> awaitable<void> {
    auto ex = context.get_executor();
    window_table one(ex), two(ex), there(ex);
    auto door = link_listener::listen(there, place, small()).value();
    auto a = co_await async_connect(one, std::string(place), small());
    auto at_a = co_await door.async_accept();
    auto b = co_await async_connect(two, std::string(place), small());
    auto at_b = co_await door.async_accept();
    auto memory = shared_blank(window_bytes), data = patterned(window_bytes), back = blank(window_bytes);
    auto w = there.expose({memory}, window_access::both).value();
    const auto ref = w.ref();
    const bool commits = context.chance(0.5);
    // Small ones are copied by who asks for them, once the window is known to be lent.
    const std::size_t each = context.chance(0.5) ? window_bytes : window_bytes / 50, most = 3 * window_bytes / each;
    std::size_t ended = 0;
    (void)co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      for (auto* link : {&a, &b})
        group.spawn([&, link]() -> awaitable<void> {
          result<transferred> done = transferred{};
          for (std::size_t i = 0; i < most && done; ++i) {
            const auto at = i * each % (window_bytes - each + 1);
            done = co_await put(data.slice(at, each), *link, ref, at);
          }
          cut_off += !done;
          if (!done) CHECK(done.error() == (commits ? errc::closed : errc::stale_reference));
          ++ended;
        });
      group.spawn([&]() -> awaitable<void> {
        result<transferred> got = transferred{};
        for (std::size_t at = 0; at + each <= window_bytes && got; at += each)
          got = co_await async_fetch(a.from(ref), at, back.slice(at, each), {}, as_result);
        // Bytes that were written while they were got are not what their owner saw.
        if (!got) CHECK((got.error() == errc::stale_reference || got.error() == errc::digest_mismatch));
        ++ended;
      });
      co_await clock::of(ex).async_wait_for(duration(context.below(3'000'000)));
      if (commits) {
        CHECK((co_await a.to(ref).async_commit(as_result)).has_value());
        CHECK((co_await w.async_committed(as_result)).has_value());
        CHECK(w.committed());
      } else {
        CHECK((co_await w.async_revoke(as_result)).has_value());
      }
      std::ranges::fill(memory.bytes(), std::byte{0x55});
      while (ended < 3) co_await clock::of(ex).async_wait_for(1ms);
      CHECK(all(memory, std::byte{0x55}));
    });
    CHECK((!a.error() && !b.error()));
    a.close();
    b.close();
    (void)co_await at_a.async_closed();
    (void)co_await at_b.async_closed();
  });
  CHECK((one_seed() || cut_off > 100));
}

TEST_CASE("in place: a peer that stands still keeps what it was lent until it dies or goes on; transfers end before") {
  for (const bool dies : {true, false})
    simulated(20, [&](sim_context& context) -> awaitable<void> {
      auto ex = context.get_executor();
      window_table there(ex);
      auto door = link_listener::listen(there, place, small()).value();
      auto memory = shared_blank(window_bytes);
      auto w = there.expose({memory}, window_access::both).value();
      std::optional<sim::node> peer;
      auto writes = [&, ref = w.ref()](asio::any_io_executor on) -> awaitable<void> {
        window_table own(on);
        auto link = co_await async_connect(own, std::string(place), small());
        auto data = patterned(window_bytes);
        while (co_await put(data, link, ref)) continue;
        (void)co_await link.async_closed(as_result);
      };
      peer.emplace(context, "peer", [&](auto on) { asio::co_spawn(on, writes(on), asio::detached); });
      auto link = co_await door.async_accept();
      while (w.bytes_put() < 3 * window_bytes) co_await clock::of(ex).async_wait_for(1ms);
      peer->pause();
      CHECK((co_await link.async_closed(as_result)).has_value());
      CHECK(link.error() == errc::unavailable);
      bool revoked = false;
      w.async_revoke([&](error_code) { revoked = true; });
      co_await clock::of(ex).async_wait_for(60s);
      CHECK(!revoked);
      CHECK(memory.use_count() > 1);  // in quarantine
      dies ? peer->kill() : peer->resume();
      co_await clock::of(ex).async_wait_for(10s);
      CHECK(revoked);
      CHECK(memory.use_count() == 1);
      std::ranges::fill(memory.bytes(), std::byte{0x55});
      co_await clock::of(ex).async_wait_for(10s);
      CHECK(all(memory, std::byte{0x55}));
      door.close();
    });
}

TEST_CASE("in place: a grant that was asked for before a commit is none for what is asked for after it") {
  std::size_t cancelled = 0;
  simulated(200, [&](sim_context& context) -> awaitable<void> {
    auto ex = context.get_executor();
    window_table here(ex), there(ex);
    auto door = link_listener::listen(there, place, small()).value();
    auto near = co_await async_connect(here, std::string(place), small());
    auto far = co_await door.async_accept();
    auto memory = shared_blank(window_bytes), data = patterned(window_bytes);
    auto w = there.expose({memory}, window_access::put).value();
    const auto ref = w.ref();
    asio::cancellation_signal stop;
    std::optional<error_code> first, second;
    async_flush(data, near.to(ref), 0, {}, completion_level::visible,
                asio::bind_cancellation_slot(stop.slot(), [&](error_code ec, transferred) { first = ec; }));
    co_await clock::of(ex).async_wait_for(duration(context.below(60'000)));
    stop.emit(asio::cancellation_type::terminal);
    near.to(ref).async_commit([](error_code) {});
    async_flush(data, near.to(ref), 0, {}, completion_level::visible, [&](error_code ec, transferred) { second = ec; });
    CHECK((co_await w.async_committed(as_result)).has_value());
    std::ranges::fill(memory.bytes(), std::byte{0x55});
    while (!first || !second) co_await clock::of(ex).async_wait_for(1ms);
    cancelled += *first == asio::error::operation_aborted;
    CHECK(*second == errc::closed);
    CHECK(all(memory, std::byte{0x55}));
    near.close();
    (void)co_await far.async_closed();
  });
  CHECK((one_seed() || cancelled > 50));
}

TEST_CASE("in place: what is got after goodbye was said is nothing, whatever lies there by then") {
  for (auto digest : {digest_algorithm::none, digest_algorithm::xxh3_64})
    simulated(200, [&](sim_context& context) -> awaitable<void> {
      auto ex = context.get_executor();
      window_table here(ex), there(ex);
      auto o = small();
      o.digest = digest;
      auto door = link_listener::listen(there, place, o).value();
      auto near = co_await async_connect(here, std::string(place), o);
      auto far = co_await door.async_accept();
      auto memory = shared_blank(window_bytes), back = blank(window_bytes);
      auto w = there.expose({memory}, window_access::get).value();
      const auto ref = w.ref();
      CHECK((co_await async_fetch(near.from(ref), 0, back, {}, as_result)).has_value());
      std::optional<error_code> ended;
      async_fetch(near.from(ref), 0, back, {}, [&](error_code ec, transferred) { ended = ec; });
      co_await clock::of(ex).async_wait_for(duration(context.below(400'000)));
      near.close();
      CHECK((co_await far.async_closed(as_result)).has_value());
      CHECK((co_await w.async_revoke(as_result)).has_value());
      std::ranges::fill(memory.bytes(), std::byte{0x99});
      while (!ended) co_await clock::of(ex).async_wait_for(1ms);
      if (!*ended) CHECK(all(back, std::byte{0xdd}));
      CHECK(std::ranges::count(back.bytes(), std::byte{0x99}) == 0);
    });
}

TEST_CASE("in place: memory that is gone is unmapped at the peer with the next grant") {
  simulated(5, [&](sim_context& context) -> awaitable<void> {
    auto ex = context.get_executor();
    window_table here(ex), there(ex);
    auto door = link_listener::listen(there, place, small()).value();
    auto near = co_await async_connect(here, std::string(place), small());
    auto far = co_await door.async_accept();
    auto maps = [] {
      std::size_t n = 0;
      std::ifstream in("/proc/self/maps");
      for (std::string line; std::getline(in, line);) n += line.find("memfd:cokv") != line.npos;
      return n;
    };
    const auto before = maps();
    auto data = patterned(window_bytes);
    for (int i = 0; i < 20; ++i) {
      auto memory = shared_blank(window_bytes);
      auto w = there.expose({memory}, window_access::put).value();
      CHECK((co_await put(data, near, w.ref())).has_value());
      CHECK(same(data.bytes(), memory.bytes()));
      (void)co_await w.async_revoke();
    }
    CHECK(maps() <= before + 2);
  });
}
