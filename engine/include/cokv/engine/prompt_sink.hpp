// Told of a prompt's KV as it is computed, layer by layer: so that it can be on its way to another worker while later layers
// compute.
//
//     struct sender final : cokv::prompt_sink {
//       void begun(prompt_blocks where, std::uint32_t there) override { ... }   // its KV lies in where.blocks
//       void layer(std::uint32_t layer, index_range tokens, event computed) override { ... }
//     };
//     engine.submit({.prompt = tokens, .max_tokens = 1, .sink = std::make_shared<sender>()});
//
// Every token of the prompt is told once in each layer, in order: either it was there when `begun` was called, or `layer`
// tells it. Behind preempted() all of it is told once more, from begun() on, of other blocks. A request that ends earlier
// isn't told to the end; its generation says why.
//
// Whoever was told holds the blocks until it lets them go, which it does as soon as it can: a preempted request, and any
// other, may be waiting for them.
//
// Of a model in parts it is told the layers and heads of the engine's own; other workers' are told there, to who watches for
// its number (stage_worker::watch).
//
// Called on the engine's thread, from within its loop: a sink must neither block nor throw, nor call the engine.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cokv/engine/scheduler.hpp"
#include "cokv/kvstream/device_blocks.hpp"
#include "cokv/kvstream/kv_view.hpp"
#include "cokv/runtime/event.hpp"

namespace cokv {

// Where a prompt's KV lies. The blocks stay what they are as long as `held` does, whatever becomes of the request.
struct prompt_blocks {
  kv_view memory;
  std::vector<block_index> blocks;    // block i holds tokens [i, i + 1) * block_tokens
  std::vector<block_hold> held;       // each of them
  std::shared_ptr<const void> alive;  // what `memory` is a view of
};

class prompt_sink {
 public:
  virtual ~prompt_sink() = default;
  // KV of the first `there` tokens is there, in all layers.
  virtual void begun(prompt_blocks where, std::uint32_t there) = 0;
  // Enqueued: this layer's KV of these tokens is right once `computed` is ready with success.
  virtual void layer(std::uint32_t layer, index_range tokens, event computed) = 0;
  // Before all was told, the request gave its blocks up. What was told of them is as right as it was, while they are held.
  virtual void preempted() = 0;
  // Told to other workers of a model in parts; 0: they are told nothing of it.
  virtual std::uint64_t number() const noexcept { return 0; }
};

}  // namespace cokv
