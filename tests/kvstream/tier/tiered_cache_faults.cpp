// What goes wrong with tiers, steps and requests costs a recomputation, never a wrong byte.
#include "cokv/kvstream/file_store.hpp"
#include "cokv/runtime/sim_disk.hpp"
#include "kvstream/tier/machine.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace cokv::test::machines;

TEST_CASE("a damaged or lost block and all behind it are computed, and saved again") {
  for (bool damaged : {true, false}) {
    co_test([=](asio::any_io_executor ex) -> awaitable<void> {
      auto disk = make_store(ex);
      const auto prompt = tokens(17);
      cache_machine m(ex, 16, {{"disk", disk}});
      co_await m.serve(prompt);
      co_await m.cache->async_close();
      (damaged ? disk->fault.damaged : disk->fault.lost) = 1;
      cache_machine again(ex, 16, {{"disk", disk}});
      auto r = co_await again.serve(prompt);
      CHECK(r.cached == 0);
      auto c = again.tier();
      CHECK(c.hit_blocks == 4);
      CHECK(c.load_failures == 4);
      CHECK(c.loaded_blocks == 0);
      CHECK(c.digest_failures == (damaged ? 1 : 0));
      CHECK(again.log.empty());  // the tier is well: a block was not
      co_await again.cache->async_close();
      CHECK(again.tier().saved_blocks == 4);
    });
  }
}

TEST_CASE("a dead tier is told of once, costs one budget, and is tried again after a while") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto remote = make_store(ex);
        remote->fault = {.hang = 1};
        tiered_cache_options options;
        options.first_backoff = 1s;
        cache_machine m(ex, 16, {{"remote", remote}}, options);
        auto& time = clock::of(ex);
        auto start = time.now();
        co_await m.lookup(tokens(20));
        CHECK(time.now() - start == 2ms);
        CHECK(m.log == "-remote");
        start = time.now();
        for (std::uint64_t id = 2; id < 10; ++id) co_await m.lookup(tokens(20));
        CHECK(time.now() == start);
        CHECK(remote->calls == 1);
        auto r = co_await m.serve(tokens(20));
        CHECK(r.ran);
        CHECK(m.tier().dropped_blocks == 5);
        CHECK(m.tier().bad);
        co_await sleep_for(1s);
        co_await m.lookup(tokens(20, 50));  // still dead: left alone for twice as long
        CHECK(remote->calls == 2);
        co_await sleep_for(1s);
        co_await m.lookup(tokens(20, 50));
        CHECK(remote->calls == 2);
        remote->fault = {};
        co_await sleep_for(1s);
        co_await m.lookup(tokens(20, 50));
        CHECK(m.log == "-remote+remote");
        CHECK(!m.tier().bad);
      },
      {.real = false});
}

TEST_CASE("a tier that dies in the middle of a load costs a recomputation") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto remote = co_await filled_store(ex);
        cache_machine again(ex, 16, {{"remote", remote}});
        auto found = co_await again.lookup(tokens(17));
        CHECK(found.blocks == 4);
        remote->fault = {.hang = 1};
        std::vector<std::uint32_t> blocks;
        CHECK(again.device->allocate(4, blocks));
        auto load = again.cache->load(again.places(again.keys_of(tokens(17)), blocks), 0, found);
        CHECK(co_await load.async_layer(0) == 0);
        CHECK(co_await load.async_done() == 0);
        CHECK(again.log == "-remote");
        CHECK(again.tier().load_failures == 4);
        again.device->release(blocks);
        CHECK(again.device->available() == 16);
      },
      {.real = false});
}

TEST_CASE("a tier that is slow to open is asked instead, and is not called bad") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto remote = co_await filled_store(ex);
        remote->fault.open_takes = 10ms;
        cache_machine m(ex, 32, {{"remote", remote, 50ms}});
        m.how = kv_lookup::open;
        CHECK((co_await m.serve(tokens(17))).loaded == 4);
        CHECK(m.log.empty());
        CHECK(remote->readers == 0);
        // From now on it is only asked, for a while.
        remote->calls = 0;
        CHECK((co_await m.lookup(tokens(18, 7))).blocks == 0);
        CHECK(remote->calls == 1);
      },
      {.real = false});
}

