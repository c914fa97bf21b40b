#include "cokv/kvstream/tiered_cache.hpp"

#include "cokv/kvstream/file_store.hpp"
#include "kvstream/tier/machine.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace cokv::test::machines;

TEST_CASE("the example of the header: what one engine computed, another loads") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto host = make_store(ex), remote = make_store(ex);
    const auto g = small();
    const namespace_id ns;
    const auto keys = chain_keys(tokens(16), block_tokens);
    auto compute = std::make_shared<detail::timeline_core>(ex);
    for (bool again : {false, true}) {
      auto device = std::make_shared<foreign_blocks>(8);
      tiered_cache cache(ex, ns, g.layout(), device,
                         {{.name = "host", .blocks = host}, {.name = "remote", .blocks = remote}});
      std::vector<std::uint32_t> touched;
      REQUIRE(device->allocate(4, touched));
      const auto filled = cache_machine::places(keys, touched);
      if (!again) {
        for (std::uint32_t l = 0; l < g.layers(); ++l)
          for (auto& f : filled) std::ranges::copy(truth(f.key, l), device->segment(l, f.block).bytes().begin());
        kv_step step = cache.begin_step(touched, filled);
        for (std::uint32_t l = 0; l < g.layers(); ++l) step.layer_done(l, event(compute, l + 1));
        step.finish(event(compute, g.layers()));
        compute->advance(g.layers());
      } else {
        auto found = co_await cache.async_lookup({.keys = keys, .on_device = 2});
        CHECK(found.blocks == 2);
        CHECK(found.tier_blocks == std::vector<std::uint32_t>{2, 0});
        kv_load load = cache.load({filled.begin() + 2, filled.end()}, 2, found);
        for (std::uint32_t l = 0; l < g.layers(); ++l) CHECK(co_await load.async_layer(l) == 2);
        CHECK(co_await load.async_done() == 2);
        for (auto& f : std::span(filled).subspan(2))
          CHECK(std::ranges::equal(truth(f.key, 2), device->segment(2, f.block).bytes()));
        CHECK(device->full() == 2);
        auto [ec, none] = co_await load.async_layer(g.layers(), asio::as_tuple(asio::deferred));
        CHECK(ec == errc::out_of_range);
      }
      device->release(touched);
      co_await cache.async_close();
      CHECK(device->available() == 8);
    }
  });
}

TEST_CASE("a tier without a store is refused") {
  asio::io_context io;
  CHECK_THROWS_WITH_AS(
      tiered_cache(io.get_executor(), {}, small().layout(), std::make_shared<foreign_blocks>(1), {{.name = "disk"}}),
      doctest::Contains("disk"), config_error);
}

TEST_CASE("blocks that a step still writes are not handed out when its cache is gone") {
  for (bool gone_first : {true, false})
    co_test([gone_first](asio::any_io_executor ex) -> awaitable<void> {
      cache_machine m(ex, 4, {{"host", make_store(ex)}});
      std::vector<std::uint32_t> blocks;
      REQUIRE(m.device->allocate(2, blocks));
      auto step = m.cache->begin_step(blocks, m.places(m.keys_of(tokens(8)), blocks));
      const event done(m.compute, 1);
      if (gone_first) m.cache.reset();
      step.finish(done);
      m.cache.reset();
      m.device->release(blocks);
      for (int i = 0; i < 50; ++i) co_await asio::post(asio::deferred);
      CHECK(m.device->available() == 2);
      m.compute->advance(1);
      for (int i = 0; i < 50; ++i) co_await asio::post(asio::deferred);
      CHECK(m.device->available() == 4);
    });
}

TEST_CASE("the longest prefix is put together from all tiers, and what was far is nearer next time") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto host = make_store(ex), remote = make_store(ex);
    const auto prompt = tokens(25);
    {
      cache_machine m(ex, 16, {{"remote", remote}});
      co_await m.serve(prompt);
      co_await m.cache->async_close();
    }
    auto keys = chain_keys(prompt, block_tokens);
    for (int i : {0, 1, 4}) host->kept[keys[i]] = remote->kept[keys[i]];  // 2, 3 and 5 only in the remote one
    cache_machine m(ex, 16, {{"host", host}, {"remote", remote}});
    auto r = co_await m.serve(prompt);
    CHECK(r.loaded == 6);
    CHECK(m.tier(0).loaded_blocks == 2);
    CHECK(m.tier(1).loaded_blocks == 4);
    co_await m.cache->async_close();
    CHECK(host->kept.size() == 6);
    CHECK(remote->kept.size() == 6);
  });
}

TEST_CASE("a load that ends with its cache, at any moment, reports no block that is not there") {
  for (int posts = 0; posts < 60; ++posts)
    co_test(
        [posts](asio::any_io_executor ex) -> awaitable<void> {
          auto disk = make_store(ex);
          disk->fault.slowest = 0ns;
          const auto prompt = tokens(17);
          {
            cache_machine m(ex, 16, {{"disk", disk}});
            co_await m.serve(prompt);
            co_await m.cache->async_close();
          }
          cache_machine m(ex, 16, {{"disk", disk}});
          const auto keys = m.keys_of(prompt);
          std::vector<std::uint32_t> blocks;
          REQUIRE(m.device->allocate(4, blocks));
          kv_found nothing;  // no lookup: the load itself asks the tiers
          auto load = m.cache->load(m.places(keys, blocks), 0, nothing);
          for (int i = 0; i < posts; ++i) co_await asio::post(asio::deferred);
          m.cache.reset();
          const auto good = co_await load.async_done();
          for (std::uint32_t b = 0; b < good; ++b) CHECK(m.right(keys[b], blocks[b]));
        },
        {.real = false, .seeds = 5});
}

TEST_CASE("a load that never started completes") {
  asio::io_context io(1);
  cache_machine m(io.get_executor(), 16, {{"disk", make_store(io.get_executor())}});
  std::vector<std::uint32_t> blocks;
  REQUIRE(m.device->allocate(4, blocks));
  std::optional<std::uint32_t> good;
  kv_found nothing;
  auto load = m.cache->load(m.places(m.keys_of(tokens(17)), blocks), 0, nothing);
  load.async_done([&](error_code, std::uint32_t n) { good = n; });
  m.cache.reset();
  io.run();
  CHECK(good == 0u);
}

TEST_CASE("closing waits until what was saved is on the disk") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        std::shared_ptr<store> files = co_await file_store::async_open(ex, {.directory = "kv"});
        cache_machine m(ex, 16, {{"disk", files}});
        co_await m.serve(tokens(17));
        co_await m.cache->async_close();
        CHECK(m.tier().saved_blocks == 4);
        CHECK(files->info().blocks == 4);
      },
      {.real = false});
}
