// Clients on the server's own machine, which read its blocks where they lie.
#include "cache/lending.hpp"

#include "cokv/kvstream/block_places.hpp"
#include "cokv/kvstream/digest.hpp"
#include "lender.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

bool is_block(const buffer& segment, std::uint32_t key, std::uint32_t layer) {
  for (std::size_t i = 0; i < segment.size(); ++i)
    if (segment.data()[i] != contract_byte(key, layer, i)) return false;
  return segment.size() == contract_layout().segments[layer];
}

awaitable<std::vector<segment_view>> views_of(cokv::store& s, std::uint32_t first, std::uint32_t count,
                                              std::uint32_t layer = 0) {
  auto reader = co_await s.async_open_read(cache_ns, contract_layout(), contract_keys(first, count));
  co_return co_await reader->async_view(layer);
}

std::string begin_of(std::uint32_t first, std::uint32_t count, std::uint64_t generation = 1) {
  const auto bytes =
      stream_writer(
          {.ns = cache_ns, .generation = generation, .layout = contract_layout(), .keys = contract_keys(first, count)})
          .begin();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string read_path(std::string_view by = "?by=reference") {
  return "/v1/kv/" + cache_ns.hex() + ":read" + std::string(by);
}

}  // namespace

TEST_CASE("cache lending: the contract of a store, read where the blocks lie") {
  static std::uint64_t lent = 0;
  store_contract(
      [](asio::any_io_executor ex, std::uint64_t limit) -> awaitable<stored> {
        auto server = std::make_shared<lender>(ex, lender_options{.limit = limit, .room = limit});
        auto store = std::make_unique<http_store>(ex, server->url());
        co_await meet(*store);
        std::shared_ptr<void> keep(server.get(), [server](void*) { lent += server->lending().leases(); });
        co_return stored{std::move(store), keep};
      },
      {.run = {.seeds = 5}, .has_limit = false});
  CHECK(lent > 0);
}

TEST_CASE("cache lending: a client over TCP finds the socket by itself, and reads there") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        for (const std::size_t shards : {1, 2}) {
          lender server(ex, {.shards = shards});
          http_store s(ex, server.url()), other(ex, server.url());
          CHECK(!co_await write_blocks(other, cache_ns, 0, 5));
          CHECK(co_await read_blocks(s, cache_ns, 0, 6) == 5);  // learns it from this one's answer
          CHECK(s.info().lent_reads == 0);
          CHECK(co_await read_blocks(s, cache_ns, 0, 6) == 5);
          CHECK(co_await read_blocks(s, cache_ns, 4, 1) == 1);
          CHECK(co_await read_blocks(s, cache_ns, 7, 1) == 0);
          CHECK(s.info().lent_reads == 3);
          CHECK(s.info().sent_reads == 0);
          CHECK(s.info().hits == 11);
          CHECK(s.info().misses == 3);
          co_await until(ex, [&] { return server.lending().blocks() == 0 && server.lending().bytes() == 0; });
          server.stop();
          co_await until(ex, [&] { return server.ended(); });
        }
      },
      {.seeds = 10});
}

TEST_CASE("cache lending: everything can be said over the socket") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        lender server(ex);
        http_store s(ex, server.local_url());
        CHECK(!co_await write_blocks(s, cache_ns, 0, 3));
        CHECK(co_await s.async_match(cache_ns, contract_keys(0, 4)) == 3);
        CHECK(co_await read_blocks(s, cache_ns, 0, 4) == 3);
        CHECK(s.info().lent_reads == 1);
        co_await s.async_remove(cache_ns, contract_keys(1, 1)[0]);
        CHECK(co_await read_blocks(s, cache_ns, 0, 3) == 1);
        http_store plain(ex, server.local_url(), {.shared_memory = false});
        CHECK(co_await read_blocks(plain, cache_ns, 0, 3) == 1);
        CHECK(plain.info().lent_reads + plain.info().sent_reads == 0);
      },
      {.seeds = 10});
}

