// A connector and what an engine does around it, without a model: what is "computed" is a hash of everything before it, so
// a wrong byte anywhere shows.
#pragma once

#include <doctest/doctest.h>

#include <numeric>

#include "cokv/engine/connector.hpp"
#include "cokv/runtime/result.hpp"
#include "engine/fault_store.hpp"
#include "support/co_test.hpp"

namespace cokv::test::machines {

using namespace std::chrono_literals;

inline constexpr std::uint32_t layers = 3, block_tokens = 4;

inline geometry small() { return geometry::attention(layers, 2, 4, dtype::f32, block_tokens); }

// What a block's KV has to be: a hash of everything before it, which its key is, so a wrong byte anywhere shows.
inline std::vector<std::byte> truth(const block_key& key, std::uint32_t layer) {
  std::vector<std::byte> bytes(small().segment_bytes(layer));
  std::uint64_t x = layer + 1;
  for (auto b : key.bytes) x = (x ^ static_cast<std::uint64_t>(b)) * 1099511628211ull;
  for (auto& b : bytes) {
    x = x * 6364136223846793005ull + 1442695040888963407ull;
    b = static_cast<std::byte>(x >> 56);
  }
  return bytes;
}

inline std::vector<token_id> tokens(std::size_t n, token_id from = 0) {
  std::vector<token_id> t(n);
  std::iota(t.begin(), t.end(), from);
  return t;
}

inline awaitable<void> sleep_for(duration d) {
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

inline std::shared_ptr<fault_store> make_store(asio::any_io_executor ex, std::uint64_t seed = 1, faults f = {}) {
  return std::make_shared<fault_store>(ex, seed, f);
}

// A tier with the four blocks of tokens(17), left there by a machine that is gone.
inline awaitable<std::shared_ptr<fault_store>> filled_store(asio::any_io_executor ex) {
  auto remote = make_store(ex);
  machine m(ex, 16, {{"remote", remote}});
  co_await m.serve(1, tokens(17));
  co_await m.connector->async_close();
  co_return remote;
}

}  // namespace cokv::test::machines
