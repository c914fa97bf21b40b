#include "cokv/engine/connector.hpp"

#include <doctest/doctest.h>

#include <numeric>

#include "cokv/kvstream/file_store.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/sim_disk.hpp"
#include "cokv/runtime/with.hpp"
#include "engine/fault_store.hpp"
#include "support/co_test.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace std::chrono_literals;

namespace {

constexpr std::uint32_t layers = 3, block_tokens = 4;

geometry small() { return geometry::attention(layers, 2, 4, dtype::f32, block_tokens); }

// What a block's KV has to be: a hash of everything before it, which its key is, so a wrong byte anywhere shows.
std::vector<std::byte> truth(const block_key& key, std::uint32_t layer) {
  std::vector<std::byte> bytes(small().segment_bytes(layer));
  std::uint64_t x = layer + 1;
  for (auto b : key.bytes) x = (x ^ static_cast<std::uint64_t>(b)) * 1099511628211ull;
  for (auto& b : bytes) {
    x = x * 6364136223846793005ull + 1442695040888963407ull;
    b = static_cast<std::byte>(x >> 56);
  }
  return bytes;
}

std::vector<token_id> tokens(std::size_t n, token_id from = 0) {
  std::vector<token_id> t(n);
  std::iota(t.begin(), t.end(), from);
  return t;
}

awaitable<void> sleep_for(duration d) {
  co_await clock::of(co_await asio::this_coro::executor).async_wait_for(d, asio::deferred);
}

struct tier_spec {
  std::string name;
  std::shared_ptr<store> blocks;
  duration load_budget = 2ms;
};

// An engine that only keeps the books: what it "computes" is the truth of each block.
struct machine {
  machine(asio::any_io_executor ex, std::uint32_t blocks, std::vector<tier_spec> specs, kv_connector_options o = {})
      : pool(small(), blocks), cache(pool) {
    std::vector<kv_tier> tiers;
    for (auto& s : specs)
      tiers.push_back(
          {.name = s.name, .blocks = s.blocks, .lookup_budget = 2ms, .load_budget = s.load_budget, .save_budget = 2ms});
    o.on_tier_bad = [this](std::string_view t, error_code) { log += "-" + std::string(t); };
    o.on_tier_good = [this](std::string_view t) { log += "+" + std::string(t); };
    o.on_tier_full = [this](std::string_view t, error_code) { log += "=" + std::string(t); };
    connector.emplace(ex, namespace_id(), cache, std::move(tiers), std::move(o));
    compute = std::make_shared<detail::timeline_core>(ex);
    std::ranges::fill(pool.memory().bytes(), std::byte{0xdd});
  }

  bool right(const block_key& key, block_index block) const {
    for (std::uint32_t l = 0; l < layers; ++l)
      if (!std::ranges::equal(truth(key, l), cache.segment(l, block).bytes())) return false;
    return true;
  }

  struct outcome {
    std::uint32_t cached = 0;  // blocks not computed
    std::uint32_t loaded = 0;
    bool ran = false;
  };

  // One request as an engine serves it. `fail_step`: the device fails in the middle of the prompt.
  awaitable<outcome> serve(request_id id, std::vector<token_id> prompt, std::string salt = {},
                           bool layer_by_layer = true, bool fail_step = false, duration give_up = 0ns) {
    outcome out;
    auto found = co_await connector->async_lookup(id, prompt, salt, how);
    const auto whole = static_cast<std::uint32_t>(prompt.size() / block_tokens);
    const auto all = static_cast<std::uint32_t>((prompt.size() + block_tokens - 1) / block_tokens);
    auto blocks = cache.match(id, std::span(prompt).first((prompt.size() - 1) / block_tokens * block_tokens));
    auto ready = static_cast<std::uint32_t>(blocks.size());
    if (!cache.allocate(all - ready, blocks)) {
      cache.release(blocks);
      connector->finish(id);
      co_return out;
    }
    if (found.blocks > ready) {
      auto load = connector->load(id, ready, std::span(blocks).subspan(ready, found.blocks - ready));
      if (give_up.count() > 0) {
        co_await sleep_for(give_up);
        load.cancel();
      }
      std::uint32_t before = found.blocks;
      for (std::uint32_t l = 0; l < layers; ++l) {
        auto good = co_await load.async_layer(l);
        CHECK(good <= before);
        before = good;
      }
      auto good = co_await load.async_done();
      CHECK(good == before);
      out.loaded = good;
      ready += good;
    }
    out.cached = ready;
    const auto keys = cache.keys(id);
    for (std::uint32_t b = 0; b < ready; ++b) CHECK(right(keys[b], blocks[b]));

    const kv_step_item item{id, ready * block_tokens, static_cast<std::uint32_t>(prompt.size()) - ready * block_tokens,
                            prompt, blocks};
    kv_step step = connector->begin_step({&item, 1});
    for (std::uint32_t l = 0; l < layers; ++l) {
      const event computed(compute, ++enqueued);
      if (layer_by_layer) step.layer_done(l, computed);
    }
    const event done(compute, enqueued);
    if (fail_step) {
      compute->advance(enqueued - 2);
      compute->fail(enqueued - 1, errc::device_failed);
      step.finish(done);
    } else {
      step.finish(done);
      for (std::uint32_t l = 0; l < layers; ++l) {
        co_await sleep_for(10us);
        for (std::uint32_t b = ready; b < whole; ++b)
          std::ranges::copy(truth(keys[b], l), cache.segment(l, blocks[b]).bytes().begin());
        if (layer_by_layer) compute->advance(enqueued - layers + 1 + l);
      }
      compute->advance(enqueued);
    }
    co_await done.async_wait(as_result);
    co_await asio::post(asio::deferred);
    cache.release(blocks);
    connector->finish(id);
    out.ran = true;
    co_return out;
  }

  // The timeline is one queue: its requests are served one after the other.
  kv_pool pool;
  block_cache cache;
  std::optional<kv_connector> connector;
  std::shared_ptr<detail::timeline_core> compute;
  std::uint64_t enqueued = 0;
  std::string log;
  kv_lookup how = kv_lookup::ask;
};

std::shared_ptr<fault_store> make_store(asio::any_io_executor ex, std::uint64_t seed = 1, faults f = {}) {
  return std::make_shared<fault_store>(ex, seed, f);
}

}  // namespace

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
        auto remote = make_store(ex);
        machine m(ex, 16, {{"remote", remote}});
        co_await m.serve(1, tokens(17));
        co_await m.connector->async_close();
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

TEST_CASE("a lookup that opens costs the load no second question, and gives up what no load wants") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto remote = make_store(ex);
        {
          machine m(ex, 16, {{"remote", remote}});
          co_await m.serve(1, tokens(17));
          co_await m.connector->async_close();
        }
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

TEST_CASE("a tier that is slow to open is asked instead, and is not called bad") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto remote = make_store(ex);
        {
          machine m(ex, 16, {{"remote", remote}});
          co_await m.serve(1, tokens(17));
          co_await m.connector->async_close();
        }
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
        auto remote = make_store(ex);
        {
          machine m(ex, 16, {{"remote", remote}});
          co_await m.serve(1, tokens(17));
          co_await m.connector->async_close();
        }
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
            2, tokens(20), "", kv_lookup::ask, asio::bind_cancellation_slot(stop.slot(), [&](error_code ec, kv_match) { ended = ec; }));
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
      {.real = false, .seeds = 200});
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
