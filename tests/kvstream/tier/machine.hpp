// A tiered_cache and an engine around it that only keeps the books, over a device's blocks of its own: what is "computed"
// is a hash of everything before it, so a wrong byte anywhere shows.
#pragma once

#include <doctest/doctest.h>

#include <map>
#include <numeric>
#include <optional>

#include "cokv/kvstream/kv_pool.hpp"
#include "cokv/kvstream/tiered_cache.hpp"
#include "cokv/runtime/result.hpp"
#include "support/co_test.hpp"
#include "support/fault_store.hpp"

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

inline std::vector<std::int32_t> tokens(std::size_t n, std::int32_t from = 0) {
  std::vector<std::int32_t> t(n);
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
  duration save_budget = 2ms;
};

inline std::vector<kv_tier> tiers_of(std::vector<tier_spec> specs) {
  std::vector<kv_tier> tiers;
  for (auto& s : specs)
    tiers.push_back({.name = s.name,
                     .blocks = s.blocks,
                     .lookup_budget = 2ms,
                     .load_budget = s.load_budget,
                     .save_budget = s.save_budget});
  return tiers;
}

// Appends what the cache tells of its tiers.
inline tiered_cache_options telling(std::string& log, tiered_cache_options o = {}) {
  o.on_tier_bad = [&log](std::string_view t, error_code) { log += "-" + std::string(t); };
  o.on_tier_good = [&log](std::string_view t) { log += "+" + std::string(t); };
  o.on_tier_full = [&log](std::string_view t, error_code) { log += "=" + std::string(t); };
  return o;
}

// The blocks of an engine that is not ours: a list of free ones, and what is full by its key.
class foreign_blocks final : public device_blocks {
 public:
  explicit foreign_blocks(std::uint32_t n) : pool_(small(), n), slots_(n) {
    std::ranges::fill(pool_.memory().bytes(), std::byte{0xdd});
  }

  std::size_t capacity() const override { return slots_.size(); }
  buffer segment(std::uint32_t layer, std::uint32_t block) const override {
    return pool_.segment(layer, slots_.at(block).lease);
  }
  void hold(std::uint32_t block) override {
    REQUIRE(slots_.at(block).lease);
    ++slots_[block].uses;
  }
  void release(std::uint32_t block) noexcept override {
    auto& s = slots_[block];
    if (--s.uses == 0 && !s.full) s.lease.reset();
  }
  void quarantine(std::uint32_t block, const event& until) override { pool_.hold_until(slots_[block].lease, until); }
  void filled(const block_key& key, std::uint32_t block) override {
    CHECK(slots_.at(block).uses > 0);
    if (!slots_[block].full && by_key_.emplace(key, block).second) slots_[block].full = true;
  }

  bool allocate(std::size_t n, std::vector<std::uint32_t>& out) {
    for (auto it = by_key_.begin(); pool_.available() < n && it != by_key_.end();) {
      auto& s = slots_[it->second];
      if (s.uses > 0) {
        ++it;
        continue;
      }
      s = {};
      it = by_key_.erase(it);
    }
    auto leases = pool_.allocate(static_cast<std::uint32_t>(n));
    if (!leases) return false;
    for (auto& lease : *leases) {
      const auto block = lease.index();
      slots_[block] = {std::move(lease), 1, false};
      out.push_back(block);
    }
    return true;
  }
  void release(std::span<const std::uint32_t> blocks) {
    for (auto b : blocks) release(b);
  }
  std::vector<std::uint32_t> match(std::span<const block_key> keys) {
    std::vector<std::uint32_t> found;
    for (const auto& key : keys) {
      auto it = by_key_.find(key);
      if (it == by_key_.end()) break;
      hold(it->second);
      found.push_back(it->second);
    }
    return found;
  }
  std::uint32_t matching(std::span<const block_key> keys) {
    const auto found = match(keys);
    release(found);
    return static_cast<std::uint32_t>(found.size());
  }
  std::size_t available() {
    std::size_t idle = 0;
    for (auto& s : slots_) idle += s.full && s.uses == 0;
    return pool_.available() + idle;
  }
  std::size_t in_use() const {
    return static_cast<std::size_t>(std::ranges::count_if(slots_, [](auto& s) { return s.uses > 0; }));
  }
  std::size_t full() const { return by_key_.size(); }

 private:
  struct slot {
    block_lease lease;
    int uses = 0;
    bool full = false;
  };
  kv_pool pool_;
  std::vector<slot> slots_;
  std::map<block_key, std::uint32_t> by_key_;
};

struct outcome {
  std::uint32_t cached = 0;  // blocks not computed
  std::uint32_t loaded = 0;
  bool ran = false;
};

// All of a load, layer by layer: how many of the `wanted` blocks came. `give_up`: it is cancelled after so long.
inline awaitable<std::uint32_t> arrived(kv_load load, std::uint32_t wanted, duration give_up) {
  if (give_up.count() > 0) {
    co_await sleep_for(give_up);
    load.cancel();
  }
  std::uint32_t before = wanted;
  for (std::uint32_t l = 0; l < layers; ++l) {
    auto good = co_await load.async_layer(l);
    CHECK(good <= before);
    before = good;
  }
  auto good = co_await load.async_done();
  CHECK(good == before);
  co_return good;
}