TEST_CASE("what a lookup opened and a server cut because nobody read it is asked for once more") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto remote = co_await filled_store(ex);
        remote->fault.patience = 1ms;
        for (bool dead : {false, true}) {
          cache_machine m(ex, 32, {{"remote", remote}});
          m.how = kv_lookup::open;
          auto found = co_await m.lookup(tokens(17));
          CHECK(found.blocks == 4);
          co_await sleep_for(5ms);
          if (dead) remote->fault.error = 1;  // not only cut off
          std::vector<std::uint32_t> blocks;
          CHECK(m.device->allocate(4, blocks));
          auto load = m.cache->load(m.places(m.keys_of(tokens(17)), blocks), 0, found);
          CHECK(co_await load.async_done() == (dead ? 0 : 4));
          CHECK(m.log == (dead ? "-remote" : ""));
          m.device->release(blocks);
        }
      },
      {.real = false});
}

TEST_CASE("saves are bounded: what does not fit is dropped and counted, and the engine never waits") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto slow = make_store(ex, 1, {.slowest = 1ms});
        tiered_cache_options options;
        options.max_pending_blocks = 6;
        options.max_saves = 2;
        cache_machine m(ex, 64, {{"slow", slow}}, options);
        for (int i = 0; i < 8; ++i) {
          co_await m.serve(tokens(17, i * 100));
          CHECK(m.tier().pending_blocks <= 6);
        }
        CHECK(slow->most_at_once <= 2 + 1);  // and one lookup
        co_await m.cache->async_close();
        auto c = m.tier();
        CHECK(c.dropped_blocks > 0);
        CHECK(c.dropped_blocks + c.saved_blocks == 8 * 4);
        CHECK(c.pending_blocks == 0);
        CHECK(m.device->available() == 64);
      },
      {.real = false});
}

TEST_CASE("saves that wait for a tier that goes bad are dropped, not tried one after the other") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto remote = make_store(ex);
        tiered_cache_options options;
        options.max_pending_blocks = 64;
        options.max_saves = 1;
        cache_machine m(ex, 64, {{"remote", remote}}, options);
        auto& time = clock::of(ex);
        for (int i = 0; i < 6; ++i) {
          remote->fault = {.hang = i == 0 ? 0.0 : 1.0, .slowest = 0ns};
          // Found by the first request's lookup alone: the saves are what finds the tier silent.
          std::vector<std::uint32_t> blocks;
          const auto prompt = tokens(8, i * 100);
          REQUIRE(m.device->allocate(2, blocks));
          remote->fault.hang = 1;
          auto step = m.cache->begin_step(blocks, m.places(m.keys_of(prompt), blocks));
          for (std::uint32_t l = 0; l < layers; ++l) step.layer_done(l, event());
          step.finish(event());
          m.device->release(blocks);
        }
        CHECK(m.tier().pending_blocks == 12);
        const auto start = time.now();
        co_await m.cache->async_close();
        CHECK(time.now() - start == 2ms);  // one budget
        auto c = m.tier();
        CHECK(c.save_failures == 2);
        CHECK(c.dropped_blocks == 10);
        CHECK(c.pending_blocks == 0);
        CHECK(remote->calls == 1);
        CHECK(m.log == "-remote");
        CHECK(m.device->available() == 64);
      },
      {.real = false});
}

TEST_CASE("a lookup that is cancelled leaves it to the next one to try a bad tier") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto host = make_store(ex), remote = make_store(ex);
        tiered_cache_options options;
        options.first_backoff = 1ms;
        cache_machine m(ex, 16, {{"host", host}, {"remote", remote}}, options);
        remote->fault = {.hang = 1};
        co_await m.lookup(tokens(20));
        CHECK(m.log == "-remote");
        co_await sleep_for(1ms);
        remote->fault = {};
        host->fault = {.hang = 1};  // cancelled while the first tier is asked
        asio::cancellation_signal stop;
        std::optional<error_code> ended;
        m.cache->async_lookup({m.keys_of(tokens(20))},
                              asio::bind_cancellation_slot(stop.slot(), [&](error_code ec, kv_found) { ended = ec; }));
        co_await sleep_for(10us);
        stop.emit(asio::cancellation_type::terminal);
        co_await sleep_for(10us);
        CHECK(ended.has_value());
        host->fault = {};
        co_await m.lookup(tokens(20));
        CHECK(m.log == "-remote+remote");
      },
      {.real = false});
}

