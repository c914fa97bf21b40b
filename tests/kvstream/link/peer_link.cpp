#include "cokv/kvstream/peer_link.hpp"

#include <doctest/doctest.h>

#include "cokv/kvstream/gather.hpp"
#include "kvstream/link/linked_pair.hpp"
#include "support/relay.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

std::vector<buffer> cut(const buffer& b, std::initializer_list<std::size_t> sizes) {
  std::vector<buffer> out;
  std::size_t at = 0;
  for (auto n : sizes) {
    out.push_back(b.slice(at, n));
    at += n;
  }
  if (at < b.size()) out.push_back(b.slice(at, b.size() - at));
  return out;
}

link_message text(std::string_view s) {
  link_message m(s.size());
  std::ranges::transform(s, m.begin(), [](char c) { return static_cast<std::byte>(c); });
  return m;
}

}  // namespace

TEST_CASE("peer_link: both sides know who the other is, and messages come in order") {
  link_test(
      [](asio::any_io_executor) -> awaitable<void> {
        auto l = co_await connected({.name = "prefill", .topology = "pp2"}, {.name = "decode", .topology = "tp4"});
        CHECK(l->near.peer().name == "decode");
        CHECK(l->near.peer().topology == "tp4");
        CHECK(l->far.peer().name == "prefill");
        CHECK(!l->near.error());
        for (int i = 0; i < 200; ++i) {
          if (i < 50) CHECK((co_await l->near.async_send(text("m" + std::to_string(i)), as_result)).has_value());
          if (i >= 50 && i < 100) {
            auto got = co_await l->far.async_receive(as_result);
            CHECK(got.has_value());
            if (got) CHECK(*got == text("m" + std::to_string(i - 50)));
          }
        }
        CHECK((co_await l->far.async_send({}, as_result)).has_value());
        CHECK((co_await l->near.async_receive(as_result)).value().empty());
        CHECK((co_await l->far.async_send(link_message(max_link_message + 1), as_result)).error() == errc::too_large);
        l->near.close();
        CHECK((co_await l->far.async_receive(as_result)).error() == errc::closed);
        CHECK((co_await l->far.async_closed(as_result)).has_value());
        CHECK(l->far.error() == errc::closed);
        CHECK((co_await l->far.async_send(text("late"), as_result)).error() == errc::closed);
        CHECK((co_await l->near.async_closed(as_result)).has_value());
      },
      few());
}

