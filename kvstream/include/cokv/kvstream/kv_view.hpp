// The KV memory that a slice selects from: blocks of a pool, each checked to be still the one that was meant, or
// memory of the same layout that somebody else owns. Turns a slice into the buffers it covers.
//
//     kv_view view(pool, leases);
//     for (buffer& piece : view.pieces(slice(g, {0, 4}, table)).value()) ...
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "cokv/kvstream/kv_pool.hpp"
#include "cokv/kvstream/slice.hpp"

namespace cokv {

// Cheap to copy.
class kv_view {
 public:
  // The pool outlives the view; the leases need not: a buffer of pieces() keeps its block from being handed out again.
  kv_view(const kv_pool& pool, std::span<const block_lease> leases);
  // Memory laid out as a pool of `blocks` blocks. Throws config_error when it is too small.
  kv_view(geometry g, buffer memory, std::uint32_t blocks);

  std::uint32_t blocks() const noexcept { return state_->blocks; }

  // The extents of the slice, in its order, cut where blocks meet. errc::stale_reference for a block that was freed or
  // is none of the view's, errc::out_of_range for an index beyond it, errc::invalid_argument for another geometry.
  result<std::vector<buffer>> pieces(const slice& what) const;

 private:
  struct state {
    geometry shape;
    std::uint32_t blocks = 0;
    const kv_pool* pool = nullptr;
    std::map<std::uint32_t, block_ref> refs;
    buffer memory;
  };
  std::shared_ptr<const state> state_;
};

}  // namespace cokv
