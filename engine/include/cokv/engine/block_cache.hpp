// The device's own tier: hands out the blocks of a kv_pool to the scheduler, keeps computed ones by their key after
// their request has gone, and evicts the least recently used when room is needed. Blocks that a transfer or a step
// still touches are held, and neither evicted nor handed out again.
//
//     cokv::block_cache cache(pool);
//     cache.open(1, prompt, salt);                          // the scheduler's match() then knows request 1's keys
//     cokv::scheduler scheduler({}, cache);
//     cache.publish(key, block);                            // computed: others may share it
//
// Used from its context's thread; reads no clock, does no I/O.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "cokv/engine/scheduler.hpp"
#include "cokv/kvstream/block_key.hpp"
#include "cokv/kvstream/device_blocks.hpp"
#include "cokv/kvstream/kv_pool.hpp"
#include "cokv/kvstream/kv_view.hpp"

namespace cokv {

namespace detail {
class block_cache_state;
}

struct block_cache_stats {
  std::uint64_t hits = 0;     // blocks that match() handed out
  std::uint64_t evicted = 0;  // cached blocks given up for room
  std::size_t cached = 0;     // blocks known by key
  std::size_t in_use = 0;     // blocks of requests, steps and transfers
};

class block_cache final : public block_source {
 public:
  // The pool outlives the cache. `keep` false: nothing is shared between requests.
  explicit block_cache(kv_pool& pool, bool keep = true);
  ~block_cache() override;

  // A request's keys: of the whole blocks of its prompt, then of its answer as far as extend() was told of it.
  // open() of an id that is open replaces it.
  void open(request_id id, std::span<const token_id> prompt, std::string_view salt = {});
  void close(request_id id);
  const std::vector<block_key>& keys(request_id id) const;  // none of a request that is not open
  // `tokens` is the request's whole sequence so far.
  const std::vector<block_key>& extend(request_id id, std::span<const token_id> tokens);

  std::size_t matching(std::span<const block_key> keys) const;  // leading ones that are cached
  // Computed and never to change: shared from now on. The first block of a key stays.
  void publish(const block_key& key, block_index block);
  // What was computed is lost: nothing is shared any more. Blocks that are in use stay whose they are, and are not shared before
  // all have given them up.
  void clear();
  block_hold hold(block_index block);
  std::uint32_t uses(block_index block) const;  // requests, steps and transfers that have it
  buffer segment(std::uint32_t layer, block_index block) const;
  // Blocks that are in use, as they are now: both are stale once a block was given up by all. The pool outlives the view.
  kv_view view(std::span<const block_index> blocks) const;
  block_ref ref(block_index block) const;
  // The blocks for those who move KV. May outlive the cache.
  std::shared_ptr<device_blocks> device() const;

  // Called when blocks became available.
  void on_room(std::function<void()> listener);
  // Called with each key behind the change: cached from now on, or not any more. Does not call the cache.
  void on_change(std::function<void(const block_key&, bool cached)> listener);
  block_cache_stats stats() const;
  kv_pool& pool() const noexcept;

  std::size_t capacity() const override;
  std::size_t available() const override;
  std::size_t coming() const override;
  bool allocate(std::size_t n, std::vector<block_index>& out) override;
  void release(std::span<const block_index> blocks) override;
  std::vector<block_index> match(request_id id, std::span<const token_id> tokens) override;

 private:
  std::shared_ptr<detail::block_cache_state> state_;
};

}  // namespace cokv
