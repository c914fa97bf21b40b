// An engine's KV of layers that a neighbour keeps: brought into the pool's landings as each step comes to them, and what the
// step added written back; until it is there, blocks that are given up are in quarantine. Prompts that come from elsewhere
// land here first: host memory that the system gives where it is written, and has back when it is at the neighbour, but for what is less
// than a page.
//
// When the neighbour is gone all KV is, since the layers that are here are no use alone: lost() from then on, until
// another one lends.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "cokv/engine/block_cache.hpp"
#include "cokv/engine/engine.hpp"
#include "cokv/kvstream/pager.hpp"

namespace cokv::detail {

class lent_layers {
 public:
  // The pool and the cache outlive it. `settled`: something was written back, or can't be (why). Throws config_error as
  // pager does, or where there is no memory to be reserved.
  using settled_handler = std::function<void(error_code)>;
  lent_layers(kv_pool& pool, block_cache& cache, lent_kv how, settled_handler settled);

  bool has(std::uint32_t layer) const { return pool_.elsewhere(layer); }
  bool lost() const noexcept { return !pages_; }
  void lose();
  // Behind lose(). errc::in_use: what was on its way from the one before may still come; errc::out_of_memory.
  error_code lend(source from, sink to);

  // Of a step that is about to be enqueued, once: which blocks it reads, and which it writes.
  void use(std::span<const batch_sequence> step);
  // The layer is in the pool for this step, when `before`, the layer before it, is computed or not yet. One failure is
  // tried again.
  awaitable<error_code> bring(std::uint32_t layer, event before);
  void computed(std::uint32_t layer, event done);
  void end_step() noexcept { keep_.reset(); }  // all of its layers were told, or no more will be

  // Where an arriving prompt's KV may be written; it holds the blocks.
  kv_view room(std::span<const block_index> blocks) const;
  // What was written there of these blocks goes to the neighbour, by one who holds them.
  awaitable<error_code> put(std::vector<block_index> blocks);
  void forget(std::vector<block_index> blocks);  // what was written is for nobody

  std::uint64_t bytes_in() const { return in_before_ + (pages_ ? pages_->bytes_in() : 0); }
  std::uint64_t bytes_out() const { return out_before_ + (pages_ ? pages_->bytes_out() : 0); }
  duration waited() const noexcept { return waited_; }  // for lent layers, with nothing left to compute

 private:
  void open(source from, sink to);

  kv_pool& pool_;
  block_cache& cache_;
  settled_handler settled_;
  std::shared_ptr<settled_handler> of_this_;  // as long as it is this loan's
  pager_options options_;
  std::shared_ptr<pager> pages_;
  std::weak_ptr<void> landing_;  // of what still uses the landings
  buffer staging_;               // the lent layers, one behind the other
  std::vector<std::uint32_t> changed_;
  std::shared_ptr<const void> keep_;  // of the step that is being enqueued
  std::uint64_t in_before_ = 0, out_before_ = 0;
  duration waited_{};
};

}  // namespace cokv::detail
