// Told of a sequence's KV as it grows, step by step: so that another worker can keep a copy of it, and go on from there.
//
//     struct copies final : cokv::sequence_sink {
//       void computed(index_range tokens, std::span<const token_id> what, sequence_blocks where) override { ... }
//       void preempted() override { ... }
//     };
//     engine.submit({.prompt = tokens, .max_tokens = 64, .follower = std::make_shared<copies>()});
//
// Every token whose KV is there is told once, in order, from the first one of the prompt on: what a step computed in a call
// of its own, and what came otherwise before that in another. Behind preempted() all of them once more, of other blocks.
// The last token of an answer is not told: its KV is never computed.
//
// Called on the engine's thread, from within its loop, before the token that the step sampled is delivered: a sink must
// neither block nor throw, nor call the engine. Blocks stay what they are until the sequence ends, is preempted or makes
// room for others (engine_options::swap), and as long as `held` does; who reads them later finds out by the view
// (errc::stale_reference). A sequence that comes back is told on from where it was, in other blocks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cokv/engine/scheduler.hpp"
#include "cokv/kvstream/device_blocks.hpp"
#include "cokv/kvstream/kv_view.hpp"

namespace cokv {

// The blocks that hold some of a sequence's tokens, and nothing else of it.
struct sequence_blocks {
  kv_view memory;                   // of the engine's pool, which outlives it
  std::vector<block_index> blocks;  // in order; the first of them holds the first of the tokens
  std::vector<block_hold> held;     // each of them
};

class sequence_sink {
 public:
  virtual ~sequence_sink() = default;
  // KV of these tokens is right, in all layers. `what` they are.
  virtual void computed(index_range tokens, std::span<const token_id> what, sequence_blocks where) = 0;
  virtual void preempted() = 0;
};

}  // namespace cokv
