// The packing kernels' threads, one after the other on the host.
#pragma once

#include "kernel/pack_kernel.hpp"

namespace cokv::detail {

template <bool Packs>
void run_block(const pack_job& job, pack_tile& tile, std::uint32_t block, std::uint32_t blocks) {
  move_tiles<Packs>(job, tile, block, blocks, [](const auto& f) {
    for (std::uint32_t thread = 0; thread < pack_threads; ++thread) f(thread);
  });
}

}  // namespace cokv::detail
