// Clients on the server's own machine, which tell it where the blocks lie that it is to store.
#include "write_by_reference.hpp"

using namespace cokv;
using namespace cokv::test;

TEST_CASE("cache taking: the contract of a store whose writes are copied from their writer's memory") {
  static std::uint64_t taken = 0;
  store_contract(
      [](asio::any_io_executor ex, std::uint64_t limit) -> awaitable<stored> {
        auto server = std::make_shared<lender>(ex, lender_options{.limit = limit, .room = limit});
        auto store = std::make_unique<http_store>(ex, server->local_url());
        std::shared_ptr<void> keep(server.get(), [server](void*) { taken += server->lending().taken_segments(); });
        co_return stored{std::move(store), keep};
      },
      {.run = {.seeds = 5}, .has_limit = false});
  CHECK(taken > 0);
}

TEST_CASE("cache taking: what lies in shared memory is copied from there, other memory by way of some that is shared") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        lender server(ex);
        const auto layers = contract_layout().layers();
        const shared_blocks blocks(0, 3);
        {
          http_store s(ex, server.local_url());
          CHECK(!co_await write_shared(s, blocks, 0, 3));
          CHECK(server.lending().taken_segments() == 3 * layers);
          CHECK(server.lending().mapped()->bytes() == blocks.memory().size());  // and nothing else
          CHECK(co_await read_blocks(s, cache_ns, 0, 4) == 3);
          CHECK(!co_await write_shared(s, shared_blocks(0, 3), 0, 3));  // are there already

          CHECK(!co_await write_blocks(s, cache_ns, 10, 2));  // a heap's
          CHECK(co_await read_blocks(s, cache_ns, 10, 2) == 2);
          auto writer = co_await s.async_open_write(cache_ns, contract_layout(), contract_keys(20, 3));
          const shared_blocks some(20, 3);
          for (std::uint32_t l = layers; l-- > 0;) {  // the last layer first, and of both kinds
            auto segments = contract_segments(20, 3, l);
            segments[1] = some.segment(l, 1);
            co_await writer->async_write(l, std::move(segments));
          }
          co_await writer->async_commit();
          CHECK(co_await read_blocks(s, cache_ns, 20, 3) == 3);
          CHECK(server.lending().taken_segments() == (3 + 3 + 2 + 3) * layers);
          CHECK(server.lending().taken_bytes() == (3 + 3 + 2 + 3) * contract_layout().bytes());
          CHECK(s.info().written_blocks == 11);
        }
        co_await until(ex, [&] { return server.lending().mapped()->bytes() == 0; });
      },
      {.seeds = 10});
}

TEST_CASE("cache taking: a client over TCP finds the socket by itself, and writes by way of it") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        for (const std::size_t shards : {1, 2}) {
          lender server(ex, {.shards = shards});
          http_store s(ex, server.url());
          CHECK(!co_await write_blocks(s, cache_ns, 0, 2));
          CHECK(server.lending().taken_segments() == 0);
          CHECK(!co_await write_blocks(s, cache_ns, 2, 2));  // it learnt it from the answer
          CHECK(server.lending().taken_segments() == 2 * contract_layout().layers());
          CHECK(!co_await write_blocks(s, cache_ns, 2, 2, {.deferred = true, .force = true}));
          CHECK(server.lending().taken_segments() == 4 * contract_layout().layers());
          CHECK(co_await read_blocks(s, cache_ns, 0, 5) == 4);
          http_store plain(ex, server.url(), {.shared_memory = false});
          CHECK(!co_await write_blocks(plain, cache_ns, 5, 2));
          CHECK(server.lending().taken_segments() == 4 * contract_layout().layers());
          server.stop();
          co_await until(ex, [&] { return server.ended(); });
        }
      },
      {.seeds = 10});
}

