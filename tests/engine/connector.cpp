#include "cokv/engine/connector.hpp"

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