TEST_CASE("cache lending: a view stays what it is, whatever becomes of its reader, its block and its store") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        const auto block = contract_layout().bytes();
        lender server(ex, {.limit = 8 * (block + 64)});
        auto s = std::make_unique<http_store>(ex, server.local_url());
        http_store other(ex, server.url(), {.shared_memory = false});
        CHECK(!co_await write_blocks(*s, cache_ns, 0, 4));
        auto views = co_await views_of(*s, 0, 4, 1);
        REQUIRE(views.size() == 4);
        CHECK(server.lending().blocks() == 4);
        CHECK(server.lending().bytes() == 4 * block);
        for (std::uint32_t i = 0; i < 4; ++i) CHECK(views[i].digest == digest_of(views[i].bytes.bytes()));
        s.reset();
        co_await other.async_remove(cache_ns, contract_keys(2, 1)[0]);
        // What is lent is not given up for others: there is room for four.
        for (std::uint32_t first = 10; first < 40; ++first) (void)co_await write_blocks(other, cache_ns, first, 1);
        CHECK(co_await write_blocks(other, cache_ns, 50, 5) == errc::store_full);
        CHECK(co_await other.async_match(cache_ns, contract_keys(0, 4)) == 2);
        for (std::uint32_t i = 0; i < 4; ++i) CHECK(is_block(views[i].bytes, i, 1));
        views.resize(1);
        for (int i = 0; i < 100; ++i) co_await asio::post(ex, asio::deferred);
        CHECK(server.lending().blocks() == 4);  // with the last of them
        views.clear();
        co_await until(ex, [&] { return server.lending().blocks() == 0; });
        CHECK(!co_await write_blocks(other, cache_ns, 50, 8));
      },
      {.seeds = 10});
}

TEST_CASE("cache lending: what was looked at once is not looked at again, until it is another block") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        lender server(ex);
        http_store s(ex, server.local_url());
        CHECK(!co_await write_blocks(s, cache_ns, 0, 2));
        CHECK((co_await views_of(s, 0, 2)).size() == 2);
        // Damage that comes later is seen by who copies, not by who was told that it is right.
        const auto damage = [&](std::uint32_t key) {
          server.memory().stored_segment(cache_ns, contract_keys(key, 1)[0], 0).data()[3] ^= std::byte{1};
        };
        damage(1);
        CHECK((co_await views_of(s, 0, 2)).size() == 2);
        CHECK(co_await read_blocks(s, cache_ns, 0, 2) == 1);
        CHECK(s.info().digest_failures == 1);
        // A new block in the same place is looked at.
        CHECK(!co_await write_blocks(s, cache_ns, 1, 1, {.force = true}));
        CHECK((co_await views_of(s, 0, 2)).size() == 2);
        CHECK(!co_await write_blocks(s, cache_ns, 1, 1, {.force = true}));
        damage(1);
        CHECK((co_await views_of(s, 0, 2)).size() == 1);
        CHECK(s.info().digest_failures == 2);
      },
      {.seeds = 10});
}

TEST_CASE("cache lending: beyond the bound blocks are sent, and lent again when there is room") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        const auto block = contract_layout().bytes();
        lender server(ex, {.room = 3 * block});
        http_store s(ex, server.local_url());
        CHECK(!co_await write_blocks(s, cache_ns, 0, 4));
        CHECK(co_await read_blocks(s, cache_ns, 0, 4) == 4);
        CHECK(s.info().lent_reads == 0);
        CHECK(s.info().sent_reads == 1);
        auto views = co_await views_of(s, 0, 2);
        CHECK(co_await read_blocks(s, cache_ns, 0, 2) == 2);
        CHECK(s.info().lent_reads == 1);
        CHECK(s.info().sent_reads == 2);
        CHECK(co_await read_blocks(s, cache_ns, 2, 1) == 1);
        CHECK(s.info().lent_reads == 2);
        views.clear();
        co_await until(ex, [&] { return server.lending().bytes() == 0; });
        CHECK(co_await read_blocks(s, cache_ns, 0, 3) == 3);
        CHECK(s.info().lent_reads == 3);
      },
      {.seeds = 10});
}