TEST_CASE("cache taking: a socket that belongs to another server is not written to") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        lender other(ex, {.id = 4712});
        memory_store memory(ex, {.limit_bytes = 1 << 20, .readable = true});
        const auto lending = std::make_shared<cache::lending>(memory.lent(), 4711, 1 << 19, other.path());
        cache::service service(memory, {{"memory", &memory}}, {.lending = lending});
        http::server server(ex);
        service.add_routes(server);
        server.listen({"127.0.0.1", 0});
        auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
          group.spawn(server.run());
          http_store s(ex, "http://" + server.local_endpoint().to_string());
          for (std::uint32_t i = 0; i < 3; ++i) CHECK(!co_await write_blocks(s, cache_ns, i, 1));
          CHECK(co_await memory.async_match(cache_ns, contract_keys(0, 3)) == 3);
          CHECK(co_await other.memory().async_match(cache_ns, contract_keys(0, 3)) == 0);
          server.drain(1s);
        });
        CHECK(bool(v));
      },
      {.seeds = 5});
}

TEST_CASE("cache taking: who may not write is refused, and namespaces hold") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        http::api_keys keys;
        keys.add("all");
        keys.add("reader", {.name = "reader", .rights = static_cast<std::uint8_t>(http::right::read)});
        keys.add("writer", {.name = "writer", .rights = static_cast<std::uint8_t>(http::right::write)});
        keys.add("here", {.name = "here", .namespaces = {cache_ns}});
        keys.add("there",
                 {.name = "there", .namespaces = {namespace_id::of("n", geometry::attention(1, 1, 4, dtype::f32))}});
        lender server(ex, {.keys = keys});
        const shared_blocks blocks(0, 2);
        for (const auto& [key, code] :
             {std::pair("reader", 403u), {"there", 403u}, {"none", 401u}, {"here", 200u}, {"writer", 200u}}) {
          CAPTURE(key);
          const auto field = std::string("Authorization: Bearer ") + key + "\r\n";
          CHECK(co_await say(server.socket(), blocks.file(), post(write_path(), body_of(blocks, 0, 2), field)) == code);
        }
        CHECK(co_await server.memory().async_match(cache_ns, contract_keys(0, 2)) == 2);
      },
      {.seeds = 5});
}

