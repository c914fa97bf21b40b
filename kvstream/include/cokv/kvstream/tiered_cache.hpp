// The tiers behind a device's KV: host memory, disk, a remote cache, in one longest-prefix lookup that leases what it
// found. What was found comes up layer by layer, so that computing starts on the first layer while the last is on its
// way; every new full block goes out to each tier, layer by layer, while later layers compute. A tier that is down, slow
// or damaged costs a recomputation, never a wrong byte and never a request. For any engine: it brings its blocks
// (device_blocks) and its keys. (tiered_store is something else: two stores that look like one, for a cache server.)
//
//     cokv::tiered_cache cache(ex, ns, g.layout(), device, {{.name = "host", .blocks = host},
//                                                           {.name = "remote", .blocks = remote}});
//     auto found = co_await cache.async_lookup({.keys = keys, .on_device = 2});   // the device has the first two
//     cokv::kv_load load = cache.load(places, 2, found);                          // key and block of each one wanted
//     for (layer...) { co_await load.async_layer(layer); ...enqueue it for the tokens behind... }
//     auto good = co_await load.async_done();                  // leading blocks that arrived and verified
//
//     cokv::kv_step step = cache.begin_step(touched, filled);  // for each step of the model
//     for (layer...) { ...enqueue the layer...; step.layer_done(layer, compute.record()); }
//     step.finish(compute.record());
//
// | operation       | cancellation                                        | buffers                      | completes with      |
// |-----------------|-----------------------------------------------------|------------------------------|---------------------|
// | async_lookup    | every kind: nothing happened                        | none                         | what was found [1]  |
// | async_layer,    | every kind: the wait ends, the load goes on         | held by the load             | good blocks         |
// | async_done      |                                                     |                              |                     |
// | kv_load::cancel | the load ends early                                 | free when async_done is over | good blocks so far  |
// | kv_load::late   | at once                                             | held till the last write [2] | whether given up    |
// | kv_step::       | at once, before finish()                            | held by the step             | nothing             |
// | add_filled      |                                                     |                              |                     |
// | async_close     | terminal, total: cancels transfers, then completes  | all free                     | success             |
//
// [1] tiers that fail count as empty.
// [2] those that did not arrive; the good ones are the device's.
//
// async_close waits for what a store does behind a deferred save too, at most the tier's save_budget. Errors of tiers
// reach nobody but the counters and the callbacks. Everything belongs to one context and is used from its thread;
// nothing blocks. Loads and steps may outlive the cache: what is on its way is cancelled, blocks stay held until then.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cokv/kvstream/device_blocks.hpp"
#include "cokv/kvstream/load_policy.hpp"
#include "cokv/kvstream/namespace_id.hpp"
#include "cokv/kvstream/store.hpp"
#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/detail/initiate_erased.hpp"
#include "cokv/runtime/event.hpp"

