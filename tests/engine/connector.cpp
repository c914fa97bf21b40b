#include "cokv/engine/connector.hpp"

#include "cokv/kvstream/file_store.hpp"
#include "engine/connector_machine.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace cokv::test::machines;

TEST_CASE("a prompt's KV goes out layer by layer and comes back after a restart instead of being computed") {
  for (bool layer_by_layer : {true, false}) {
    co_test([=](asio::any_io_executor ex) -> awaitable<void> {
      auto remote = make_store(ex);
      const auto prompt = tokens(18);
      {
        machine m(ex, 16, {{"remote", remote}});
        auto first = co_await m.serve(1, prompt, {}, layer_by_layer);
        CHECK(first.cached == 0);
        co_await m.connector->async_close();
        CHECK(remote->kept.size() == 4);
        CHECK(m.connector->counters().tiers[0].saved_blocks == 4);
        CHECK(m.connector->counters().tiers[0].saved_bytes == 4 * small().block_bytes());
        CHECK(m.cache.available() == 16);
      }
      for (auto& [key, block] : remote->kept)
        for (std::uint32_t l = 0; l < layers; ++l) CHECK(block[l] == truth(key, l));
      machine m(ex, 16, {{"remote", remote}});
      auto second = co_await m.serve(2, prompt);
      CHECK(second.loaded == 4);
      CHECK(second.cached == 4);
      auto third = co_await m.serve(3, prompt);  // shared from the device now
      CHECK(third.loaded == 0);
      CHECK(third.cached == 4);
      auto other = co_await m.serve(4, prompt, "salt");
      CHECK(other.cached == 0);
      auto c = m.connector->counters();
      CHECK(c.device.hits == 4);
      CHECK(c.tiers[0].hit_blocks == 4);
      CHECK(c.tiers[0].loaded_blocks == 4);
      co_await m.connector->async_close();
      CHECK(m.connector->counters().tiers[0].saved_blocks == 4);  // the salted ones: what it has is not sent again
      CHECK(m.cache.available() == 16);
    });
  }
}

TEST_CASE("the last prompt token is always computed") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto host = make_store(ex);
    machine m(ex, 16, {{"host", host}});
    co_await m.serve(1, tokens(16));
    co_await m.connector->async_close();
    CHECK(host->kept.size() == 4);
    machine again(ex, 16, {{"host", host}});
    auto found = co_await again.connector->async_lookup(1, tokens(16), "");
    CHECK(found.blocks == 3);
    CHECK(found.tokens == 12);
    CHECK((co_await again.connector->async_lookup(2, tokens(17), "")).blocks == 4);
    CHECK((co_await again.connector->async_lookup(3, tokens(1), "")).blocks == 0);
    CHECK((co_await again.connector->async_lookup(4, tokens(12, 5), "")).blocks == 0);
  });
}

TEST_CASE("the longest prefix is put together from all tiers, and what was far is nearer next time") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto host = make_store(ex), remote = make_store(ex);
    const auto prompt = tokens(25);
    {
      machine m(ex, 16, {{"remote", remote}});
      co_await m.serve(1, prompt);
      co_await m.connector->async_close();
    }
    auto keys = chain_keys(prompt, block_tokens);
    for (int i : {0, 1, 4}) host->kept[keys[i]] = remote->kept[keys[i]];  // 2, 3 and 5 only in the remote one
    machine m(ex, 16, {{"host", host}, {"remote", remote}});
    auto r = co_await m.serve(2, prompt);
    CHECK(r.loaded == 6);
    auto c = m.connector->counters();
    CHECK(c.tiers[0].loaded_blocks == 2);
    CHECK(c.tiers[1].loaded_blocks == 4);
    co_await m.connector->async_close();
    CHECK(host->kept.size() == 6);
    CHECK(remote->kept.size() == 6);
  });
}

