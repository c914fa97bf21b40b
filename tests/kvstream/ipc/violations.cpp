// Peers that say what isn't so about memory of a device, on fake_cuda: their link ends, or the bytes go another way, and
// nothing is written elsewhere.
#include <functional>

#include "cokv/runtime/net.hpp"
#include "ipc/two_sides.hpp"
#include "kvstream/link/raw_frames.hpp"
#include "link/link_parser.hpp"
#include "link/window_layout.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

constexpr std::size_t n = 80'000;

struct by_hand {
  byte_stream raw;
  link_parser parser;

  awaitable<void> send(bytes what) { (void)co_await asio::async_write(raw, asio::buffer(what), as_result); }
  awaitable<link_header> next() {
    for (;;) {
      if (parser.at() == link_parser::state::frame) parser.next();
      while (parser.at() != link_parser::state::frame) {
        if (parser.at() == link_parser::state::place) parser.keep();
        std::byte one;
        if (!co_await raw.async_read_some(asio::buffer(&one, 1), as_result)) co_return link_header{};
        parser.feed({&one, 1});
      }
      if (parser.header().type != link_type::ping) co_return parser.header();
    }
  }
};

using grants = std::function<window_layout(const memory_handle& real)>;

// What near makes of a window whose owner answers `open` so, and then does `after`.
struct outcome {
  error_code put, link;
  link_header heard;
  bool untouched = false;
};
outcome against(const grants& what, link_options o = bare(), bool answers_early = false) {
  start_machine(5);
  outcome out;
  {
    two_sides m;
    auto pool = m.far->memory(n, 1), before = m.far->memory(n, 1), data = m.near->memory(n, 2);
    if (o.digest != digest_algorithm::none) {  // what is in the device's memory here would not be asked for in place
      data = buffer::host(n);
      std::memset(data.data(), 2, n);
    }
    auto real = m.far->gpu.export_memory(pool).value();
    const auto at = some_place();
    auto door = network::of(m.far->ctx.get_executor()).listen(endpoint::local(at.substr(6))).value();
    bool connected = false, told = false;
    ending end;
    by_hand peer;
    auto liar = [&]() -> awaitable<void> {
      peer.raw = co_await door.async_accept();
      CHECK((co_await peer.next()).type == link_type::hello);
      co_await peer.send(hello());
      const auto asked = co_await peer.next();
      CHECK(asked.type == link_type::open);
      co_await peer.send(frame({.type = link_type::grant, .request = asked.request}, encode(what(real))));
      told = true;
      if (answers_early)  // what is copied now has the next number, in the same place
        co_await peer.send(frame({.type = link_type::done, .request = asked.request + (std::uint64_t{1} << 32)}));
      out.heard = co_await peer.next();
    };
    bool over = false;
    asio::co_spawn(m.far->ctx, liar(), [&](std::exception_ptr e) {
      over = true;
      CHECK(!e);
    });
    async_connect(m.near->windows, at, o, [&](error_code ec, peer_link l) { connected = !ec, m.near->link = l; });
    REQUIRE(m.drive([&] { return connected; }));
    put(m, data, {0, 77, n}, 0, end);
    CHECK(m.drive([&] { return over; }, !answers_early));
    ending closed;
    if (out.heard.type == link_type::goodbye) {
      m.near->link.async_closed(closed.token());
      peer.raw.shutdown_send();
      CHECK(m.drive([&] { return closed.over; }));
    }
    out.link = m.near->link.error();
    out.untouched = same(pool, before);
    m.near->link.close();
    peer.raw.close();
    CHECK(m.drive([&] { return end.over; }));
    out.put = end.ec;
    m.rest();
  }
  check_clean();
  return out;
}

window_layout one(const memory_handle& h, std::uint64_t whole, std::uint64_t offset = 0, std::uint64_t size = n) {
  return {.forgotten = {}, .passed = {}, .pieces = {{1, offset, size}}, .opened = {{1, whole, h.ipc}}};
}

}  // namespace

TEST_CASE("window_layout: handles of a device's memory read back as written, and nothing else is read") {
  window_layout layout{
      .forgotten = {7}, .passed = {8}, .pieces = {{8, 4096, 100}, {9, 0, 1}}, .opened = {{9, 4096, {}}}};
  layout.opened[0].ipc[63] = std::byte{5};
  layout.opened.push_back({10, 1, {}});
  const auto all = encode(layout);
  CHECK(decode_layout(all).value() == layout);
  auto without = layout;
  without.opened = {};
  const auto shortest = encode(without).size();
  for (std::size_t i = 0; i < all.size(); ++i)
    CHECK(decode_layout(std::span(all).first(i)).has_value() == (i == shortest));
  layout.opened.resize(257);
  CHECK(decode_layout(encode(layout)).error() == errc::protocol);
  auto none = encode(without);
  none.resize(none.size() + 4);  // a count of nothing
  CHECK(decode_layout(none).error() == errc::protocol);
}