TEST_CASE("cache lending: who may not read every namespace is neither told of the memory nor shown it") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        http::api_keys keys;
        keys.add("all");
        keys.add("some", {.name = "some", .namespaces = {cache_ns}});
        keys.add("writer", {.name = "writer", .rights = static_cast<std::uint8_t>(http::right::write)});
        lender server(ex, {.keys = keys});
        http_store all(ex, server.url(), {.api_key = "all"}), some(ex, server.url(), {.api_key = "some"});
        CHECK(!co_await write_blocks(all, cache_ns, 0, 2));
        for (auto* s : {&all, &some}) {
          co_await meet(*s);
          CHECK(co_await read_blocks(*s, cache_ns, 0, 2) == 2);
        }
        CHECK(all.info().lent_reads == 1);
        CHECK(some.info().lent_reads + some.info().sent_reads == 0);
        http_store asks(ex, server.local_url(), {.api_key = "some"});  // in vain, and once
        for (int i = 0; i < 2; ++i) CHECK(co_await read_blocks(asks, cache_ns, 0, 2) == 2);
        CHECK(asks.info().lent_reads == 0);
        CHECK(asks.info().sent_reads == 1);

        for (const auto& [key, code] : {std::pair("some", 403u), {"writer", 403u}, {"none", 401u}, {"all", 200u}}) {
          auto c = co_await raw_client::connect(server.socket());
          const auto field = std::string("Authorization: Bearer ") + key + "\r\n";
          CHECK((co_await c.ask(get("/v1/memory", field))).result_int() == code);
          CHECK(bool(c.stream.take_attached()) == (code == 200));
          CHECK((co_await c.ask(post(read_path(), begin_of(0, 1), field))).result_int() == code);
        }
        auto far = co_await raw_client::connect(server.at());
        const std::string field = "Authorization: Bearer all\r\n";
        CHECK((co_await far.ask(get("/v1/memory", field))).result_int() == 404);
        CHECK((co_await far.ask(post(read_path(), begin_of(0, 1), field))).result_int() == 404);
      },
      {.seeds = 5});
}

TEST_CASE("cache lending: a client that can't come to the socket, or finds another server there, goes on over TCP") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        lender other(ex, {.id = 4712});
        for (const auto& path : {fresh_path(), other.path()}) {
          memory_store memory(ex, {.limit_bytes = 1 << 20, .readable = true});
          const auto lending = std::make_shared<cache::lending>(memory.lent(), 4711, 1 << 19, path);
          cache::service service(memory, {{"memory", &memory}}, {.lending = lending});
          http::server server(ex);
          service.add_routes(server);
          server.listen({"127.0.0.1", 0});
          auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
            group.spawn(server.run());
            http_store s(ex, "http://" + server.local_endpoint().to_string());
            CHECK(!co_await write_blocks(s, cache_ns, 0, 3));
            for (int i = 0; i < 3; ++i) {
              co_await meet(s);
              CHECK(co_await read_blocks(s, cache_ns, 0, 3) == 3);
            }
            CHECK(s.info().lent_reads == 0);
            CHECK(s.info().sent_reads >= 1);
            if (path == other.path()) CHECK(s.info().sent_reads == 1);
            server.drain(1s);
          });
          CHECK(bool(v));
        }
      },
      {.seeds = 5});
}

TEST_CASE("cache lending: another server in the same place is noticed, and what was lent before stays") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        const auto path = fresh_path();
        auto first = std::make_unique<lender>(ex, lender_options{.id = 1}, path);
        http_store s(ex, "unix://" + path);
        CHECK(!co_await write_blocks(s, cache_ns, 0, 3));
        auto old = co_await views_of(s, 0, 3);
        CHECK(old.size() == 3);
        first->stop();
        co_await until(ex, [&] { return first->ended(); });
        first.reset();
        co_await clock::of(ex).async_wait_for(100ms, asio::deferred);
        lender second(ex, {.id = 2}, path);
        http_store writer(ex, second.url());
        CHECK(!co_await write_blocks(writer, cache_ns, 10, 3));
        CHECK(!co_await write_blocks(writer, cache_ns, 1, 1));
        CHECK(co_await read_blocks(s, cache_ns, 0, 3) == 0);
        CHECK(co_await read_blocks(s, cache_ns, 10, 4) == 3);
        CHECK(co_await read_blocks(s, cache_ns, 1, 1) == 1);
        CHECK(s.info().lent_reads >= 2);
        for (std::uint32_t i = 0; i < 3; ++i) CHECK(is_block(old[i].bytes, i, 0));
      },
      {.seeds = 10});
}

