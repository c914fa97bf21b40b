// Windows in memory that both sides of a link have, against a peer that is made up frame by frame: what is verified where
// it lies, and what ends the link of who broke the rules.
#include <doctest/doctest.h>

#include <optional>

#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/memory_handle.hpp"
#include "cokv/runtime/net.hpp"
#include "cokv/runtime/with.hpp"
#include "kvstream/link/raw_frames.hpp"
#include "kvstream/link/shared_windows.hpp"
#include "link/link_parser.hpp"
#include "link/window_layout.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace cokv::test::shared_windows;
using namespace std::chrono_literals;

namespace {

// A peer by hand, which has greeted and was told of the window.
struct by_hand {
  byte_stream raw;
  link_parser parser;

  awaitable<void> send(bytes what) { (void)co_await asio::async_write(raw, asio::buffer(what), as_result); }
  // The next frame that is not a ping, or none.
  awaitable<std::optional<link_header>> next() {
    for (;;) {
      if (parser.at() == link_parser::state::frame) parser.next();
      while (parser.at() != link_parser::state::frame) {
        if (parser.at() == link_parser::state::place) parser.keep();
        std::byte one;
        if (!co_await raw.async_read_some(asio::buffer(&one, 1), as_result)) co_return std::nullopt;
        parser.feed({&one, 1});
      }
      if (parser.header().type != link_type::ping) co_return parser.header();
    }
  }
};

bytes in_place(link_header h, const buffer& data) {
  h.in_place = true;
  h.length = data.size();
  h.algorithm = digest_algorithm::xxh3_64;
  const auto head = encode(h);
  digest_state digest;
  digest.update(head);
  digest.update(data.bytes());
  bytes out(head.begin(), head.end());
  for (int i = 0; i < 8; ++i) out.push_back(static_cast<std::byte>(digest.value() >> (8 * i)));
  return out;
}

// What the far side, which offers a window, makes of a peer by hand.
void against(const std::function<awaitable<void>(by_hand&, window_ref, buffer)>& body, error_code ends) {
  simulated(5, [&](sim_context& context) -> awaitable<void> {
    auto ex = context.get_executor();
    window_table there(ex);
    auto door = link_listener::listen(there, place, small()).value();
    auto memory = shared_blank(window_bytes);
    auto w = there.expose({memory}, window_access::both).value();
    by_hand peer;
    peer.raw = co_await network::of(ex).async_connect(endpoint::local("/run/decode"));
    co_await peer.send(hello());
    auto link = co_await door.async_accept();
    CHECK((co_await peer.next())->type == link_type::hello);
    co_await body(peer, w.ref(), memory);
    if (ends) {
      CHECK((co_await with_deadline(link.async_closed(), 1s)).has_value());
      CHECK(link.error() == ends);
    } else {
      CHECK(!link.error());
      link.close();
    }
    peer.raw.close();
    (void)co_await link.async_closed();
    (void)co_await w.async_revoke();
  });
}

link_header open_of(window_ref w) {
  return {.type = link_type::open, .code = 1, .request = 9, .window = w.id, .generation = w.generation};
}

link_header put_of(window_ref w) {
  return {.type = link_type::put, .request = 10, .window = w.id, .generation = w.generation};
}

}  // namespace

TEST_CASE("in place: a put is verified where it lies") {
  against(
      [](by_hand& peer, window_ref w, buffer memory) -> awaitable<void> {
        co_await peer.send(frame(open_of(w)));
        const auto grant = co_await peer.next();
        CHECK(grant->type == link_type::grant);
        const auto layout = decode_layout(peer.parser.kept()).value();
        CHECK(layout.passed.size() == 1);
        CHECK(layout.pieces == std::vector{window_layout::piece{layout.passed[0], 0, window_bytes}});
        memory_handle passed;
        passed.file = peer.raw.take_attached();
        auto mapped = import_shared(passed).value();
        auto data = patterned(4096);
        std::ranges::copy(data.bytes(), mapped.data());
        co_await peer.send(in_place(put_of(w), data));
        CHECK((co_await peer.next())->code == 0);
        mapped.bytes()[100] ^= std::byte{1};  // not what was said to lie there
        co_await peer.send(in_place(put_of(w), data));
        CHECK((co_await peer.next())->code != 0);
        auto bare = put_of(w);
        bare.in_place = true;
        bare.length = 4096;
        co_await peer.send(frame(bare));  // nothing is taken unverified
        CHECK((co_await peer.next())->code != 0);
        CHECK(memory.bytes()[0] == data.bytes()[0]);
      },
      {});
}

