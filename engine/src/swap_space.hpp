// Host memory for KV of sequences that are not on the device, and the copies to it and back.
#pragma once

#include <span>

#include "cokv/engine/scheduler.hpp"
#include "cokv/kvstream/kv_pool.hpp"
#include "cokv/runtime/device.hpp"
#include "pool_copies.hpp"

namespace cokv::detail {

class swap_space {
 public:
  // Of so many blocks. Throws config_error naming --swap: the machine, or the device, has no such memory.
  swap_space(device d, const geometry& shape, std::uint32_t blocks);
  // As many as fit. Throws config_error naming --swap where none does.
  static std::uint32_t blocks_in(const geometry& shape, std::uint64_t bytes);

  kv_pool& pool() noexcept { return pool_; }
  // As pool_copies.
  result<event> out(const kv_pool& from, std::span<const block_index> device, std::span<const block_index> host) {
    return copies_.out(from, device, pool_, host);
  }
  result<event> in(const kv_pool& to, std::span<const block_index> device, std::span<const block_index> host) {
    return copies_.in(to, device, pool_, host);
  }
  stream& going(bool out) noexcept { return copies_.going(out); }

  std::uint64_t bytes(std::size_t blocks) const noexcept { return blocks * pool_.shape().block_bytes(); }

 private:
  kv_pool pool_;
  pool_copies copies_;
};

}  // namespace cokv::detail