namespace cokv {

// A store behind the device, from the fastest to the slowest.
struct kv_tier {
  std::string name;  // in counters and warnings: "host", "disk", "remote"
  std::shared_ptr<store> blocks;
  bool load = true;
  bool save = true;
  bool deferred = true;  // saves end when the store has taken the bytes; false: when the blocks are visible
  std::size_t max_pending_blocks = 0;  // instead of tiered_cache_options'; for a store that never makes one wait
  duration lookup_budget = std::chrono::milliseconds(250);  // a lookup that takes longer counts as a failure
  duration load_budget = std::chrono::seconds(5);           // the same, for opening a read and for each layer
  duration save_budget = std::chrono::seconds(30);          // the same, for each step of a save
};

struct tiered_cache_options {
  std::size_t max_pending_blocks = 0;  // waiting or on their way to one tier; more are dropped. 0: half the device's
  std::size_t max_saves = 4;           // steps on their way to one tier at a time
  duration first_backoff = std::chrono::seconds(1);  // a failed tier is left alone so long, doubled each time,
  duration most_backoff = std::chrono::seconds(60);  // up to this
  // Loads what pays alone, and waits for it no longer than that; the engine tells policy() what computing takes. None:
  // whatever is found is loaded.
  std::optional<load_policy_options> policy;
  std::function<void(std::string_view tier, error_code why)> on_tier_bad;  // once, when it goes bad
  std::function<void(std::string_view tier)> on_tier_good;                 // once, when it is back
  // Once, when blocks find no room in a tier that is well otherwise; again when all did for most_backoff in between.
  std::function<void(std::string_view tier, error_code why)> on_tier_full;
};

struct kv_tier_counters {
  std::string name;
  bool bad = false;
  bool full = false;  // blocks found no room lately; what it has can be read
  std::uint64_t lookups = 0, hit_blocks = 0, missed_blocks = 0;
  std::uint64_t loaded_blocks = 0, loaded_bytes = 0;
  std::uint64_t load_failures = 0;  // blocks that were promised and did not arrive whole: computed instead
  std::uint64_t late_blocks = 0;    // of those, the ones that were given up when it had taken too long
  // Blocks that were found and are computed by choice: loading takes longer, always or while others load.
  std::uint64_t chosen_slow_blocks = 0, chosen_busy_blocks = 0;
  std::uint64_t spared_lookups = 0;  // not asked, since nothing that it may have would pay
  std::uint64_t saved_blocks = 0, saved_bytes = 0;
  std::uint64_t save_failures = 0;   // blocks that the tier refused or lost on their way
  std::uint64_t no_room_blocks = 0;  // of those, the ones it had no room for
  std::uint64_t dropped_blocks = 0;  // not sent: the bound was reached, or the tier is bad
  std::uint64_t digest_failures = 0;
  std::uint64_t errors = 0;          // failed operations
  std::uint64_t pending_blocks = 0;  // now
};

// What a lookup does with blocks that a tier has. `ask` counts them. `open` begins to read them, so that a load that
// follows at once need not ask again; they are leased until it ends, and what no load wants is given up by release().
enum class kv_lookup { ask, open };

struct kv_query {
  std::vector<block_key> keys;  // of the sequence's whole blocks, as far as they are wanted
  std::uint32_t on_device = 0;  // leading ones that the device has: no tier is asked for them
  kv_lookup how = kv_lookup::ask;
  // For the policy, where there is one: of the whole sequence, of a block, and of others that are computed before it.
  std::uint32_t tokens = 0;
  std::uint32_t block_tokens = 0;
  double tokens_ahead = 0;
};

namespace detail {

class tiered_cache_state;
class load_state;
class step_state;

// Where the blocks [first, first + count) of a sequence come from; `reader`, if it is open already, is for them alone.
struct load_run {
  std::size_t tier = 0;
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  std::shared_ptr<block_reader> reader = nullptr;
};

}  // namespace detail

// What a lookup found behind the device, and its lease. Copies share the lease, which is for one load.
struct kv_found {
  std::uint32_t blocks = 0;                // behind those on the device, without a gap
  std::vector<std::uint32_t> tier_blocks;  // by tier: those that no faster tier has
  std::vector<detail::load_run> runs;      // the cache's
  duration patience{};                     // how long a load of them may take; 0: as long as its tiers'

  void release() noexcept {
    for (auto& run : runs) run.reader.reset();
  }
};

// Blocks on their way to the device. A handle: copies share it, dropping them all does not end the load.
class kv_load {
 public:
  // void(error_code, std::uint32_t): when every block's KV of this layer is there or lost; how many leading blocks are
  // good so far. It never grows from layer to layer.
  template <class Token = asio::deferred_t>
  auto async_layer(std::uint32_t layer, Token&& token = Token()) const {
    return detail::initiate_erased<void(error_code, std::uint32_t)>(
        std::forward<Token>(token), get_executor(),
        [state = state_, layer](handler h) { wait(*state, layer, std::move(h)); });
  }

  // The same for all layers: only these blocks may be used; from the first bad one on everything is computed.
  template <class Token = asio::deferred_t>
  auto async_done(Token&& token = Token()) const {
    return async_layer(last_layer(), std::forward<Token>(token));
  }

