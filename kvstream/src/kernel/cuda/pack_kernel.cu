// Compiled for devices alone, and carried by the library as data: who has no CUDA has no dependence on it.
#include "kernel/pack_kernel.hpp"

namespace cokv::detail {

template <bool Packs>
__device__ void move(const pack_job& job) {
  __shared__ pack_tile tile;
  move_tiles<Packs>(job, tile, blockIdx.x, gridDim.x, [](const auto& f) {
    f(threadIdx.x);
    __syncthreads();
  });
}

}  // namespace cokv::detail

extern "C" __global__ void __launch_bounds__(cokv::detail::pack_threads) cokv_pack(cokv::detail::pack_job job) {
  cokv::detail::move<true>(job);
}
extern "C" __global__ void __launch_bounds__(cokv::detail::pack_threads) cokv_unpack(cokv::detail::pack_job job) {
  cokv::detail::move<false>(job);
}
