// Host memory for KV of sequences that are not on the device, and the copies to it and back: each way a stream of its own,
// which is a new one when it has failed.
#pragma once

#include <span>

#include "cokv/engine/block_cache.hpp"
#include "cokv/runtime/device.hpp"

namespace cokv::detail {

class swap_space {
 public:
  // As many blocks as fit. Throws config_error naming --swap: no block fits, or the device gives no such memory.
  swap_space(device d, const geometry& shape, std::uint64_t bytes);

  block_source& blocks() noexcept { return host_; }
  // Block i of one list to, or from, block i of the other. Blocks that a copy touches are not handed out again before it has
  // ended, whoever gives them up. Ready with success: every byte is there.
  result<event> out(const block_cache& from, std::span<const block_index> device, std::span<const block_index> host);
  result<event> in(const block_cache& to, std::span<const block_index> device, std::span<const block_index> host);

  std::uint64_t bytes(std::size_t blocks) const noexcept { return blocks * pool_.shape().block_bytes(); }

 private:
  result<event> copy(stream& by, const block_cache& device, std::span<const block_index> there,
                     std::span<const block_index> here, bool out);

  device device_;
  kv_pool pool_;
  block_cache host_;
  stream out_, in_;
};

}  // namespace cokv::detail
