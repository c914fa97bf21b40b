// What a reader holds of the cache, and for how long.
#include "../http_fixture.hpp"
#include "cokv/runtime/result.hpp"
#include "fixture.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

const block_layout large{{256 << 10, 256 << 10}};  // more than lies in sockets

std::byte byte_of(std::uint32_t key, int version) { return static_cast<std::byte>(17 * key + 101 * version + 1); }

awaitable<error_code> write_large(cokv::store& s, std::uint32_t first, std::uint32_t count, write_options how = {},
                                  int version = 0) {
  auto writer = co_await s.async_open_write(cache_ns, large, contract_keys(first, count), how, as_result);
  if (!writer) co_return writer.error();
  for (std::uint32_t layer = 0; layer < large.layers(); ++layer) {
    std::vector<buffer> segments;
    for (std::uint32_t i = 0; i < count; ++i) {
      segments.push_back(buffer::host(large.segments[layer]));
      std::fill_n(segments.back().data(), segments.back().size(), byte_of(first + i, version));
    }
    if (auto ok = co_await (*writer)->async_write(layer, segments, as_result); !ok) co_return ok.error();
  }
  const auto ok = co_await (*writer)->async_commit(as_result);
  co_return ok ? error_code() : ok.error();
}

std::string block_path(std::uint32_t key) { return "/v1/kv/" + cache_ns.hex() + "/" + contract_keys(key, 1)[0].hex(); }

// Begins to read a block, and stops.
awaitable<raw_client> dawdle(endpoint at, std::uint32_t key) {
  auto c = co_await raw_client::connect(at);
  co_await c.send(get(block_path(key)));
  char bytes[1000];
  co_await c.stream.async_read_some(asio::buffer(bytes), asio::use_awaitable);
  co_return c;
}

}  // namespace

TEST_CASE("cache leases: who dawdles loses what it reads when a writer finds no room, and nobody does before") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        cache_server server(ex, 4 * large.bytes());
        auto& time = clock::of(ex);
        http_store s(ex, server.url());
        CHECK(!co_await write_large(s, 0, 4));
        auto slow = co_await dawdle(server.at(), 0);
        co_await time.async_wait_for(20s, asio::deferred);
        CHECK(!co_await write_large(s, 10, 3));  // what nobody reads makes room
        CHECK(server.memory().info().blocks == 4);
        CHECK(co_await write_large(s, 20, 4) == errc::store_full);
        const auto begin = time.now();
        while (co_await write_large(s, 20, 4) && time.now() - begin < 60s)
          co_await time.async_wait_for(1s, asio::deferred);
        CHECK(time.now() - begin < 10s);
        CHECK(server.memory().info().blocks == 4);
        CHECK(server.server().requests_running() == 0);
      },
      {.real = false, .seeds = 10});
}

TEST_CASE("cache leases: one that keeps up may read on, however many writers find no room") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        cache_server server(ex, 2 * large.bytes());
        auto& time = clock::of(ex);
        http_store s(ex, server.url());
        CHECK(!co_await write_large(s, 0, 2));
        auto steady = co_await raw_client::connect(server.at());
        co_await steady.send(get(block_path(0)));
        std::size_t got = 0;
        std::vector<char> bytes(60'000);
        while (got < large.bytes()) {
          auto [ec, n] = co_await steady.stream.async_read_some(asio::buffer(bytes), asio::as_tuple(asio::deferred));
          CHECK(!ec);
          if (ec) break;
          got += n;
          if (got + 100'000 > large.bytes()) break;  // the rest is in sockets: the server is done with it
          co_await time.async_wait_for(500ms, asio::deferred);
          CHECK(co_await write_large(s, 30, 2) == errc::store_full);
        }
        CHECK(got > large.bytes() / 2);
      },
      {.real = false, .seeds = 5});
}

