// Compiled for devices alone, and carried by the library as data: who has no CUDA has no dependence on it.
#include "cuda/move_kernel.hpp"

extern "C" __global__ void __launch_bounds__(cokv::cuda::move_threads)
    cokv_move(const __grid_constant__ cokv::cuda::move_job job) {
  cokv::cuda::move_pieces(job, blockIdx.x, gridDim.x, threadIdx.x);
}