TEST_CASE("peer_link: what is put lies in the window, and what is got is what lies there") {
  for (auto digest : {digest_algorithm::none, digest_algorithm::xxh3_64})
    for (std::uint32_t lanes : {1u, 3u})
      link_test(
          [&](asio::any_io_executor) -> awaitable<void> {
            link_options o{.digest = digest, .connections = lanes, .credits = 4, .chunk = 64 << 10};
            auto l = co_await connected(o, o);
            const std::size_t bytes = 700'001;
            auto memory = landing(bytes), data = patterned(bytes, 1);
            auto w = l->there.expose(cut(memory, {1, 100'000, 7, 65'536}), window_access::both).value();
            auto to = l->near.to(w.ref());
            auto from = l->near.from(w.ref());
            CHECK(to.size() == bytes);
            auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
              for (std::size_t at = 0; at < bytes; at += 100'000) {
                const auto n = std::min<std::size_t>(100'000, bytes - at);
                group.spawn([&, at, n]() -> awaitable<error_code> {
                  auto put = co_await async_flush(data.slice(at, n), to, at, {}, completion_level::visible, as_result);
                  if (put) CHECK(same(memory.slice(at, n).bytes(), data.slice(at, n).bytes()));
                  co_return put ? error_code() : put.error();
                });
              }
              co_return;
            });
            CHECK(!v.error());
            CHECK(same(memory, data));
            CHECK(w.bytes_put() == bytes);
            auto back = blank(bytes);
            CHECK((co_await async_fetch(from, 0, back, {}, as_result)).has_value());
            CHECK(same(back, data));
            auto part = blank(10);
            CHECK((co_await async_fetch(from, 99'998, part, {}, as_result)).has_value());
            CHECK(same(part, data.slice(99'998, 10)));
            CHECK((co_await async_flush(buffer::host(0), to, 0, {}, completion_level::visible, as_result)).has_value());
          },
          few(30));
}

TEST_CASE("peer_link: a window's rules hold, and a broken one breaks no other transfer") {
  link_test(
      [](asio::any_io_executor) -> awaitable<void> {
        auto l = co_await connected();
        auto memory = landing(100);
        auto put_only = l->there.expose({memory}, window_access::put).value();
        auto get_only = l->there.expose({memory}, window_access::get).value();
        auto chunk = patterned(50);
        auto put = [&](window_ref w, std::uint64_t at) {
          return async_flush(chunk, l->near.to(w), at, {}, completion_level::visible, as_result);
        };
        auto get = [&](window_ref w, std::uint64_t at) {
          return async_fetch(l->near.from(w), at, chunk, {}, as_result);
        };
        CHECK((co_await put(get_only.ref(), 0)).error() == errc::permission_denied);
        CHECK((co_await get(put_only.ref(), 0)).error() == errc::permission_denied);
        CHECK((co_await put(put_only.ref(), 51)).error() == errc::out_of_range);
        auto lying = put_only.ref();
        lying.size = 1 << 20;
        CHECK((co_await put(lying, 51)).error() == errc::out_of_range);
        CHECK((co_await put(lying, 1 << 19)).error() == errc::out_of_range);
        auto guessed = put_only.ref();
        guessed.generation ^= 1;
        CHECK((co_await put(guessed, 0)).error() == errc::stale_reference);
        guessed.id = 77;
        CHECK((co_await put(guessed, 0)).error() == errc::stale_reference);
        CHECK(std::ranges::all_of(memory.bytes(), [](std::byte b) { return b == std::byte{0xdd}; }));
        const auto before = put_only.ref();
        CHECK((co_await put(before, 50)).has_value());
        CHECK((co_await put_only.async_revoke(as_result)).has_value());
        CHECK((co_await put(before, 0)).error() == errc::stale_reference);
        auto again = l->there.expose({memory}, window_access::put).value();
        CHECK(again.ref().id == before.id);
        CHECK((co_await put(before, 0)).error() == errc::stale_reference);
        CHECK((co_await put(again.ref(), 0)).has_value());
        CHECK(!again.committed());
        CHECK((co_await l->near.to(again.ref()).async_commit(as_result)).has_value());
        CHECK(again.committed());
        CHECK((co_await again.async_committed(as_result)).has_value());
        CHECK((co_await put(again.ref(), 0)).error() == errc::closed);
        CHECK((co_await l->near.to(get_only.ref()).async_commit(as_result)).error() == errc::permission_denied);
        CHECK((co_await l->near.to(before).async_commit(as_result)).error() == errc::stale_reference);
        CHECK((co_await get_only.async_revoke(as_result)).has_value());
        CHECK((co_await get_only.async_committed(as_result)).error() == errc::closed);
        CHECK(!l->near.error());
        CHECK(l->there.size() == 1);
      },
      few());
}

TEST_CASE("peer_link: a failed event fails its transfer alone; a digest never lies about packed bytes") {
  link_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto l = co_await connected();
        auto g = geometry::attention(3, 2, 8, dtype::f32, 4);
        auto source_memory = patterned(pool_bytes(g, 8), 5), into_memory = landing(pool_bytes(g, 8));
        kv_view from(g, source_memory, 8), into(g, into_memory, 8);
        slice out(g, {0, 3}, {1, 5, 2}), in(g, {0, 3}, {7, 0, 3});
        auto w = l->there.expose(into.pieces(in).value(), window_access::both).value();
        auto d = any_device(ex);
        auto staging = staging_pool::make(d, 1000, 2).value();
        packing through{staging, d.make_stream().value()};
        auto sent = co_await async_gather(from, out, l->near.to(w.ref()), 0, {.through = &through}, as_result);
        CHECK(sent.has_value());
        auto back = blank(pool_bytes(g, 8));
        kv_view home(g, back, 8);
        auto got = co_await async_scatter(l->near.from(w.ref()), 0, home, out,
                                          {.through = &through, .digest = sent->digest}, as_result);
        CHECK(got.has_value());
        std::size_t wrong = 0;
        for (auto e : out.extents(from.layout()))
          for (std::uint64_t i = e.offset; i < e.offset + e.size; ++i)
            wrong += back.data()[i] != source_memory.data()[i];
        CHECK(wrong == 0);
        CHECK((co_await async_gather(from, out, l->near.to(w.ref()), 0, {}, as_result)).has_value());
      },
      few(20));
}

TEST_CASE("peer_link: greetings that don't fit are refused on both sides") {
  link_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        window_table here(ex), there(ex);
        auto ns = [](const char* model) { return namespace_id::of(model, geometry::attention(1, 1, 8, dtype::f32)); };
        auto door = link_listener::listen(there, fresh_url(), {.ns = ns("a")}).value();
        auto url = door.url();
        CHECK((co_await async_connect(here, url, {.ns = ns("b")}, as_result)).error() == errc::namespace_mismatch);
        CHECK((co_await async_connect(here, "http://x:1", {}, as_result)).error() == errc::unsupported);
        CHECK((co_await async_connect(here, "nonsense", {}, as_result)).error() == errc::invalid_argument);
        CHECK((co_await async_connect(here, url, {.connections = 0}, as_result)).error() == errc::invalid_argument);
        CHECK((co_await async_connect(here, url, {.chunk = 1}, as_result)).error() == errc::invalid_argument);
        const link_options by_tree{.digest = digest_algorithm::xxh3_64_tree};
        CHECK((co_await async_connect(here, url, by_tree, as_result)).error() == errc::invalid_argument);
        auto any = co_await async_connect(here, url, {}, as_result);
        CHECK(any.has_value());
        CHECK((co_await door.async_accept(as_result)).has_value());
        door.set_namespace(ns("b"));
        CHECK((co_await async_connect(here, url, {.ns = ns("a")}, as_result)).error() == errc::namespace_mismatch);
        auto named = co_await async_connect(here, url, {.ns = ns("b")}, as_result);
        CHECK(named.has_value());
        CHECK((co_await door.async_accept(as_result)).value().peer().ns == ns("b"));
        door.close();
        CHECK((co_await door.async_accept(as_result)).error() == errc::closed);
        CHECK((co_await async_connect(here, url, {}, as_result)).has_value() == false);
      },
      few());
}

TEST_CASE("peer_link: any number of commits, and puts go on beside them") {
  link_test(
      [](asio::any_io_executor) -> awaitable<void> {
        auto l = co_await connected({.credits = 2, .messages = 1}, {.credits = 2, .messages = 1});
        auto memory = landing(10'000), data = patterned(10'000);
        auto whole = l->there.expose({memory}, window_access::put).value();
        for (int i = 0; i < 300; ++i) {
          auto w = l->there.expose({memory.slice(0, 10)}, window_access::put).value();
          CHECK((co_await l->near.to(w.ref()).async_commit(as_result)).has_value());
          CHECK(w.committed());
        }
        CHECK((co_await async_flush(data, l->near.to(whole.ref()), 0, {}, completion_level::visible, as_result))
                  .has_value());
        CHECK(same(memory, data));
        CHECK(!l->far.error());
      },
      few(20));
}

TEST_CASE("peer_link: links of the same two workers, made at once and both ways, leave each other alone") {
  link_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        window_table a = table(ex), b = table(ex);
        auto at_a = link_listener::listen(a, fresh_url()).value();
        auto at_b = link_listener::listen(b, fresh_url()).value();
        auto memory = landing(1000);
        auto w = b.expose({memory}, window_access::both).value();
        std::vector<peer_link> links;
        auto connect = [&](window_table from, std::string url) -> awaitable<void> {
          auto link = co_await async_connect(from, url, {}, as_result);
          CHECK(link.has_value());
          if (link) links.push_back(std::move(*link));
        };
        auto accept = [&](link_listener& door) -> awaitable<void> {
          auto link = co_await door.async_accept(as_result);
          CHECK(link.has_value());
          if (link) links.push_back(std::move(*link));
        };
        auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
          for (int i = 0; i < 3; ++i) {
            group.spawn(connect(a, at_b.url()));
            group.spawn(connect(b, at_a.url()));
            group.spawn(connect(a, at_a.url()));  // to itself
            group.spawn(accept(at_b));
            group.spawn(accept(at_a));
            group.spawn(accept(at_a));
          }
          co_return;
        });
        CHECK(!v.error());
        CHECK(links.size() == 18);
        for (auto& link : links) CHECK(!link.error());
        for (auto& link : links) {
          if (link.error()) continue;
          auto put = co_await async_flush(patterned(10), link.to(w.ref()), 0, {}, completion_level::visible, as_result);
          CHECK((put.has_value() || put.error() == errc::stale_reference));  // a window of the other end
        }
      },
      few(100));
}