TEST_CASE("cache taking: what is not as it was said is refused, and stores nothing") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        lender server(ex);
        const shared_blocks blocks(0, 2);
        const auto layers = contract_layout().layers();
        const auto with = [&](auto change) {
          auto body = begin_of(0, 2);
          for (std::uint32_t l = 0; l < layers; ++l) {
            auto where = blocks.where(l);
            if (l == layers - 1) change(where);
            body += text(where.encode());
          }
          return post(write_path(), body + end_of_places());
        };
        const auto ask = [&](std::string request) { return say(server.socket(), blocks.file(), std::move(request)); };
        const auto whole = body_of(blocks, 0, 2);

        CHECK(co_await ask(with([](auto& w) { w.places[1].digest ^= 1; })) == 422);
        CHECK(co_await ask(with([&](auto& w) { w.places[1].offset = blocks.memory().size() - 1; })) == 400);
        CHECK(co_await ask(with([](auto& w) { w.places[1].offset = ~0ull; })) == 400);
        CHECK(co_await ask(with([](auto& w) { w.places[1].offset = ~0ull - 3; })) == 400);
        CHECK(co_await ask(with([](auto& w) { w.generation = 2; })) == 400);
        CHECK(co_await ask(with([](auto& w) { w.memory = 1; })) == 409);  // nothing came that it could be
        CHECK(co_await ask(with([](auto& w) { w.memory = ~0ull; })) == 409);
        CHECK(co_await ask(with([](auto& w) { w.layers = 0, w.places.clear(); })) == 400);
        CHECK(co_await ask(with([](auto& w) { w.lives.clear(), w.places.clear(); })) == 400);
        CHECK(co_await ask(with([](auto& w) { w.lives.push_back(0), w.places.push_back(w.places[0]); })) == 400);
        CHECK(co_await ask(with([](auto& w) { w.lives.pop_back(), w.places.pop_back(); })) == 400);  // then the end
        for (const auto cut : {std::size_t(1), std::size_t(100), whole.size() / 2, whole.size() - 1}) {
          CAPTURE(cut);
          CHECK(co_await ask(post(write_path(), whole.substr(0, cut))) == 400);
        }
        CHECK(co_await ask(post(write_path(), whole + "x")) == 400);
        CHECK(co_await ask(post(write_path(), begin_of(0, 2) + std::string(1000, 'x'))) == 400);
        auto flipped = whole;
        flipped[begin_of(0, 2).size() + 40] ^= 1;
        CHECK(co_await ask(post(write_path(), flipped)) == 422);
        CHECK(co_await ask(post("/v1/kv/" + cache_ns.hex() + ":write?by=value", whole)) == 400);
        CHECK(co_await ask(post(write_path(), whole, "Cokv-Memory: 1\r\n")) == 409);
        CHECK(co_await say(server.socket(), nullptr, post(write_path(), whole)) == 409);
        CHECK(co_await say(server.at(), nullptr, post(write_path(), whole)) == 404);
        CHECK(co_await server.memory().async_match(cache_ns, contract_keys(0, 2)) == 0);
        co_await until(ex, [&] { return server.lending().mapped()->bytes() == 0; });
        CHECK(server.memory().info().leased_bytes == 0);

        CHECK(co_await ask(post(write_path(), whole, "Cokv-Memory: 4711\r\n")) == 200);
        CHECK(co_await read_blocks(server.memory(), cache_ns, 0, 2) == 2);
      },
      {.seeds = 5});
}

TEST_CASE("cache taking: a client of HTTP/1.0 is told of the end alone") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        lender server(ex);
        const shared_blocks blocks(0, 2);
        auto request = post(write_path(), body_of(blocks, 0, 2));
        request.replace(request.find("HTTP/1.1"), 8, "HTTP/1.0");
        auto c = co_await raw_client::connect(server.socket());
        c.stream.attach(blocks.file());
        CHECK((co_await c.ask(std::move(request))).result_int() == 200);
      },
      {.seeds = 5});
}

TEST_CASE("cache taking: bytes that change while they are copied are stored as their digest says, or not at all") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        lender server(ex);
        http_store s(ex, server.local_url());
        const shared_blocks blocks(0, 2);
        auto c = co_await raw_client::connect(server.socket());
        c.stream.attach(blocks.file());
        const auto whole = body_of(blocks, 0, 2);
        const auto first = begin_of(0, 2).size() + text(blocks.where(0).encode()).size();
        co_await c.send(post(write_path(), whole).substr(0, post(write_path(), whole).size() - whole.size() + first));
        CHECK((co_await c.read()).result_int() == 102);
        blocks.segment(0, 0).data()[0] ^= std::byte{1};  // copied already: it is the writer's again
        blocks.segment(1, 1).data()[7] ^= std::byte{1};  // not yet
        co_await c.send(whole.substr(first));
        CHECK(co_await outcome(c) == 422);
        CHECK(co_await s.async_match(cache_ns, contract_keys(0, 2)) == 0);
      },
      {.seeds = 5});
}

TEST_CASE("cache taking: a writer that goes on the way leaves no block, no room taken and no mapping") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        lender server(ex);
        const shared_blocks blocks(0, 2);
        const auto request = post(write_path(), body_of(blocks, 0, 2));
        for (std::size_t n = 150; n < request.size(); n += 50) {
          auto c = co_await raw_client::connect(server.socket());
          c.stream.attach(blocks.file());
          co_await c.send(request.substr(0, n));
          co_await pause(1ms);
          c.stream.close();
        }
        co_await until(ex, [&] { return server.lending().mapped()->bytes() == 0; });
        co_await until(ex, [&] { return server.memory().info().leased_bytes == 0; });
        CHECK(co_await server.memory().async_match(cache_ns, contract_keys(0, 2)) == 0);
      },
      {.seeds = 5});
}