TEST_CASE("in place: a link that breaks at our end takes nothing back from a peer that lives") {
  simulated(5, [&](sim_context& context) -> awaitable<void> {
    auto ex = context.get_executor();
    window_table there(ex);
    auto door = link_listener::listen(there, place, small()).value();
    auto memory = shared_blank(window_bytes);
    auto w = there.expose({memory}, window_access::both).value();
    by_hand peer;
    peer.raw = co_await network::of(ex).async_connect(endpoint::local("/run/decode"));
    co_await peer.send(hello());
    auto link = co_await door.async_accept();
    (void)co_await peer.next();
    co_await peer.send(frame(open_of(w.ref())));
    CHECK((co_await peer.next())->type == link_type::grant);
    co_await peer.send(frame({.type = link_type::done, .request = 77}));  // an answer to nothing
    CHECK((co_await link.async_closed(as_result)).has_value());
    bool revoked = false;
    w.async_revoke([&](error_code) { revoked = true; });
    for (int i = 0; i < 2000; ++i) peer.raw.attach(export_shared(memory)->file);  // nor do these
    bytes more(500);
    (void)co_await asio::async_write(peer.raw, asio::buffer(more), as_result);
    co_await clock::of(ex).async_wait_for(30s);
    CHECK(!revoked);
    CHECK(memory.use_count() > 1);
    peer.raw.close();
    co_await clock::of(ex).async_wait_for(1s);
    CHECK(revoked);
    CHECK(memory.use_count() == 1);
  });
}

TEST_CASE("in place: what was not granted, or may not be so, ends the link") {
  against([](by_hand& peer, window_ref w,
             buffer) -> awaitable<void> { co_await peer.send(in_place(put_of(w), patterned(100))); },
          errc::protocol);
  against(
      [](by_hand& peer, window_ref w, buffer) -> awaitable<void> {
        co_await peer.send(frame({.type = link_type::get,
                                  .request = 3,
                                  .window = w.id,
                                  .generation = w.generation,
                                  .length = 10,
                                  .in_place = true}));
      },
      errc::protocol);
  against(
      [](by_hand& peer, window_ref w, buffer) -> awaitable<void> {
        auto odd = open_of(w);
        odd.code = 3;
        co_await peer.send(frame(odd));
      },
      errc::protocol);
  against(
      [](by_hand& peer, window_ref, buffer) -> awaitable<void> {
        co_await peer.send(
            frame({.type = link_type::grant, .request = 1}, encode(window_layout{.pieces = {{0, 0, 10}}})));
      },
      errc::protocol);
  against(
      [](by_hand& peer, window_ref, buffer) -> awaitable<void> {
        co_await peer.send(frame({.type = link_type::recall, .code = 9, .request = 1}));
      },
      errc::protocol);
  against(  // recalls of what was never lent are answered, and counted
      [](by_hand& peer, window_ref, buffer) -> awaitable<void> {
        for (std::uint64_t i = 1; i <= 500; ++i)
          co_await peer.send(frame({.type = link_type::recall, .code = 1, .request = i}));
      },
      {});
}

TEST_CASE("in place: a grant that lies about its memory ends the link of who believed it") {
  const window_ref w{0, 77, window_bytes};
  auto grants = [&](window_layout layout, bool passes) -> error_code {
    error_code outcome;
    simulated(5, [&](sim_context& context) -> awaitable<void> {
      auto ex = context.get_executor();
      window_table here(ex);
      auto door = network::of(ex).listen(endpoint::local("/run/liar")).value();
      peer_link link;
      error_code failed;
      (void)co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
        group.spawn([&]() -> awaitable<void> {
          by_hand peer;
          peer.raw = co_await door.async_accept();
          CHECK((co_await peer.next())->type == link_type::hello);
          co_await peer.send(hello());
          const auto asked = co_await peer.next();
          CHECK(asked->type == link_type::open);
          auto memory = shared_blank(window_bytes);
          if (passes) peer.raw.attach(export_shared(memory)->file);
          co_await peer.send(frame({.type = link_type::grant, .request = asked->request}, encode(layout)));
          while (co_await peer.next()) continue;
          peer.raw.close();
        });
        link = co_await async_connect(here, "shm:///run/liar", small());
        failed = (co_await put(patterned(window_bytes), link, w)).error();
        link.close();
        (void)co_await link.async_closed();
      });
      outcome = failed;
    });
    return outcome;
  };
  CHECK(grants({.passed = {1}, .pieces = {{1, 0, window_bytes + 4096}}}, true) == errc::protocol);
  CHECK(grants({.passed = {1}, .pieces = {{1, 1ull << 40, 10}}}, true) == errc::protocol);
  CHECK(grants({.passed = {1}, .pieces = {{1, 0, window_bytes}}}, false) == errc::protocol);  // nothing came
  CHECK(grants({.pieces = {}}, false) == errc::protocol);
}