TEST_CASE("cuda_ipc: fake_cuda: a handle that doesn't open is as good as a refusal") {
  const auto got = against([](const memory_handle& h) {
    auto l = one(h, h.whole);
    l.opened[0].ipc = {};
    return l;
  });
  CHECK(got.heard.type == link_type::put);
  CHECK(got.heard.has_payload());
  CHECK(got.untouched);
}

TEST_CASE("cuda_ipc: fake_cuda: a grant that lies about a device's memory ends the link of who believed it") {
  std::vector<grants> lies{
      [](const memory_handle& h) { return one(h, h.whole + 1); },  // larger than it is
      [](const memory_handle& h) { return one(h, ~std::uint64_t{0}); },
      [](const memory_handle& h) { return one(h, 0); },
      [](const memory_handle& h) { return one(h, h.whole, h.whole - 100); },  // a piece that is not in it
      [](const memory_handle& h) { return one(h, n, 1); },
      [](const memory_handle& h) {
        auto l = one(h, h.whole);
        l.opened.push_back(l.opened[0]);  // a number twice
        return l;
      },
  };
  for (std::size_t i = 0; i < lies.size(); ++i) {
    CAPTURE(i);
    const auto got = against(lies[i]);
    CHECK(got.link == errc::protocol);
    CHECK(got.put == errc::protocol);
    CHECK(got.untouched);
  }
  // A device's memory for who verifies, and so has not asked for it; and pieces of memory that nobody named, which are as
  // good as a refusal.
  auto verifying = bare();
  verifying.digest = digest_algorithm::xxh3_64;
  CHECK(against([](const memory_handle& h) { return one(h, h.whole); }, verifying).link == errc::protocol);
  CHECK(against([](const memory_handle&) { return window_layout{{}, {}, {{3, 0, n}}, {}}; }).heard.has_payload());
}

TEST_CASE("cuda_ipc: fake_cuda: an answer before the copy is made ends the link, and the copy is waited for") {
  const auto got = against([](const memory_handle& h) { return one(h, h.whole); }, bare(), true);
  CHECK(got.link == errc::protocol);
  CHECK(got.put);
}

TEST_CASE("cuda_ipc: fake_cuda: a borrower that wants digests of a device's memory, or asks oddly, ends its link") {
  enum class what { put, get, odd_code, beyond };
  for (auto how : {what::put, what::get, what::odd_code, what::beyond}) {
    CAPTURE(static_cast<int>(how));
    start_machine(6);
    {
      two_sides m;
      auto pool = m.far->memory(n, 1);
      auto w = m.far->windows.expose({pool}, window_access::both).value();
      const auto at = some_place();
      auto door = link_listener::listen(m.far->windows, at, bare()).value();
      bool accepted = false, over = false;
      door.async_accept([&](error_code ec, peer_link l) { accepted = !ec, m.far->link = std::move(l); });
      by_hand peer;
      auto body = [&]() -> awaitable<void> {
        peer.raw = co_await network::of(m.near->ctx.get_executor()).async_connect(endpoint::local(at.substr(6)));
        co_await peer.send(hello());
        CHECK((co_await peer.next()).type == link_type::hello);
        const auto access = how == what::get ? 2u : 1u;
        link_header h{.type = link_type::open, .code = access | 12, .request = 9};
        h.window = w.ref().id, h.generation = w.ref().generation;
        if (how == what::odd_code) h.code = 12;
        co_await peer.send(frame(h));
        if (how != what::odd_code) CHECK((co_await peer.next()).type == link_type::grant);
        h.type = how == what::get ? link_type::get : link_type::put;
        h.code = 0, h.length = 100, h.in_place = true;
        if (how == what::beyond) h.offset = n - 99;
        if (how == what::put || how == what::get) h.algorithm = digest_algorithm::xxh3_64;
        auto last = frame(h);
        co_await peer.send(last);
        const auto answer = co_await peer.next();
        CHECK(answer.type == (how == what::beyond ? link_type::done : link_type::goodbye));
        CHECK(answer.code != 0);
        peer.raw.close();
      };
      asio::co_spawn(m.near->ctx, body(), [&](std::exception_ptr e) {
        over = true;
        CHECK(!e);
      });
      CHECK(m.drive([&] { return accepted && over; }));
      ending revoked;
      w.async_revoke(revoked.token());
      CHECK(m.drive([&] { return revoked.over; }));
    }
    check_clean();
  }
}
