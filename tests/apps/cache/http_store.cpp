#include "cokv/kvstream/http_store.hpp"

#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>

#include "fixture.hpp"
#include "support/relay.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace std::chrono_literals;

TEST_CASE("http store: the contract, against a cache server") {
  store_contract(
      [](asio::any_io_executor ex, std::uint64_t limit) -> awaitable<stored> {
        auto server = std::make_shared<cache_server>(ex, limit);
        auto store = std::make_unique<http_store>(ex, server->url());
        co_return stored{std::move(store), server};
      },
      {.run = {.seeds = 5}, .has_limit = false});
}

TEST_CASE("http store: a writer that is given up between its operations counts its blocks as not written") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        cache_server server(ex);
        http_store s(ex, server.url());
        {
          auto writer = co_await s.async_open_write(cache_ns, contract_layout(), contract_keys(0, 3));
          co_await writer->async_write(0, contract_segments(0, 3, 0));
        }
        CHECK(s.info().failed_writes == 3);
        CHECK(!co_await write_blocks(s, cache_ns, 0, 3));
        CHECK(s.info().failed_writes == 3);
        CHECK(s.info().written_blocks == 3);
      },
      {.seeds = 5});
}

TEST_CASE("http store: a match that refreshes keeps what it found from being given up next") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        cache_server server(ex, 4 * contract_layout().bytes());
        http_store s(ex, server.url());
        for (std::uint32_t i = 0; i < 4; ++i) CHECK(!co_await write_blocks(s, cache_ns, i, 1));
        CHECK(co_await s.async_match(cache_ns, contract_keys(0, 2), match_options{.refresh = true}) == 2);
        CHECK(!co_await write_blocks(s, cache_ns, 10, 2));
        CHECK(co_await s.async_match(cache_ns, contract_keys(0, 2)) == 2);
      },
      {.seeds = 5});
}

TEST_CASE("http store: a layer is read to where it was expected, or not at all") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        cache_server server(ex);
        http_store s(ex, server.url());
        CHECK(!co_await write_blocks(s, cache_ns, 0, 2));
        const auto layout = contract_layout();
        const auto some = [&](std::uint32_t layer) {
          return std::vector{buffer::host(layout.segments[layer]), buffer::host(layout.segments[layer])};
        };
        auto reader = co_await s.async_open_read(cache_ns, layout, contract_keys(0, 2));
        auto first = some(0), second = some(1);
        reader->expect(0, first);
        reader->expect(1, second);
        CHECK((co_await reader->async_read(1, some(1), as_result)).error() == errc::invalid_argument);
        CHECK((co_await reader->async_read(1, {second[1], second[0]}, as_result)).error() == errc::invalid_argument);
        CHECK(co_await reader->async_read(0, first) == 2);
        CHECK((co_await reader->async_read(1, some(1), as_result)).error() == errc::invalid_argument);
        CHECK(co_await reader->async_read(1, second) == 2);
        CHECK(co_await reader->async_read(2, some(2)) == 2);
        for (auto* layer : {&first, &second})
          for (std::uint32_t i = 0; i < 2; ++i)
            CHECK((*layer)[i].data()[999] == contract_byte(i, layer == &second ? 1 : 0, 999));
      },
      {.seeds = 5});
}

TEST_CASE("http store: an answer that nobody asked for is not taken for the next request's, which goes another way") {
  namespace http = boost::beast::http;
  run_real([](asio::any_io_executor ex) -> awaitable<void> {
    auto door = network::of(ex).listen({"127.0.0.1", 0}).value();
    auto answer = [](byte_stream& to, std::string body) -> awaitable<void> {
      http::response<http::string_body> m(http::status::ok, 11, std::move(body));
      m.prepare_payload();
      co_await http::async_write(to, m, asio::use_awaitable);
    };
    std::vector<byte_stream> clients;
    auto serve = [&](const char* body) -> awaitable<void> {
      clients.push_back(co_await door.async_accept());
      boost::beast::flat_buffer in;
      http::request<http::string_body> request;
      co_await http::async_read(clients.back(), in, request, asio::use_awaitable);
      co_await answer(clients.back(), body);
    };
    http_store s(ex, "http://" + door.local_endpoint().to_string());
    asio::co_spawn(ex, serve(R"({"matched":1})"), asio::detached);
    CHECK(co_await s.async_match(cache_ns, contract_keys(0, 3)) == 1);
    co_await answer(clients.back(), R"({"matched":0})");
    co_await clock::of(ex).async_wait_for(20ms);
    asio::co_spawn(ex, serve(R"({"matched":2})"), asio::detached);
    CHECK(co_await s.async_match(cache_ns, contract_keys(0, 3)) == 2);
    // Nor is one that is closed tried first.
    clients.back().close();
    co_await clock::of(ex).async_wait_for(20ms);
    asio::co_spawn(ex, serve(R"({"matched":3})"), asio::detached);
    CHECK(co_await s.async_match(cache_ns, contract_keys(0, 3)) == 3);
  });
}

TEST_CASE("http store: a URL that is none is a config error that names it") {
  asio::io_context ctx(1);
  for (const char* url : {"127.0.0.1:80", "ftp://x", "https://x/y", "http://x/y", ""}) {
    CAPTURE(url);
    CHECK_THROWS_AS(http_store(ctx.get_executor(), url), config_error);
  }
  CHECK_THROWS_AS(http_store(ctx.get_executor(), "http://x", {.api_key = "a\r\nb"}), config_error);
}

TEST_CASE("http store: without digests where both sides want that, and refused where the server does not") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        cache_server strict(ex), lax(ex, 1 << 26, {.frames = {.unsealed = true}});
        for (const auto digest : {digest_algorithm::none, digest_algorithm::xxh3_64})
          for (auto* server : {&strict, &lax}) {
            http_store s(ex, server->url(), {.digest = digest});
            const bool taken = server == &lax || digest == digest_algorithm::xxh3_64;
            const auto first = digest == digest_algorithm::none ? 0u : 10u;
            const auto ec = co_await write_blocks(s, cache_ns, first, 3);
            CHECK(ec == (taken ? error_code() : make_error_code(errc::invalid_argument)));
            auto reader = co_await s.async_open_read(cache_ns, contract_layout(), contract_keys(first, 3), as_result);
            CHECK(reader.has_value() == taken);
            if (taken) CHECK(co_await read_blocks(s, cache_ns, first, 3) == 3);
          }
        // What came without has digests from then on, for who wants some.
        http_store s(ex, lax.url());
        CHECK(co_await read_blocks(s, cache_ns, 0, 3) == 3);
      },
      {.seeds = 5});
}