TEST_CASE("cache leases: a lease ends with its connection") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        cache_server server(ex, 2 * large.bytes());
        http_store s(ex, server.url());
        CHECK(!co_await write_large(s, 0, 2));
        {
          auto a = co_await dawdle(server.at(), 0), b = co_await dawdle(server.at(), 1);
          CHECK(co_await write_large(s, 10, 1) == errc::store_full);
          CHECK(server.memory().info().leased_blocks == 2);
          CHECK(server.memory().info().leased_bytes == 2 * large.bytes());
        }
        auto& time = clock::of(ex);
        const auto begin = time.now();
        while (server.server().requests_running() != 0 && time.now() - begin < 5s)
          co_await time.async_wait_for(1ms, asio::deferred);
        CHECK(!co_await write_large(s, 10, 2));
        CHECK(time.now() - begin < 2s);
        CHECK(server.memory().info().used_bytes == 2 * large.bytes());
        while (server.memory().info().leased_bytes != 0 && time.now() - begin < 5s)
          co_await time.async_wait_for(1ms, asio::deferred);
        CHECK(server.memory().info().leased_blocks == 0);
        CHECK(server.memory().info().leased_bytes == 0);
        const auto page = server.service().metrics();
        CHECK(page.find("\ncokv_cache_leased_blocks{tier=\"memory\"} 0\n") != std::string::npos);
        CHECK(page.find("\ncokv_cache_leased_bytes{tier=\"memory\"} 0\n") != std::string::npos);
      },
      {.real = false, .seeds = 10});
}

TEST_CASE("cache leases: what is removed, replaced or pushed out under a reader is read to its end as it was") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        for (const bool replace : {false, true}) {
          CAPTURE(replace);
          cache_server server(ex, 8 * large.bytes());
          http_store s(ex, server.url());
          CHECK(!co_await write_large(s, 0, 2));
          auto reader = co_await s.async_open_read(cache_ns, large, contract_keys(0, 2));
          REQUIRE(reader->found() == 2);
          std::vector<buffer> into{buffer::host(large.segments[0]), buffer::host(large.segments[0])};
          CHECK(co_await reader->async_read(0, into) == 2);
          if (replace) {
            CHECK(!co_await write_large(s, 0, 2, {.force = true}, 1));
          } else {
            for (const auto& key : contract_keys(0, 2)) co_await s.async_remove(cache_ns, key);
          }
          CHECK(!co_await write_large(s, 10, 4));
          CHECK(co_await reader->async_read(1, into) == 2);
          for (std::uint32_t i = 0; i < 2; ++i)
            CHECK(std::ranges::all_of(into[i].bytes(), [&](std::byte b) { return b == byte_of(i, 0); }));
          reader.reset();
          auto later = co_await s.async_open_read(cache_ns, large, contract_keys(0, 2));
          CHECK(later->found() == (replace ? 2 : 0));
          if (!replace) continue;
          CHECK(co_await later->async_read(1, into) == 2);
          for (std::uint32_t i = 0; i < 2; ++i)
            CHECK(std::ranges::all_of(into[i].bytes(), [&](std::byte b) { return b == byte_of(i, 1); }));
        }
      },
      {.seeds = 5});
}

TEST_CASE(
    "cache leases: what is written, read, viewed or removed under a reader counts as leased until nobody has it") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        memory_store s(ex, {.limit_bytes = 8 * large.bytes()});
        const auto leased = [&] { return std::pair(s.info().leased_blocks, s.info().leased_bytes); };
        const auto bytes = [](std::uint64_t blocks) { return blocks * large.bytes(); };
        CHECK(!co_await write_large(s, 0, 4));
        CHECK(leased() == std::pair(0ul, 0ul));
        auto writer = co_await s.async_open_write(cache_ns, large, contract_keys(3, 3));  // one is there already
        CHECK(leased() == std::pair(1ul, bytes(3)));
        writer.reset();
        CHECK(leased() == std::pair(0ul, 0ul));
        auto reader = co_await s.async_open_read(cache_ns, large, contract_keys(0, 2));
        auto another = co_await s.async_open_read(cache_ns, large, contract_keys(1, 2));
        CHECK(leased() == std::pair(3ul, bytes(3)));
        co_await s.async_remove(cache_ns, contract_keys(1, 1)[0]);
        CHECK(leased() == std::pair(2ul, bytes(3)));
        auto views = co_await reader->async_view(0);
        reader.reset();
        another.reset();
        CHECK(leased() == std::pair(0ul, bytes(1)));  // a stored block that is viewed may be given up
        views.clear();
        CHECK(leased() == std::pair(0ul, 0ul));
      },
      {.seeds = 3});
}