TEST_CASE("a lookup that opens costs the load no second question, and gives up what no load wants") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto remote = co_await filled_store(ex);
        machine m(ex, 32, {{"remote", remote}});
        m.how = kv_lookup::open;
        remote->calls = 0;
        CHECK((co_await m.serve(2, tokens(17))).loaded == 4);
        CHECK(remote->calls == 1 + layers);
        CHECK(remote->readers == 0);

        machine asked(ex, 32, {{"remote", remote}});
        remote->calls = 0;
        CHECK((co_await asked.serve(2, tokens(17))).loaded == 4);
        CHECK(remote->calls == 2 + layers);

        // Never loaded: held until it is released, or its request is over.
        machine idle(ex, 32, {{"remote", remote}});
        CHECK((co_await idle.connector->async_lookup(1, tokens(17), "", kv_lookup::open)).blocks == 4);
        CHECK((co_await idle.connector->async_lookup(2, tokens(17), "", kv_lookup::open)).blocks == 4);
        CHECK(remote->readers == 2);
        idle.connector->release(1);
        CHECK(remote->readers == 1);
        idle.connector->finish(2);
        CHECK(remote->readers == 0);
        idle.connector->release(2);  // of nobody: nothing

        // The device has got some of them meanwhile: what was opened does not fit any more, so the rest is asked for.
        CHECK((co_await idle.connector->async_lookup(3, tokens(17), "", kv_lookup::open)).blocks == 4);
        std::vector<block_index> blocks;
        CHECK(idle.cache.allocate(2, blocks));
        const auto keys = idle.cache.keys(3);
        auto load = idle.connector->load(3, 2, blocks);
        CHECK(co_await load.async_done() == 2);
        CHECK(idle.right(keys[2], blocks[0]));
        CHECK(idle.right(keys[3], blocks[1]));
        idle.cache.release(blocks);
        idle.connector->finish(3);
        co_await asio::post(asio::deferred);
        CHECK(remote->readers == 0);
      },
      {.real = false});
}

TEST_CASE("a load that ends with its connector, at any moment, reports no block that is not there") {
  for (int posts = 0; posts < 60; ++posts)
    co_test(
        [posts](asio::any_io_executor ex) -> awaitable<void> {
          auto disk = make_store(ex);
          disk->fault.slowest = 0ns;
          const auto prompt = tokens(17);
          {
            machine m(ex, 16, {{"disk", disk}});
            co_await m.serve(1, prompt);
            co_await m.connector->async_close();
          }
          machine m(ex, 16, {{"disk", disk}});
          m.cache.open(2, prompt);  // no lookup, so no plan: the load itself asks the tiers
          const auto keys = m.cache.keys(2);
          std::vector<block_index> blocks;
          REQUIRE(m.cache.allocate(4, blocks));
          auto load = m.connector->load(2, 0, blocks);
          for (int i = 0; i < posts; ++i) co_await asio::post(asio::deferred);
          m.connector.reset();
          const auto good = co_await load.async_done();
          for (std::uint32_t b = 0; b < good; ++b) CHECK(m.right(keys[b], blocks[b]));
        },
        {.real = false, .seeds = 5});
}

TEST_CASE("a load that never started completes") {
  asio::io_context io(1);
  machine m(io.get_executor(), 16, {{"disk", make_store(io.get_executor())}});
  m.cache.open(1, tokens(17));
  std::vector<block_index> blocks;
  REQUIRE(m.cache.allocate(4, blocks));
  std::optional<std::uint32_t> good;
  auto load = m.connector->load(1, 0, blocks);
  load.async_done([&](error_code, std::uint32_t n) { good = n; });
  m.connector.reset();
  io.run();
  CHECK(good == 0u);
}

TEST_CASE("blocks that a step still writes are not handed out when its connector is gone") {
  for (bool gone_first : {true, false})
    co_test([gone_first](asio::any_io_executor ex) -> awaitable<void> {
      machine m(ex, 4, {{"host", make_store(ex)}});
      const auto prompt = tokens(8);
      m.cache.open(1, prompt);
      std::vector<block_index> blocks;
      REQUIRE(m.cache.allocate(2, blocks));
      const kv_step_item item{1, 0, 8, prompt, blocks};
      auto step = m.connector->begin_step({&item, 1});
      const event done(m.compute, 1);
      if (gone_first) m.connector.reset();
      step.finish(done);
      m.connector.reset();
      m.cache.release(blocks);
      for (int i = 0; i < 50; ++i) co_await asio::post(asio::deferred);
      CHECK(m.cache.available() == 2);
      m.compute->advance(1);
      for (int i = 0; i < 50; ++i) co_await asio::post(asio::deferred);
      CHECK(m.cache.available() == 4);
    });
}

TEST_CASE("closing waits until what was saved is on the disk") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        std::shared_ptr<store> files = co_await file_store::async_open(ex, {.directory = "kv"});
        machine m(ex, 16, {{"disk", files}});
        co_await m.serve(1, tokens(17));
        co_await m.connector->async_close();
        CHECK(m.connector->counters().tiers[0].saved_blocks == 4);
        CHECK(files->info().blocks == 4);
      },
      {.real = false});
}