// A step as the device does it: `computed(layer)` writes its KV. `fails`: in the middle of it.
template <class Computed>
awaitable<void> run_step(std::shared_ptr<detail::timeline_core> compute, std::uint64_t& enqueued, kv_step& step,
                         bool layer_by_layer, bool fails, Computed computed) {
  for (std::uint32_t l = 0; l < layers; ++l) {
    const event at(compute, ++enqueued);
    if (layer_by_layer) step.layer_done(l, at);
  }
  const event done(compute, enqueued);
  if (fails) {
    compute->advance(enqueued - 2);
    compute->fail(enqueued - 1, errc::device_failed);
    step.finish(done);
  } else {
    step.finish(done);
    for (std::uint32_t l = 0; l < layers; ++l) {
      co_await sleep_for(10us);
      computed(l);
      if (layer_by_layer) compute->advance(enqueued - layers + 1 + l);
    }
    compute->advance(enqueued);
  }
  co_await done.async_wait(as_result);
  co_await asio::post(asio::deferred);
}

struct cache_machine {
  cache_machine(asio::any_io_executor ex, std::uint32_t blocks, std::vector<tier_spec> specs,
                tiered_cache_options o = {})
      : device(std::make_shared<foreign_blocks>(blocks)) {
    cache.emplace(ex, namespace_id(), small().layout(), device, tiers_of(std::move(specs)), telling(log, std::move(o)));
    compute = std::make_shared<detail::timeline_core>(ex);
  }

  bool right(const block_key& key, std::uint32_t block) const {
    for (std::uint32_t l = 0; l < layers; ++l)
      if (!std::ranges::equal(truth(key, l), device->segment(l, block).bytes())) return false;
    return true;
  }
  kv_tier_counters tier(std::size_t i = 0) const { return cache->counters().at(i); }

  static std::vector<block_key> keys_of(std::span<const std::int32_t> prompt, std::string_view salt = {}) {
    return chain_keys(prompt, block_tokens, salt);
  }
  static std::vector<named_block> places(std::span<const block_key> keys, std::span<const std::uint32_t> blocks) {
    std::vector<named_block> out;
    for (std::size_t i = 0; i < blocks.size(); ++i) out.push_back({keys[i], blocks[i]});
    return out;
  }

  // What may be found of a prompt: all whole blocks before its last token.
  awaitable<kv_found> lookup(std::vector<std::int32_t> prompt, std::string salt = {}) {
    auto keys = keys_of(prompt, salt);
    keys.resize((prompt.size() - 1) / block_tokens);
    const auto here = device->matching(keys);
    co_return co_await cache->async_lookup({std::move(keys), here, how}, asio::deferred);
  }

  // One request as an engine serves it. `fail_step`: the device fails in the middle of the prompt.
  awaitable<outcome> serve(std::vector<std::int32_t> prompt, std::string salt = {}, bool layer_by_layer = true,
                           bool fail_step = false, duration give_up = 0ns) {
    outcome out;
    const auto keys = keys_of(prompt, salt);
    const auto usable = std::span(keys).first((prompt.size() - 1) / block_tokens);
    const auto here = device->matching(usable);
    auto found = co_await cache->async_lookup({{usable.begin(), usable.end()}, here, how});
    const auto all = static_cast<std::uint32_t>((prompt.size() + block_tokens - 1) / block_tokens);
    auto blocks = device->match(usable);
    auto ready = static_cast<std::uint32_t>(blocks.size());
    if (!device->allocate(all - ready, blocks)) {
      device->release(blocks);
      co_return out;
    }
    const auto covered = here + found.blocks;
    if (covered > ready) {
      auto load = cache->load(places(std::span(keys).subspan(ready), std::span(blocks).subspan(ready, covered - ready)),
                              ready, found);
      out.loaded = co_await arrived(load, covered, give_up);
      ready += out.loaded;
    }
    found.release();
    out.cached = ready;
    for (std::uint32_t b = 0; b < ready; ++b) CHECK(right(keys[b], blocks[b]));

    kv_step step = cache->begin_step(
        std::span(blocks).subspan(ready),
        places(std::span(keys).subspan(ready), std::span(blocks).subspan(ready, keys.size() - ready)));
    co_await run_step(compute, enqueued, step, layer_by_layer, fail_step, [&](std::uint32_t l) {
      for (std::uint32_t b = ready; b < keys.size(); ++b)
        std::ranges::copy(truth(keys[b], l), device->segment(l, blocks[b]).bytes().begin());
    });
    device->release(blocks);
    out.ran = true;
    co_return out;
  }

  // The timeline is one queue: its requests are served one after the other.
  std::shared_ptr<foreign_blocks> device;
  std::string log;
  std::optional<tiered_cache> cache;
  std::shared_ptr<detail::timeline_core> compute;
  std::uint64_t enqueued = 0;
  kv_lookup how = kv_lookup::ask;
};

inline std::shared_ptr<fault_store> make_store(asio::any_io_executor ex, std::uint64_t seed = 1, faults f = {}) {
  return std::make_shared<fault_store>(ex, seed, f);
}

// A tier with the four blocks of tokens(17), left there by a machine that is gone.
inline awaitable<std::shared_ptr<fault_store>> filled_store(asio::any_io_executor ex) {
  auto remote = make_store(ex);
  cache_machine m(ex, 16, {{"remote", remote}});
  co_await m.serve(tokens(17));
  co_await m.cache->async_close();
  co_return remote;
}

}  // namespace cokv::test::machines
