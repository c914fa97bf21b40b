#include "cache/front.hpp"

#include <boost/json/parse.hpp>

#include "../http_fixture.hpp"
#include "fixture.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

struct sharded {
  sharded(asio::any_io_executor ex, std::size_t shards, std::uint64_t limit = 1 << 26, cache::front_options o = {})
      : memory(ex, {.limit_bytes = limit}), front(ex, memory, {{"memory", &memory}}, with(std::move(o), shards)) {}
  static cache::front_options with(cache::front_options o, std::size_t shards) {
    o.listen = {"127.0.0.1", 0};
    o.shards = shards;
    return o;
  }
  std::string url() const { return "http://" + front.local_endpoint().to_string(); }

  memory_store memory;
  cache::front front;
};

// Runs `body` while the server serves, and ends it.
template <class Body>
awaitable<void> while_served(sharded& s, Body body) {
  co_await s.front.start();
  auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    group.spawn([&] { return s.front.run(); });
    co_await body();
    s.front.drain(1s);
  });
  CHECK(bool(v));
}

}  // namespace

TEST_CASE("cache front: what is written through one shard is read through another") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        for (const std::size_t shards : {1, 2, 3}) {
          sharded s(ex, shards);
          co_await while_served(s, [&]() -> awaitable<void> {
            // A connection each, and so a shard each in turn.
            std::vector<std::unique_ptr<http_store>> clients;
            for (int i = 0; i < 4; ++i) clients.push_back(std::make_unique<http_store>(ex, s.url()));
            for (std::uint32_t i = 0; i < 4; ++i) CHECK(!co_await write_blocks(*clients[i], cache_ns, 3 * i, 3));
            for (auto& c : clients) CHECK(co_await read_blocks(*c, cache_ns, 0, 13) == 12);
            CHECK(co_await clients[0]->async_match(cache_ns, contract_keys(0, 13)) == 12);
            co_await clients[1]->async_remove(cache_ns, contract_keys(6, 1)[0]);
            for (auto& c : clients) CHECK(co_await read_blocks(*c, cache_ns, 0, 13) == 6);
          });
          CHECK(s.memory.info().blocks == 11);
          CHECK(s.memory.info().used_bytes == 11 * contract_layout().bytes());
        }
      },
      {.seeds = 5});
}

TEST_CASE("cache front: many clients at once, on as many shards as there are") {
  run_real([](asio::any_io_executor ex) -> awaitable<void> {
    sharded s(ex, 3, 40 * contract_layout().bytes());
    std::size_t read = 0;
    co_await while_served(s, [&]() -> awaitable<void> {
      auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
        for (std::uint32_t client = 0; client < 8; ++client)
          group.spawn([&, client]() -> awaitable<void> {
            http_store mine(ex, s.url());
            for (std::uint32_t round = 0; round < 20; ++round) {
              const auto first = (client * 7 + round * 3) % 60;
              CHECK(!co_await write_blocks(mine, cache_ns, first, 4));
              read += co_await read_blocks(mine, cache_ns, first, 4);  // compared byte for byte
            }
          });
        co_return;
      });
      CHECK(bool(v));
    });
    CHECK(read > 400);
    CHECK(s.memory.info().used_bytes <= 40 * contract_layout().bytes());
  });
}

TEST_CASE("cache front: what it counts and tells is of all shards") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        sharded s(ex, 3);
        co_await while_served(s, [&]() -> awaitable<void> {
          for (std::uint32_t i = 0; i < 6; ++i) {
            http_store one(ex, s.url());
            CHECK(!co_await write_blocks(one, cache_ns, i, 1));
          }
          for (int i = 0; i < 3; ++i) {
            auto c = co_await raw_client::connect(s.front.local_endpoint());
            // A request is counted when its answer has left, which who has the answer may see a little later.
            constexpr std::string_view counted = "route=\"/v1/kv/{namespace}:write\",status=\"200\"} 6\n";
            auto page = (co_await c.ask(get("/metrics"))).body();
            for (int tries = 0; tries < 1000 && page.find(counted) == std::string::npos; ++tries) {
              co_await clock::of(ex).async_wait_for(std::chrono::milliseconds(5), asio::deferred);
              page = (co_await c.ask(get("/metrics"))).body();
            }
            CHECK(page.find("cokv_cache_blocks{tier=\"memory\"} 6\n") != std::string::npos);
            CHECK(page.find(counted) != std::string::npos);
            CHECK(page.find("\ncokv_cache_room_bytes " + std::to_string(3 * ((256u << 20) / 3 >> 10 << 10))) !=
                  std::string::npos);
            const auto about = boost::json::parse((co_await c.ask(get("/v1/info"))).body());
            CHECK(about.at("tiers").at("memory").at("written_blocks").to_number<int>() == 6);
          }
        });
      },
      {.seeds = 3});
}

TEST_CASE("cache front: a drain lets requests finish on every shard, and takes no new ones") {
  run_real([](asio::any_io_executor ex) -> awaitable<void> {
    sharded s(ex, 2);
    http_store a(ex, s.url()), b(ex, s.url());
    co_await s.front.start();
    bool ended = false;
    auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      group.spawn([&]() -> awaitable<void> {
        co_await s.front.run();
        ended = true;
      });
      const auto layout = contract_layout();
      auto first = co_await a.async_open_write(cache_ns, layout, contract_keys(0, 1));
      auto second = co_await b.async_open_write(cache_ns, layout, contract_keys(1, 1));
      s.front.drain(10s);
      for (std::uint32_t layer = 0; layer < layout.layers(); ++layer) {
        co_await first->async_write(layer, contract_segments(0, 1, layer));
        co_await second->async_write(layer, contract_segments(1, 1, layer));
      }
      co_await first->async_commit();
      CHECK_FALSE(ended);
      co_await second->async_commit();
    });
    CHECK(bool(v));
    CHECK(ended);
    CHECK(s.memory.info().blocks == 2);
  });
}

TEST_CASE("cache front: keys are read again on every shard") {
  run_real([](asio::any_io_executor ex) -> awaitable<void> {
    sharded s(ex, 2);
    co_await while_served(s, [&]() -> awaitable<void> {
      http::api_keys keys;
      keys.add("secret");
      s.front.set_keys(keys);
      std::vector<raw_client> clients;
      for (int i = 0; i < 2; ++i) clients.push_back(co_await raw_client::connect(s.front.local_endpoint()));
      for (auto& c : clients) {
        auto r = co_await c.ask(get("/v1/info"));
        while (r.result_int() == 200) r = co_await c.ask(get("/v1/info"));  // until its shard has heard of it
        CHECK(r.result_int() == 401);
      }
    });
  });
}

TEST_CASE("cache front: a port in use is one line that names the flag and the address") {
  run_real([](asio::any_io_executor ex) -> awaitable<void> {
    auto taken = network::of(ex).listen({"127.0.0.1", 0}).value();
    memory_store memory(ex, {});
    for (const std::size_t shards : {1, 2}) {
      std::string said;
      try {
        cache::front front(ex, memory, {}, {.listen = taken.local_endpoint(), .shards = shards});
      } catch (const config_error& e) {
        said = e.what();
      }
      CHECK(said.find("--listen " + taken.local_endpoint().to_string()) != std::string::npos);
    }
    co_return;
  });
}