TEST_CASE("cache lending: a server that ends while views are out uses their memory for nothing else") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        const auto block = contract_layout().bytes();
        lender server(ex, {.limit = 6 * (block + 64)});
        http_store s(ex, server.local_url());
        CHECK(!co_await write_blocks(s, cache_ns, 0, 3));
        auto views = co_await views_of(s, 0, 3);
        server.stop();
        co_await until(ex, [&] { return server.ended(); });
        // The store goes on: nothing pins its blocks any more, but where these lie nobody writes.
        for (std::uint32_t first = 10; first < 40; ++first)
          (void)co_await write_blocks(server.memory(), cache_ns, first, 1);
        CHECK(co_await server.memory().async_match(cache_ns, contract_keys(37, 3)) == 3);
        for (std::uint32_t i = 0; i < 3; ++i) CHECK(is_block(views[i].bytes, i, 0));
        CHECK(server.lending().blocks() == 3);
      },
      {.seeds = 10});
}

TEST_CASE("cache lending: hostile clients") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        lender server(ex);
        http_store s(ex, server.local_url());
        CHECK(!co_await write_blocks(s, cache_ns, 0, 3));
        const auto ask = [&](std::string request) -> awaitable<unsigned> {
          auto c = co_await raw_client::connect(server.socket());
          co_return (co_await c.ask(std::move(request))).result_int();
        };
        CHECK(co_await ask(post(read_path("?by=value"), begin_of(0, 1))) == 400);
        CHECK(co_await ask(post(read_path("?by="), begin_of(0, 1))) == 400);
        CHECK(co_await ask(post(read_path("?by=reference&by=reference"), begin_of(0, 1))) == 400);
        CHECK(co_await ask(post(read_path(), "rubbish")) == 400);
        CHECK(co_await ask(post(read_path(), begin_of(0, 1) + "x")) == 400);
        CHECK(co_await ask(post(read_path(), begin_of(0, 1).substr(0, 100))) == 400);
        CHECK(co_await ask(post(read_path(), begin_of(0, 1)) + get("/healthz")) == 400);

        // One that goes on talking keeps its lease, and ends it by going.
        auto talks = co_await raw_client::connect(server.socket());
        const auto answer = co_await talks.ask(post(read_path(), begin_of(0, 3)));
        CHECK(answer.result_int() == 200);
        const auto bytes = std::as_bytes(std::span(answer.body()));
        const stream_begin about{
            .ns = cache_ns, .generation = 1, .layout = contract_layout(), .keys = contract_keys(0, 3)};
        const auto where = block_places::decode(bytes, about, server.memory().lent().memory.size());
        REQUIRE(where.has_value());
        CHECK(where->blocks() == 3);
        for (int i = 0; i < 30; ++i) co_await talks.send(std::string(10'000, 'x'));
        CHECK(server.lending().blocks() == 3);
        talks.stream.close();
        co_await until(ex, [&] { return server.lending().blocks() == 0; });

        // One that never reads what it asked for, many times over.
        std::vector<raw_client> silent;
        for (int i = 0; i < 20; ++i) {
          silent.push_back(co_await raw_client::connect(server.socket()));
          co_await silent.back().send(post(read_path(), begin_of(0, 3)));
        }
        CHECK(co_await read_blocks(s, cache_ns, 0, 3) == 3);
        CHECK(server.lending().bytes() <= server.lending().room());
        silent.clear();
        co_await until(ex, [&] { return server.lending().blocks() == 0; });
        CHECK(co_await read_blocks(s, cache_ns, 0, 3) == 3);
      },
      {.seeds = 5});
}

