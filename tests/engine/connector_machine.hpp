// A connector and what an engine does around it, without a model.
#pragma once

#include "cokv/engine/connector.hpp"
#include "kvstream/tier/machine.hpp"

namespace cokv::test::machines {

// An engine that only keeps the books: what it "computes" is the truth of each block.
struct machine {
  machine(asio::any_io_executor ex, std::uint32_t blocks, std::vector<tier_spec> specs, tiered_cache_options o = {})
      : pool(small(), blocks), cache(pool) {
    connector.emplace(ex, namespace_id(), cache, tiers_of(std::move(specs)), telling(log, std::move(o)));
    compute = std::make_shared<detail::timeline_core>(ex);
    std::ranges::fill(pool.memory().bytes(), std::byte{0xdd});
  }

  bool right(const block_key& key, block_index block) const {
    for (std::uint32_t l = 0; l < layers; ++l)
      if (!std::ranges::equal(truth(key, l), cache.segment(l, block).bytes())) return false;
    return true;
  }

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
      out.loaded = co_await arrived(load, found.blocks, give_up);
      ready += out.loaded;
    }
    out.cached = ready;
    const auto keys = cache.keys(id);
    for (std::uint32_t b = 0; b < ready; ++b) CHECK(right(keys[b], blocks[b]));

    const kv_step_item item{id, ready * block_tokens, static_cast<std::uint32_t>(prompt.size()) - ready * block_tokens,
                            prompt, blocks};
    kv_step step = connector->begin_step({&item, 1});
    co_await run_step(compute, enqueued, step, layer_by_layer, fail_step, [&](std::uint32_t l) {
      for (std::uint32_t b = ready; b < whole; ++b)
        std::ranges::copy(truth(keys[b], l), cache.segment(l, blocks[b]).bytes().begin());
    });
    cache.release(blocks);
    connector->finish(id);
    out.ran = true;
    co_return out;
  }

  // The timeline is one queue: its requests are served one after the other.
  kv_pool pool;
  block_cache cache;
  std::string log;
  std::optional<kv_connector> connector;
  std::shared_ptr<detail::timeline_core> compute;
  std::uint64_t enqueued = 0;
  kv_lookup how = kv_lookup::ask;
};

}  // namespace cokv::test::machines
