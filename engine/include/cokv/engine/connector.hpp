// kv_connector: the seam between the engine and kvstream. It knows requests and tokens: which keys a request's blocks
// have, what the device has of them, which of them a step completes. What is behind the device, and how KV gets there
// and back, is tiered_cache's, whose loads and steps it hands out.
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
// Operations are as in tiered_cache.hpp: async_lookup and async_close here are those there.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cokv/engine/block_cache.hpp"
#include "cokv/kvstream/tiered_cache.hpp"

namespace cokv {

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

namespace detail {
class connector_state;
}

// What one model step computes of one request: tokens [start, start + count) of its sequence.
struct kv_step_item {
  request_id id = 0;
  std::uint32_t start = 0;
  std::uint32_t count = 0;
  std::span<const token_id> tokens;     // the sequence as far as it is known
  std::span<const block_index> blocks;  // its block table
  // Also what it only reads stays where it is until the step is over. For a step beside which blocks are handed out and
  // filled: if its request ends, others' KV could come to lie where its context is still being read.
  bool hold_context = false;
};

class kv_connector {
 public:
  // `cache` outlives the connector. Tiers take its pool's memory as it is: where the host can't reach it they are
  // staged_stores. Throws config_error for a tier without a store.
  kv_connector(asio::any_io_executor ex, namespace_id ns, block_cache& cache, std::vector<kv_tier> tiers,
               tiered_cache_options options = {});
  kv_connector(const kv_connector&) = delete;
  kv_connector& operator=(const kv_connector&) = delete;
  ~kv_connector();  // cancels what is on its way

  const asio::any_io_executor& get_executor() const noexcept;

  // A request that is not looked up, since its KV comes from elsewhere: its keys are known from here on, until finish().
  void open(request_id id, std::span<const token_id> prompt, std::string_view salt);
  // void(error_code, kv_match). Opens the request: its keys are known from here on, until finish(). `tokens_ahead`: of
  // other prompts, to be computed before this one.
  template <class Token = asio::deferred_t>
  auto async_lookup(request_id id, std::vector<token_id> prompt, std::string salt, kv_lookup how = kv_lookup::ask,
                    double tokens_ahead = 0, Token&& token = Token()) {
    return detail::initiate_erased<void(error_code, kv_match)>(
        std::forward<Token>(token), get_executor(),
        [state = state_, id, prompt = std::move(prompt), salt = std::move(salt), how,
         tokens_ahead](lookup_handler h) mutable {
          lookup(std::move(state), id, std::move(prompt), std::move(salt), how, tokens_ahead, std::move(h));
        });
  }
  // The same for an open request that gave its blocks back: of its sequence as far as it is known.
  template <class Token = asio::deferred_t>
  auto async_lookup_again(request_id id, std::span<const token_id> sequence, double tokens_ahead = 0,
                          Token&& token = Token()) {
    extend(id, sequence);
    return detail::initiate_erased<void(error_code, kv_match)>(
        std::forward<Token>(token), get_executor(),
        [state = state_, id, tokens = sequence.size(), tokens_ahead](lookup_handler h) mutable {
          look(std::move(state), id, tokens, kv_lookup::ask, tokens_ahead, std::move(h));
        });
  }
  // Gives up what an opening lookup of this request holds and no load has taken over.
  void release(request_id id);

  // Fills blocks `first`, `first + 1`, ... of the request's sequence. Good ones are shared from then on.
  kv_load load(request_id id, std::uint32_t first, std::span<const block_index> blocks);
  kv_step begin_step(std::span<const kv_step_item> items);
  // Tells a step that is not finished of a block it completes, whose last token was not known when it began.
  void name_last_block(kv_step& step, const kv_step_item& item);
  void finish(request_id id);

  // tiered_cache's.
  template <class Token = asio::deferred_t>
  auto async_close(Token&& token = Token()) {
    return behind().async_close(std::forward<Token>(token));
  }

  kv_connector_counters counters() const;
  load_policy* policy() noexcept;  // none where everything is loaded

 private:
  using lookup_handler = asio::any_completion_handler<void(error_code, kv_match)>;
  static void lookup(std::shared_ptr<detail::connector_state> state, request_id id, std::vector<token_id> prompt,
                     std::string salt, kv_lookup how, double tokens_ahead, lookup_handler h);
  static void look(std::shared_ptr<detail::connector_state> state, request_id id, std::size_t tokens, kv_lookup how,
                   double tokens_ahead, lookup_handler h);
  void extend(request_id id, std::span<const token_id> sequence);
  tiered_cache& behind() const noexcept;

  std::shared_ptr<detail::connector_state> state_;
};

}  // namespace cokv
