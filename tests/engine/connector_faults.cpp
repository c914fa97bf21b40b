// What goes wrong with tiers, steps and requests costs a recomputation, never a wrong byte.
#include "cokv/kvstream/file_store.hpp"
#include "cokv/runtime/sim_disk.hpp"
#include "engine/connector_machine.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace cokv::test::machines;

TEST_CASE("a damaged or lost block and all behind it are computed, and saved again") {
  for (bool damaged : {true, false}) {
    co_test([=](asio::any_io_executor ex) -> awaitable<void> {
      auto disk = make_store(ex);
      const auto prompt = tokens(17);
      machine m(ex, 16, {{"disk", disk}});
      co_await m.serve(1, prompt);
      co_await m.connector->async_close();
      (damaged ? disk->fault.damaged : disk->fault.lost) = 1;
      machine again(ex, 16, {{"disk", disk}});
      auto r = co_await again.serve(2, prompt);
      CHECK(r.cached == 0);
      auto c = again.connector->counters().tiers[0];
      CHECK(c.hit_blocks == 4);
      CHECK(c.load_failures == 4);
      CHECK(c.loaded_blocks == 0);
      CHECK(c.digest_failures == (damaged ? 1 : 0));
      CHECK(again.log.empty());  // the tier is well: a block was not
      co_await again.connector->async_close();
      CHECK(again.connector->counters().tiers[0].saved_blocks == 4);
    });
  }
}

TEST_CASE("a dead tier is told of once, costs one budget, and is tried again after a while") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto remote = make_store(ex);
        remote->fault = {.hang = 1};
        kv_connector_options options;
        options.first_backoff = 1s;
        machine m(ex, 16, {{"remote", remote}}, options);
        auto& time = clock::of(ex);
        auto start = time.now();
        co_await m.connector->async_lookup(1, tokens(20), "");
        CHECK(time.now() - start == 2ms);
        CHECK(m.log == "-remote");
        start = time.now();
        for (request_id id = 2; id < 10; ++id) co_await m.connector->async_lookup(id, tokens(20), "");
        CHECK(time.now() == start);
        CHECK(remote->calls == 1);
        auto r = co_await m.serve(20, tokens(20));
        CHECK(r.ran);
        CHECK(m.connector->counters().tiers[0].dropped_blocks == 5);
        CHECK(m.connector->counters().tiers[0].bad);
        co_await sleep_for(1s);
        co_await m.connector->async_lookup(21, tokens(20, 50), "");  // still dead: left alone for twice as long
        CHECK(remote->calls == 2);
        co_await sleep_for(1s);
        co_await m.connector->async_lookup(22, tokens(20, 50), "");
        CHECK(remote->calls == 2);
        remote->fault = {};
        co_await sleep_for(1s);
        co_await m.connector->async_lookup(23, tokens(20, 50), "");
        CHECK(m.log == "-remote+remote");
        CHECK(!m.connector->counters().tiers[0].bad);
      },
      {.real = false});
}

TEST_CASE("a tier that dies in the middle of a load costs a recomputation") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto remote = co_await filled_store(ex);
        machine again(ex, 16, {{"remote", remote}});
        auto found = co_await again.connector->async_lookup(2, tokens(17), "");
        CHECK(found.blocks == 4);
        remote->fault = {.hang = 1};
        std::vector<block_index> blocks;
        CHECK(again.cache.allocate(4, blocks));
        auto load = again.connector->load(2, 0, blocks);
        CHECK(co_await load.async_layer(0) == 0);
        CHECK(co_await load.async_done() == 0);
        CHECK(again.log == "-remote");
        CHECK(again.connector->counters().tiers[0].load_failures == 4);
        again.cache.release(blocks);
        CHECK(again.cache.available() == 16);
      },
      {.real = false});
}

TEST_CASE("a tier that is slow to open is asked instead, and is not called bad") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto remote = co_await filled_store(ex);
        remote->fault.open_takes = 10ms;
        machine m(ex, 32, {{"remote", remote, 50ms}});
        m.how = kv_lookup::open;
        CHECK((co_await m.serve(2, tokens(17))).loaded == 4);
        CHECK(m.log.empty());
        CHECK(remote->readers == 0);
        // From now on it is only asked, for a while.
        remote->calls = 0;
        CHECK((co_await m.connector->async_lookup(3, tokens(18, 7), "", kv_lookup::open)).blocks == 0);
        CHECK(remote->calls == 1);
        m.connector->finish(3);
      },
      {.real = false});
}

