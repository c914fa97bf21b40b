// kv_connector: the seam between the engine and kvstream. It finds a prompt's KV in the tiers behind the device (host
// memory, disk, a remote cache), brings it up layer by layer, and streams every new full block out, layer by layer, to
// each tier while later layers still compute. A tier that is down, slow or damaged costs a recomputation, never a
// wrong byte and never a request.
//
//     auto found = co_await connector.async_lookup(id, prompt, salt);      // found.tokens: schedule_request's loadable
//
//     kv_load load = connector.load(id, first_block, blocks);              // for each schedule_load
//     auto good = co_await load.async_done();                              // leading blocks that arrived and verified
//     scheduler.loaded(id, good * block_tokens);
//
//     kv_step step = connector.begin_step(items);                          // for each step that the model runs
//     for (layer...) { ...enqueue the layer...; step.layer_done(layer, compute.record()); }
//     step.finish(compute.record());
//     connector.finish(id);                                                // the request is over
//
// | operation       | cancellation                                        | buffers                      | completes with      |
// |-----------------|-----------------------------------------------------|------------------------------|---------------------|
// | async_lookup    | every kind: nothing happened                        | none                         | what was found [1]  |
// | async_layer,    | every kind: the wait ends, the load goes on         | held by the load             | good blocks         |
// | async_done      |                                                     |                              |                     |
// | kv_load::cancel | the load ends early                                 | free when async_done is over | good blocks so far  |
// | async_close     | terminal, total: cancels transfers, then completes  | all free                     | success             |
//
// [1] tiers that fail count as empty.
//
// async_close waits for what a store does behind a deferred save too, at most the tier's save_budget.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cokv/engine/block_cache.hpp"
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
  std::size_t max_pending_blocks = 0;  // instead of kv_connector_options'; for a store that never makes one wait
  duration lookup_budget = std::chrono::milliseconds(250);  // a lookup that takes longer counts as a failure
  duration load_budget = std::chrono::seconds(5);           // the same, for opening a read and for each layer
  duration save_budget = std::chrono::seconds(30);          // the same, for each step of a save
};

struct kv_connector_options {
  std::size_t max_pending_blocks = 0;  // waiting or on their way to one tier; more are dropped. 0: half of the pool
  std::size_t max_saves = 4;           // steps on their way to one tier at a time
  duration first_backoff = std::chrono::seconds(1);  // a failed tier is left alone so long, doubled each time,
  duration most_backoff = std::chrono::seconds(60);  // up to this
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
  std::uint64_t saved_blocks = 0, saved_bytes = 0;
  std::uint64_t save_failures = 0;   // blocks that the tier refused or lost on their way
  std::uint64_t no_room_blocks = 0;  // of those, the ones it had no room for
  std::uint64_t dropped_blocks = 0;  // not sent: the bound was reached, or the tier is bad
  std::uint64_t digest_failures = 0;
  std::uint64_t errors = 0;          // failed operations
  std::uint64_t pending_blocks = 0;  // now
};

struct kv_connector_counters {
  block_cache_stats device;
  std::vector<kv_tier_counters> tiers;  // in order
};

// Leading blocks of a prompt that need not be computed. Never all of it: the last prompt token is always computed.
struct kv_match {
  std::uint32_t device_blocks = 0;
  std::vector<std::uint32_t> tier_blocks;  // by tier: those that no faster tier has
  std::uint32_t blocks = 0;                // together
  std::uint32_t tokens = 0;                // the same in tokens, for schedule_request::loadable_tokens
};

// What a lookup does with blocks that a tier has. `ask` counts them. `open` begins to read them, so that a load that
// follows at once need not ask again; they are leased until it ends, and what no load wants is given up by release().
enum class kv_lookup { ask, open };

namespace detail {
class connector_state;
class load_state;
class step_state;
}  // namespace detail

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
  asio::any_io_executor get_executor() const;

 private:
  using handler = asio::any_completion_handler<void(error_code, std::uint32_t)>;
  friend class kv_connector;
  explicit kv_load(std::shared_ptr<detail::load_state> state) : state_(std::move(state)) {}
  static void wait(detail::load_state& state, std::uint32_t layer, handler h);
  std::uint32_t last_layer() const;

  std::shared_ptr<detail::load_state> state_;
};

// What one model step computes of one request: tokens [start, start + count) of its sequence.
struct kv_step_item {
  request_id id = 0;
  std::uint32_t start = 0;
  std::uint32_t count = 0;
  std::span<const token_id> tokens;     // the whole sequence, at least start + count
  std::span<const block_index> blocks;  // its block table
  // Also what it only reads stays where it is until the step is over. For a step beside which blocks are handed out and
  // filled: if its request ends, others' KV could come to lie where its context is still being read.
  bool hold_context = false;
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
  // The step's blocks are held, and its full ones shared, when `done` is ready. An event that failed drops them.
  void finish(event done);

 private:
  friend class kv_connector;
  explicit kv_step(std::shared_ptr<detail::step_state> state) : state_(std::move(state)) {}

  std::shared_ptr<detail::step_state> state_;
};

class kv_connector {
 public:
  // `cache` outlives the connector; its pool's memory must be reachable by the host. Throws config_error otherwise.
  kv_connector(asio::any_io_executor ex, namespace_id ns, block_cache& cache, std::vector<kv_tier> tiers,
               kv_connector_options options = {});
  kv_connector(const kv_connector&) = delete;
  kv_connector& operator=(const kv_connector&) = delete;
  ~kv_connector();  // cancels what is on its way

  const asio::any_io_executor& get_executor() const noexcept;

  // void(error_code, kv_match). Opens the request: its keys are known from here on, until finish().
  template <class Token = asio::deferred_t>
  auto async_lookup(request_id id, std::vector<token_id> prompt, std::string salt, kv_lookup how = kv_lookup::ask,
                    Token&& token = Token()) {
    return detail::initiate_erased<void(error_code, kv_match)>(
        std::forward<Token>(token), get_executor(),
        [state = state_, id, prompt = std::move(prompt), salt = std::move(salt), how](lookup_handler h) mutable {
          lookup(std::move(state), id, std::move(prompt), std::move(salt), how, std::move(h));
        });
  }
  // Gives up what an opening lookup of this request holds and no load has taken over.
  void release(request_id id);

  // Fills blocks `first`, `first + 1`, ... of the request's sequence. Good ones are shared from then on.
  kv_load load(request_id id, std::uint32_t first, std::span<const block_index> blocks);
  kv_step begin_step(std::span<const kv_step_item> items);
  void finish(request_id id);

  // void(error_code): no more saves are begun; completes when those on their way have ended. Cancelling it cancels
  // them.
  template <class Token = asio::deferred_t>
  auto async_close(Token&& token = Token()) {
    return detail::initiate_erased<void(error_code)>(
        std::forward<Token>(token), get_executor(),
        [state = state_](close_handler h) mutable { close(std::move(state), std::move(h)); });
  }

  kv_connector_counters counters() const;

 private:
  using lookup_handler = asio::any_completion_handler<void(error_code, kv_match)>;
  using close_handler = asio::any_completion_handler<void(error_code)>;
  static void lookup(std::shared_ptr<detail::connector_state> state, request_id id, std::vector<token_id> prompt,
                     std::string salt, kv_lookup how, lookup_handler h);
  static void close(std::shared_ptr<detail::connector_state> state, close_handler h);

  std::shared_ptr<detail::connector_state> state_;
};

}  // namespace cokv