TEST_CASE("a disk that is full keeps the blocks that fit, is told of once, and can be read") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto& disk = sim::disk::of(static_cast<sim_context&>(asio::query(ex, asio::execution::context)));
        const auto prompt = tokens(25);
        const auto open = [ex] { return file_store::async_open(ex, {.directory = "kv", .segment_bytes = 4096}); };
        {
          std::shared_ptr<store> files = co_await open();
          cache_machine m(ex, 32, {{"disk", files}});
          co_await m.serve(tokens(4, 900));  // one block, of less than a page
          co_await m.cache->async_close();
        }
        std::shared_ptr<store> files = co_await open();
        // A block takes a page, its file's index one, and one is kept for another entry; the store leaves a sixteenth free.
        disk.faults.capacity = (files->info().file_bytes + 3 * 3 * 4096) * 16 / 15 + 16;
        cache_machine m(ex, 32, {{.name = "disk", .blocks = files, .save_budget = 20ms}});  // files are removed first
        co_await m.serve(prompt);                                                           // six blocks
        co_await sleep_for(50ms);
        auto c = m.tier();
        CHECK(c.saved_blocks == 3);
        CHECK(c.save_failures == 3);
        CHECK(c.no_room_blocks == 3);
        CHECK(c.full);
        CHECK(!c.bad);
        for (int i = 0; i < 4; ++i) {
          co_await m.serve(tokens(25, 1000 + i * 100));
          co_await sleep_for(50ms);
        }
        CHECK(m.log == "=disk");
        CHECK(m.tier().saved_blocks > 6);  // old ones make room
        CHECK(disk.used() <= disk.faults.capacity);
        co_await m.cache->async_close();
        cache_machine again(ex, 32, {{"disk", files}});
        auto r = co_await again.serve(tokens(25, 1300));
        CHECK(r.loaded >= 1);
      },
      {.real = false});
}

TEST_CASE("a step that fails or is given up is neither shared nor saved") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto host = make_store(ex);
    cache_machine m(ex, 16, {{"host", host}});
    co_await m.serve(tokens(17), {}, true, true);
    std::vector<std::uint32_t> blocks;
    CHECK(m.device->allocate(2, blocks));
    const auto prompt = tokens(8, 500);
    {
      auto step = m.cache->begin_step(blocks, m.places(m.keys_of(prompt), blocks));
    }
    m.device->release(blocks);
    co_await m.cache->async_close();
    CHECK(host->kept.empty());
    CHECK(m.device->full() == 0);
    CHECK(m.tier().dropped_blocks == 6);
    CHECK(m.device->available() == 16);
    CHECK(m.log.empty());
  });
}

TEST_CASE("any fault in any tier: right bytes or a recomputation") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto& ctx = static_cast<sim_context&>(asio::query(ex, asio::execution::context));
        const auto seed = ctx.seed();
        const faults some{.error = 0.05, .hang = 0.01, .damaged = 0.03, .lost = 0.03};
        auto host = make_store(ex, seed), disk = make_store(ex, seed + 1, some),
             remote = make_store(ex, seed + 2, some);
        for (int restart = 0; restart < 3; ++restart) {
          tiered_cache_options options;
          options.first_backoff = 1ms;
          options.max_pending_blocks = 8;
          cache_machine m(ex, 20, {{"host", host}, {"disk", disk}, {"remote", remote}}, options);
          for (int i = 0; i < 8; ++i) {
            const auto n = 1 + ctx.below(40);
            m.how = ctx.chance(0.5) ? kv_lookup::open : kv_lookup::ask;
            co_await m.serve(tokens(n, static_cast<std::int32_t>(ctx.below(3)) * 1000), ctx.chance(0.1) ? "salt" : "",
                             ctx.chance(0.7), false, ctx.chance(0.2) ? ctx.between(1ns, 200us) : 0ns);
            if (ctx.chance(0.3)) co_await sleep_for(5ms);
          }
          if (restart == 1) continue;  // destroyed with its transfers under way
          co_await m.cache->async_close();
          CHECK(m.device->available() == 20);
          CHECK(m.device->in_use() == 0);
          host->kept.clear();
        }
        co_await sleep_for(10ms);
        for (const auto* store : {host.get(), disk.get(), remote.get()})
          for (auto& [key, block] : store->kept)
            for (std::uint32_t l = 0; l < layers; ++l) CHECK(block[l] == truth(key, l));
      },
      {.real = false, .seeds = 500});
}

TEST_CASE("a tiered cache can be cancelled and destroyed at every step") {
  auto body = [](asio::any_io_executor ex) -> awaitable<void> {
    auto host = make_store(ex), remote = make_store(ex);
    {
      cache_machine m(ex, 16, {{"host", host}, {"remote", remote}});
      co_await m.serve(tokens(9));
      co_await m.cache->async_close();
    }
    host->kept.clear();
    cache_machine m(ex, 16, {{"host", host}, {"remote", remote}});
    m.how = kv_lookup::open;
    co_await m.serve(tokens(9));
    co_await m.cache->async_close();
  };
  cancel_at_every_step(body);
  destroy_at_every_step(body);
}