TEST_CASE("peer_link: who verifies takes nothing unverified") {
  link_test(
      [](asio::any_io_executor) -> awaitable<void> {
        auto l = co_await connected({.digest = digest_algorithm::none}, {});
        auto memory = landing(100);
        auto w = l->there.expose({memory}, window_access::both).value();
        auto put =
            co_await async_flush(patterned(100), l->near.to(w.ref()), 0, {}, completion_level::visible, as_result);
        CHECK(put.error() == errc::unsupported);
        CHECK(memory.bytes()[0] == std::byte{0xdd});
        CHECK(!l->near.error());
      },
      few(5));
}

TEST_CASE("peer_link: a connection that broke is replaced, and the link goes on with as many as before") {
  std::size_t replaced = 0;
  co_test(
      [&](asio::any_io_executor ex) -> awaitable<void> {
        window_table here(ex), there(ex);
        auto door = link_listener::listen(there, "tcp://localhost:0", {.connections = 3, .chunk = 4096}).value();
        auto port = static_cast<std::uint16_t>(std::stoul(door.url().substr(door.url().rfind(':') + 1)));
        relay wire(ex, {"localhost", port});
        wire.arm({.cut_at = 100'000});
        auto near = co_await async_connect(here, "tcp://" + wire.at().to_string(), {.connections = 3, .chunk = 4096});
        auto far = co_await door.async_accept();
        auto memory = landing(400'000), data = patterned(400'000);
        auto w = there.expose({memory}, window_access::put).value();
        auto put = co_await async_flush(data, near.to(w.ref()), 0, {}, completion_level::visible, as_result);
        CHECK(!put);
        CHECK(wire.fired());
        if (near.error()) co_return;  // it was the first
        for (int i = 0; i < 100 && wire.connections() < 4; ++i)
          co_await clock::of(ex).async_wait_for(std::chrono::milliseconds(20));
        CHECK(wire.connections() >= 4);
        // A peer that had not noticed is asked again; then there is nothing to dial for.
        co_await clock::of(ex).async_wait_for(std::chrono::milliseconds(300));
        const auto dialled = wire.connections();
        co_await clock::of(ex).async_wait_for(std::chrono::milliseconds(300));
        CHECK(wire.connections() == dialled);
        CHECK((co_await async_flush(data, near.to(w.ref()), 0, {}, completion_level::visible, as_result)).has_value());
        CHECK(same(memory, data));
        CHECK(!far.error());
        ++replaced;
      },
      few(30));
  CHECK(replaced > 10);
}