TEST_CASE("what a lookup opened and a server cut because nobody read it is asked for once more") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto remote = co_await filled_store(ex);
        remote->fault.patience = 1ms;
        for (bool dead : {false, true}) {
          machine m(ex, 32, {{"remote", remote}});
          CHECK((co_await m.connector->async_lookup(2, tokens(17), "", kv_lookup::open)).blocks == 4);
          co_await sleep_for(5ms);
          if (dead) remote->fault.error = 1;  // not only cut off
          std::vector<block_index> blocks;
          CHECK(m.cache.allocate(4, blocks));
          auto load = m.connector->load(2, 0, blocks);
          CHECK(co_await load.async_done() == (dead ? 0 : 4));
          CHECK(m.log == (dead ? "-remote" : ""));
          m.cache.release(blocks);
          m.connector->finish(2);
        }
      },
      {.real = false});
}

TEST_CASE("saves are bounded: what does not fit is dropped and counted, and the engine never waits") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto slow = make_store(ex, 1, {.slowest = 1ms});
        kv_connector_options options;
        options.max_pending_blocks = 6;
        options.max_saves = 2;
        machine m(ex, 64, {{"slow", slow}}, options);
        for (int i = 0; i < 8; ++i) {
          co_await m.serve(i, tokens(17, i * 100));
          CHECK(m.connector->counters().tiers[0].pending_blocks <= 6);
        }
        CHECK(slow->most_at_once <= 2 + 1);  // and one lookup
        co_await m.connector->async_close();
        auto c = m.connector->counters().tiers[0];
        CHECK(c.dropped_blocks > 0);
        CHECK(c.dropped_blocks + c.saved_blocks == 8 * 4);
        CHECK(c.pending_blocks == 0);
        CHECK(m.cache.available() == 64);
      },
      {.real = false});
}

TEST_CASE("saves that wait for a tier that goes bad are dropped, not tried one after the other") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto remote = make_store(ex);
        kv_connector_options options;
        options.max_pending_blocks = 64;
        options.max_saves = 1;
        machine m(ex, 64, {{"remote", remote}}, options);
        auto& time = clock::of(ex);
        for (int i = 0; i < 6; ++i) {
          remote->fault = {.hang = i == 0 ? 0.0 : 1.0, .slowest = 0ns};
          // Found by the first request's lookup alone: the saves are what finds the tier silent.
          std::vector<block_index> blocks;
          const auto prompt = tokens(8, i * 100);
          m.cache.open(i, prompt);
          REQUIRE(m.cache.allocate(2, blocks));
          const kv_step_item item{static_cast<request_id>(i), 0, 8, prompt, blocks};
          remote->fault.hang = 1;
          auto step = m.connector->begin_step({&item, 1});
          for (std::uint32_t l = 0; l < layers; ++l) step.layer_done(l, event());
          step.finish(event());
          m.cache.release(blocks);
          m.cache.close(i);
        }
        CHECK(m.connector->counters().tiers[0].pending_blocks == 12);
        const auto start = time.now();
        co_await m.connector->async_close();
        CHECK(time.now() - start == 2ms);  // one budget
        auto c = m.connector->counters().tiers[0];
        CHECK(c.save_failures == 2);
        CHECK(c.dropped_blocks == 10);
        CHECK(c.pending_blocks == 0);
        CHECK(remote->calls == 1);
        CHECK(m.log == "-remote");
        CHECK(m.cache.available() == 64);
      },
      {.real = false});
}

TEST_CASE("a lookup that is cancelled leaves it to the next one to try a bad tier") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto host = make_store(ex), remote = make_store(ex);
        kv_connector_options options;
        options.first_backoff = 1ms;
        machine m(ex, 16, {{"host", host}, {"remote", remote}}, options);
        remote->fault = {.hang = 1};
        co_await m.connector->async_lookup(1, tokens(20), "");
        CHECK(m.log == "-remote");
        co_await sleep_for(1ms);
        remote->fault = {};
        host->fault = {.hang = 1};  // cancelled while the first tier is asked
        asio::cancellation_signal stop;
        std::optional<error_code> ended;
        m.connector->async_lookup(
            2, tokens(20), "", kv_lookup::ask,
            asio::bind_cancellation_slot(stop.slot(), [&](error_code ec, kv_match) { ended = ec; }));
        co_await sleep_for(10us);
        stop.emit(asio::cancellation_type::terminal);
        co_await sleep_for(10us);
        CHECK(ended.has_value());
        host->fault = {};
        co_await m.connector->async_lookup(3, tokens(20), "");
        CHECK(m.log == "-remote+remote");
      },
      {.real = false});
}

