// Host memory for KV of sequences that are not on the device, and the copies to it and back: each way a stream of its own,
// which is a new one when it has failed.
#pragma once

#include <span>

#include "cokv/engine/scheduler.hpp"
#include "cokv/kvstream/kv_pool.hpp"
#include "cokv/runtime/device.hpp"

namespace cokv::detail {

class swap_space {
 public:
  // Of so many blocks. Throws config_error naming --swap: the machine, or the device, has no such memory.
  swap_space(device d, const geometry& shape, std::uint32_t blocks);
  // As many as fit. Throws config_error naming --swap where none does.
  static std::uint32_t blocks_in(const geometry& shape, std::uint64_t bytes);

  kv_pool& pool() noexcept { return pool_; }
  // Block i of one list to, or from, block i of the other, which nobody else may have before the copy has ended. Ready with
  // success: every byte is there.
  result<event> out(const kv_pool& from, std::span<const block_index> device, std::span<const block_index> host);
  result<event> in(const kv_pool& to, std::span<const block_index> device, std::span<const block_index> host);
  stream& going(bool out) noexcept { return out ? out_ : in_; }

  std::uint64_t bytes(std::size_t blocks) const noexcept { return blocks * pool_.shape().block_bytes(); }

 private:
  result<event> copy(const kv_pool& device, std::span<const block_index> there, std::span<const block_index> here,
                     bool out);

  device device_;
  kv_pool pool_;
  stream out_, in_;
};

}  // namespace cokv::detail
