// KV memory in pages of one block, [layer][block][head][plane][token][dim] in one buffer. Blocks are leased; a freed
// block gets a new generation at once, so that references to it are stale, and is handed out again only when nothing
// can write or read it any more: buffers of a block keep it in quarantine, and so do events it was told to wait for.
//
//     cokv::kv_pool pool(g, 1024);
//     auto lease = pool.allocate();                            // result<block_lease>
//     stream.copy(pool.segment(0, *lease), source);            // the stream's reference holds the block
//     lease->reset();                                          // free: quarantined until the copy is done
//
// Layers whose KV lies elsewhere have two places together, behind the others, into which it comes by turns (pager.hpp).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "cokv/kvstream/geometry.hpp"
#include "cokv/runtime/asio.hpp"
#include "cokv/runtime/buffer.hpp"
#include "cokv/runtime/event.hpp"

namespace cokv {

// Names a block as it was at one time: stale once that block is freed.
struct block_ref {
  std::uint32_t index = 0;
  std::uint32_t generation = 0;
  friend auto operator<=>(const block_ref&, const block_ref&) = default;
};

namespace detail {
struct pool_state;
}

// A share of a block. The block is freed when its last lease is gone. Movable; copies are made by share() alone. May
// outlive the pool. Belongs to the pool's thread.
class block_lease {
 public:
  block_lease() = default;
  block_lease(block_lease&& other) noexcept;
  block_lease& operator=(block_lease&& other) noexcept;
  ~block_lease();

  explicit operator bool() const noexcept { return state_ != nullptr; }
  // Of an empty lease: std::logic_error.
  block_ref ref() const;
  std::uint32_t index() const { return ref().index; }
  block_lease share() const;
  std::uint32_t shares() const noexcept;
  // Nobody else has the block, its bytes or an event to wait for: without this lease it is free.
  bool alone() const noexcept;
  void reset() noexcept;

 private:
  friend class kv_pool;
  block_lease(std::shared_ptr<detail::pool_state> state, std::uint32_t index) noexcept;

  std::shared_ptr<detail::pool_state> state_;
  std::uint32_t index_ = 0;
};

struct kv_pool_stats {
  std::uint32_t blocks = 0;
  std::uint32_t free = 0;  // can be handed out now
  std::uint32_t leased = 0;
  std::uint32_t quarantined = 0;  // freed, waiting for their last user
  std::uint64_t allocations = 0;
  std::uint64_t refusals = 0;  // allocations that found too few free blocks
};

class kv_pool {
 public:
  // In host memory.
  kv_pool(geometry g, std::uint32_t blocks);
  // In memory of the caller's, a device's say. Throws config_error when it is smaller than pool_bytes(g, blocks).
  kv_pool(geometry g, std::uint32_t blocks, buffer memory);
  // Without the layers `elsewhere`: ascending, and not all of them; else config_error, as for memory smaller than
  // pool_bytes(g, blocks, elsewhere).
  kv_pool(geometry g, std::uint32_t blocks, buffer memory, std::vector<std::uint32_t> elsewhere);
  kv_pool(kv_pool&&) noexcept;
  kv_pool& operator=(kv_pool&&) noexcept;
  ~kv_pool();

  const geometry& shape() const noexcept;
  std::uint32_t blocks() const noexcept;
  // All of it, for kernels that address blocks by index.
  const buffer& memory() const noexcept;

  // errc::out_of_memory when too few blocks are free: all n or none. What a block held before is not cleared.
  result<block_lease> allocate();
  result<std::vector<block_lease>> allocate(std::uint32_t n);
  // Free blocks, those included whose events have come since.
  std::uint32_t available();

  // How many blocks have come back so far, out of leases or quarantine; those that wait for an event do when somebody looks behind
  // it: available(), allocate().
  std::uint64_t returned() const;
  // Calls it once, when the next block comes back, on whichever thread brings it; it must not throw, nor use the pool. False, and
  // nothing is called: some have come since `returned()` was so many. Replaces the listener before; empty: none.
  bool on_return(std::uint64_t since, std::function<void()> listener);

  // Another lease of a block that is still leased; errc::stale_reference otherwise.
  result<block_lease> lease(block_ref ref);
  bool current(block_ref ref) const noexcept;

  // A layer's part of a block, contiguous. The buffer, its slices and copies keep the block from being handed out
  // again, whichever thread drops them. Throws std::logic_error for a lease of another pool, or a layer that is elsewhere
  // (errc::unsupported).
  buffer segment(std::uint32_t layer, const block_lease& lease) const;
  result<buffer> segment(std::uint32_t layer, block_ref ref) const;
  // Where it begins in memory(); of a layer that is elsewhere, in the place it was given last: std::logic_error before.
  std::uint64_t offset(std::uint32_t layer, std::uint32_t block) const;

  bool elsewhere(std::uint32_t layer) const;
  bool whole() const noexcept;  // no layer is
  // The two places of layers that are elsewhere; empty without such ones.
  std::array<buffer, 2> landings() const;
  // The layer is in this part of memory() from now on: a landing, or its beginning. Throws std::logic_error for another.
  void place(std::uint32_t layer, const buffer& landing);

  // The block stays out of use until the event is ready, with success or not: for writers that work on memory() without
  // a buffer of the block.
  void hold_until(const block_lease& lease, event done);

  kv_pool_stats stats() const noexcept;

 private:
  std::shared_ptr<detail::pool_state> state_;
};

}  // namespace cokv