TEST_CASE("a disk that is full keeps the blocks that fit, is told of once, and can be read") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto& disk = sim::disk::of(static_cast<sim_context&>(asio::query(ex, asio::execution::context)));
        const auto prompt = tokens(25);
        const auto open = [ex] { return file_store::async_open(ex, {.directory = "kv"}); };
        {
          std::shared_ptr<store> files = co_await open();
          machine m(ex, 32, {{"disk", files}});
          co_await m.serve(1, tokens(4, 900));  // one block, to see what it takes
          co_await m.connector->async_close();
        }
        std::shared_ptr<store> files = co_await open();
        const auto one = files->info().used_bytes;
        disk.faults.capacity = one + 3 * one;
        machine m(ex, 32, {{"disk", files}});
        co_await m.serve(2, prompt);  // six blocks
        co_await sleep_for(50ms);
        auto c = m.connector->counters().tiers[0];
        CHECK(c.saved_blocks == 3);
        CHECK(c.save_failures == 3);
        CHECK(c.no_room_blocks == 3);
        CHECK(c.full);
        CHECK(!c.bad);
        for (int i = 0; i < 4; ++i) {
          co_await m.serve(10 + i, tokens(25, 1000 + i * 100));
          co_await sleep_for(50ms);
        }
        CHECK(m.log == "=disk");
        CHECK(m.connector->counters().tiers[0].saved_blocks > 6);  // old ones make room
        CHECK(disk.used() <= disk.faults.capacity);
        co_await m.connector->async_close();
        machine again(ex, 32, {{"disk", files}});
        auto r = co_await again.serve(3, tokens(25, 1300));
        CHECK(r.loaded >= 1);
      },
      {.real = false});
}

TEST_CASE("a step that fails or is given up is neither shared nor saved") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto host = make_store(ex);
    machine m(ex, 16, {{"host", host}});
    co_await m.serve(1, tokens(17), {}, true, true);
    std::vector<block_index> blocks;
    m.cache.open(2, tokens(8, 500));
    CHECK(m.cache.allocate(2, blocks));
    const auto prompt = tokens(8, 500);
    {
      const kv_step_item item{2, 0, 8, prompt, blocks};
      auto step = m.connector->begin_step({&item, 1});
    }
    m.cache.release(blocks);
    co_await m.connector->async_close();
    CHECK(host->kept.empty());
    CHECK(m.cache.stats().cached == 0);
    CHECK(m.connector->counters().tiers[0].dropped_blocks == 6);
    CHECK(m.cache.available() == 16);
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
        request_id id = 0;
        for (int restart = 0; restart < 3; ++restart) {
          kv_connector_options options;
          options.first_backoff = 1ms;
          options.max_pending_blocks = 8;
          machine m(ex, 20, {{"host", host}, {"disk", disk}, {"remote", remote}}, options);
          for (int i = 0; i < 8; ++i) {
            const auto n = 1 + ctx.below(40);
            m.how = ctx.chance(0.5) ? kv_lookup::open : kv_lookup::ask;
            co_await m.serve(++id, tokens(n, static_cast<token_id>(ctx.below(3)) * 1000), ctx.chance(0.1) ? "salt" : "",
                             ctx.chance(0.7), false, ctx.chance(0.2) ? ctx.between(1ns, 200us) : 0ns);
            if (ctx.chance(0.3)) co_await sleep_for(5ms);
          }
          if (restart == 1) continue;  // destroyed with its transfers under way
          co_await m.connector->async_close();
          CHECK(m.cache.available() == 20);
          CHECK(m.cache.stats().in_use == 0);
          host->kept.clear();
        }
        co_await sleep_for(10ms);
        for (const auto* store : {host.get(), disk.get(), remote.get()})
          for (auto& [key, block] : store->kept)
            for (std::uint32_t l = 0; l < layers; ++l) CHECK(block[l] == truth(key, l));
      },
      {.real = false, .seeds = 500});
}

TEST_CASE("a connector can be cancelled and destroyed at every step") {
  auto body = [](asio::any_io_executor ex) -> awaitable<void> {
    auto host = make_store(ex), remote = make_store(ex);
    {
      machine m(ex, 16, {{"host", host}, {"remote", remote}});
      co_await m.serve(1, tokens(9));
      co_await m.connector->async_close();
    }
    host->kept.clear();
    machine m(ex, 16, {{"host", host}, {"remote", remote}});
    m.how = kv_lookup::open;
    co_await m.serve(2, tokens(9));
    co_await m.connector->async_close();
  };
  cancel_at_every_step(body);
  destroy_at_every_step(body);
}