  void cancel();
  // It took too long and was given up. Blocks that are good are good; the others may still be written by what can't be
  // stopped, and stay held until it ends: computing needs other blocks.
  bool late() const noexcept;
  asio::any_io_executor get_executor() const;

 private:
  using handler = asio::any_completion_handler<void(error_code, std::uint32_t)>;
  friend class tiered_cache;
  explicit kv_load(std::shared_ptr<detail::load_state> state) : state_(std::move(state)) {}
  static void wait(detail::load_state& state, std::uint32_t layer, handler h);
  std::uint32_t last_layer() const;

  std::shared_ptr<detail::load_state> state_;
};

// A step in flight. It holds the step's blocks until it is over, so that a request may be cancelled under it.
class kv_step {
 public:
  kv_step() = default;
  kv_step(kv_step&&) noexcept = default;
  kv_step& operator=(kv_step&&) noexcept;
  ~kv_step();  // unfinished: nothing of it is kept or saved

  // The layer's KV of the step is in memory once `computed` is ready. Layers come in order; a step that is one piece (a
  // replayed graph) may leave them out: finish() stands for those not told.
  void layer_done(std::uint32_t layer, event computed);
  // More blocks that the step completes, whose names came to be known while it ran; before finish().
  void add_filled(std::vector<named_block> more);
  // The step's blocks are held, and its full ones shared, when `done` is ready. An event that failed drops them.
  void finish(event done);

 private:
  friend class tiered_cache;
  explicit kv_step(std::shared_ptr<detail::step_state> state) : state_(std::move(state)) {}

  std::shared_ptr<detail::step_state> state_;
};

class tiered_cache {
 public:
  // Throws config_error for a tier without a store.
  tiered_cache(asio::any_io_executor ex, namespace_id ns, block_layout layout, std::shared_ptr<device_blocks> device,
               std::vector<kv_tier> tiers, tiered_cache_options options = {});
  tiered_cache(const tiered_cache&) = delete;
  tiered_cache& operator=(const tiered_cache&) = delete;
  ~tiered_cache();  // cancels what is on its way

  const asio::any_io_executor& get_executor() const noexcept;
  std::size_t tiers() const noexcept;

  // void(error_code, kv_found). Each tier is asked only for what the device and the faster ones do not have.
  template <class Token = asio::deferred_t>
  auto async_lookup(kv_query query, Token&& token = Token()) {
    return detail::initiate_erased<void(error_code, kv_found)>(
        std::forward<Token>(token), get_executor(),
        [state = state_, query = std::move(query)](lookup_handler h) mutable {
          lookup(std::move(state), std::move(query), std::move(h));
        });
  }

  // Brings blocks `first`, `first + 1`, ... of the sequence that was looked up to their places on the device. Good ones
  // are told to the device (filled) before async_done completes. It uses up the lease; a place that `found` does not
  // cover is lost, unless it covers none: then the tiers are asked now.
  kv_load load(std::vector<named_block> places, std::uint32_t first, kv_found& found);

  // A step of the model that writes the blocks `touched`, also those it reads of which nobody else takes care, and has
  // completed the blocks `filled`.
  kv_step begin_step(std::span<const std::uint32_t> touched, std::vector<named_block> filled);

  // void(error_code): no more saves are begun; completes when those on their way have ended. Cancelling it cancels
  // them.
  template <class Token = asio::deferred_t>
  auto async_close(Token&& token = Token()) {
    return detail::initiate_erased<void(error_code)>(
        std::forward<Token>(token), get_executor(),
        [state = state_](close_handler h) mutable { close(std::move(state), std::move(h)); });
  }

  std::vector<kv_tier_counters> counters() const;  // by tier, in order
  load_policy* policy() noexcept;                  // none unless the options have one

 private:
  using lookup_handler = asio::any_completion_handler<void(error_code, kv_found)>;
  using close_handler = asio::any_completion_handler<void(error_code)>;
  static void lookup(std::shared_ptr<detail::tiered_cache_state> state, kv_query query, lookup_handler h);
  static void close(std::shared_ptr<detail::tiered_cache_state> state, close_handler h);

  std::shared_ptr<detail::tiered_cache_state> state_;
};

}  // namespace cokv