TEST_CASE("cache taking: a server that ends fails the writes under way, and no others") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        const auto path = fresh_path();
        auto first = std::make_unique<lender>(ex, lender_options{.id = 1}, path);
        http_store s(ex, "unix://" + path);
        const shared_blocks blocks(0, 2);
        CHECK(!co_await write_shared(s, blocks, 5, 2));
        auto writer = co_await s.async_open_write(cache_ns, contract_layout(), contract_keys(0, 2));
        co_await writer->async_write(0, blocks.layer(0));
        first->stop();
        co_await until(ex, [&] { return first->ended(); });
        first.reset();
        CHECK(!(co_await writer->async_write(1, blocks.layer(1), as_result)).has_value());
        CHECK((co_await writer->async_commit(as_result)).error() == errc::closed);
        CHECK(s.info().failed_writes == 2);
        co_await clock::of(ex).async_wait_for(100ms, asio::deferred);
        lender second(ex, {.id = 2}, path);
        CHECK(!co_await write_shared(s, blocks, 0, 2));  // it is another: sent, and told so
        CHECK(second.lending().taken_segments() == 0);
        CHECK(!co_await write_shared(s, blocks, 0, 2, {.force = true}));
        CHECK(second.lending().taken_segments() == 2 * contract_layout().layers());
        CHECK(co_await read_blocks(s, cache_ns, 0, 2) == 2);
      },
      {.seeds = 10});
}

TEST_CASE("cache taking: a writer that computes between its layers has as long for them as one who sends them") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        constexpr std::uint64_t bytes = 1 << 20;
        const block_layout layout{std::vector<std::uint64_t>(6, bytes)};
        lender server(ex, {.limit = 8 * bytes});
        http_store s(ex, server.local_url());
        const auto memory = allocate_shared(bytes).value();
        auto writer = co_await s.async_open_write(cache_ns, layout, contract_keys(0, 1));
        for (std::uint32_t l = 0; l < layout.layers(); ++l) {
          co_await writer->async_write(l, {memory});
          co_await pause(14s);
        }
        CHECK((co_await writer->async_commit(as_result)).has_value());
        CHECK(server.lending().taken_segments() == layout.layers());
      },
      {.real = false, .seeds = 3});
}

TEST_CASE("cache taking: a writer that is cancelled or destroyed at any step leaves no half block") {
  const auto body = [](asio::any_io_executor ex) -> awaitable<void> {
    lender server(ex);
    {
      http_store s(ex, server.local_url());
      const auto ec = co_await write_shared(s, shared_blocks(0, 2), 0, 2);
      auto there = co_await server.memory().async_match(cache_ns, contract_keys(0, 2), as_result);
      if (there) CHECK((*there == 0 || *there == 2));
      if (there && !ec) CHECK(*there == 2);
    }
  };
  cancel_at_every_step(body, {.seeds = 50});
  destroy_at_every_step(body, {.seeds = 50});
}

TEST_CASE("cache taking: what was copied is told") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        lender server(ex);
        http_store s(ex, server.local_url());
        const shared_blocks blocks(0, 3);
        CHECK(!co_await write_shared(s, blocks, 0, 3));
        auto c = co_await raw_client::connect(server.at());
        const auto page = (co_await c.ask(get("/metrics"))).body();
        CHECK(page.find("\ncokv_cache_taken_bytes_total " + std::to_string(3 * contract_layout().bytes()) + "\n") !=
              std::string::npos);
        CHECK(page.find("\ncokv_cache_passed_bytes " + std::to_string(blocks.memory().size()) + "\n") !=
              std::string::npos);
      },
      {.seeds = 5});
}
