// The KV memory that a slice selects from: blocks of a pool, each checked to be still the one that was meant, or memory
// of any layout that somebody else owns. Turns a slice into the buffers it covers.
//
//     kv_view view(pool, leases);
//     for (buffer& piece : view.pieces(slice(g, {0, 4}, table)).value()) ...
//     kv_view theirs(kv_layout::faster_transformer(g, batch, max_seq), {key_cache, value_cache});
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "cokv/kvstream/kv_layout.hpp"
#include "cokv/kvstream/kv_pool.hpp"
#include "cokv/kvstream/slice.hpp"

namespace cokv {

// What a slice covers, in its order; run.buffer is one of `memory`, which is held by it.
struct kv_runs {
  std::vector<kv_run> runs;
  std::vector<buffer> memory;
};

// Cheap to copy.
class kv_view {
 public:
  kv_view() = default;  // a place for one: may only be assigned to and destroyed
  // The pool outlives the view; the leases need not: a buffer of pieces() keeps its block from being handed out again. Throws
  // std::logic_error for a pool that has not all layers.
  kv_view(const kv_pool& pool, std::span<const block_lease> leases);
  // Somebody else's memory, which nobody frees while the view or a buffer of it is there. Throws config_error, naming
  // the buffer, where there are fewer or more than the layout has, or where it reaches beyond one.
  kv_view(kv_layout layout, std::vector<buffer> memory);
  // The same, laid out as a pool of `blocks` blocks.
  kv_view(geometry g, buffer memory, std::uint32_t blocks);

  // The same KV, selected in blocks of fewer tokens, as kv_layout::in_blocks_of: for a peer whose blocks are others.
  kv_view in_blocks_of(std::uint32_t tokens) const;

  const kv_layout& layout() const noexcept { return state_->layout; }
  std::uint32_t blocks() const noexcept { return layout().blocks(); }

  // The extents of the slice, in its order, cut where blocks meet. errc::stale_reference for a block that was freed or
  // is none of the view's, errc::out_of_range for blocks or tokens beyond it, errc::invalid_argument for another
  // geometry.
  result<std::vector<buffer>> pieces(const slice& what) const;
  // The same bytes with nothing merged (slice::for_each_fragment): what a transfer costs that doesn't pack.
  result<std::vector<buffer>> fragments(const slice& what) const;
  // The same bytes, for whoever moves them by the row. Errors as above.
  result<kv_runs> runs(const slice& what) const;
  // The same errors: whether what was asked for a while ago still is what it was.
  error_code check(const slice& what) const;

 private:
  struct state {
    kv_layout layout;
    const kv_pool* pool = nullptr;
    std::map<std::uint32_t, block_ref> refs;  // of the pool's blocks, each of which is some of the layout's
    std::vector<buffer> memory;
  };
  result<std::vector<block_ref>> refs(const slice& what) const;
  std::shared_ptr<const state> state_;
};

}  // namespace cokv