TEST_CASE("cache lending: an answer that its client does not take lends nothing") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        lender server(ex, {.limit = 4 << 20, .room = 4 << 20, .web_limit = {.stall = 100ms}});
        // More places than a socket holds that nobody reads from.
        const block_layout layout{std::vector<std::uint64_t>(128, 16)};
        const auto keys = contract_keys(0, 500);
        http_store s(ex, server.local_url());
        {
          auto writer = co_await s.async_open_write(cache_ns, layout, keys);
          for (std::uint32_t layer = 0; layer < layout.layers(); ++layer)
            co_await writer->async_write(layer, std::vector<buffer>(keys.size(), buffer::host(16)));
          co_await writer->async_commit();
        }
        const auto begin = stream_writer({.ns = cache_ns, .generation = 1, .layout = layout, .keys = keys}).begin();
        auto silent = co_await raw_client::connect(server.socket());
        co_await silent.send(post(read_path(), {reinterpret_cast<const char*>(begin.data()), begin.size()}));
        co_await until(ex, [&] { return server.lending().leases() == 1; });
        co_await until(ex, [&] { return server.lending().bytes() == 0; });
        CHECK(server.lending().blocks() == 0);
        CHECK(silent.stream.is_open());
      },
      {.seeds = 5});
}

TEST_CASE("cache lending: beyond so many leases blocks are sent") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        lender server(ex, {.most = 2});
        http_store s(ex, server.local_url());
        CHECK(!co_await write_blocks(s, cache_ns, 0, 1));
        auto first = co_await views_of(s, 0, 1), second = co_await views_of(s, 0, 1);
        CHECK(s.info().lent_reads == 2);
        CHECK(co_await read_blocks(s, cache_ns, 0, 1) == 1);
        CHECK(s.info().sent_reads == 1);
        first.clear();
        co_await until(ex, [&] { return server.lending().blocks() == 1; });
        CHECK(co_await read_blocks(s, cache_ns, 0, 1) == 1);
        CHECK(s.info().lent_reads == 3);
        CHECK(s.info().sent_reads == 1);
      },
      {.seeds = 5});
}

TEST_CASE("cache lending: a reader that is cancelled or destroyed at any step leaves no lease") {
  const auto body = [](asio::any_io_executor ex) -> awaitable<void> {
    lender server(ex);
    http_store s(ex, server.local_url());
    auto ec = co_await write_blocks(s, cache_ns, 0, 2);
    if (!ec) {
      auto reader = co_await s.async_open_read(cache_ns, contract_layout(), contract_keys(0, 2), as_result);
      if (reader) {
        auto views = co_await (*reader)->async_view(0, as_result);
        if (views)
          for (std::uint32_t i = 0; i < views->size(); ++i) CHECK(is_block((*views)[i].bytes, i, 0));
      }
    }
  };
  cancel_at_every_step(body, {.seeds = 50});
  destroy_at_every_step(body, {.seeds = 50});
}

TEST_CASE("cache lending: what is lent is told") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        lender server(ex);
        http_store s(ex, server.local_url());
        CHECK(!co_await write_blocks(s, cache_ns, 0, 3));
        auto views = co_await views_of(s, 0, 3);
        auto c = co_await raw_client::connect(server.at());
        auto page = (co_await c.ask(get("/metrics"))).body();
        CHECK(page.find("\ncokv_cache_lent_blocks 3\n") != std::string::npos);
        CHECK(page.find("\ncokv_cache_lent_bytes " + std::to_string(3 * contract_layout().bytes()) + "\n") !=
              std::string::npos);
        views.clear();
        co_await until(ex, [&] { return server.lending().blocks() == 0; });
        page = (co_await c.ask(get("/metrics"))).body();
        CHECK(page.find("\ncokv_cache_lent_blocks 0\n") != std::string::npos);
      },
      {.seeds = 5});
}
