// Batches of many small copies, by the moving kernel instead of CUDA's own calls.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <optional>
#include <span>

namespace cokv::cuda {

struct copy_list {
  std::span<void* const> to;
  std::span<const void* const> from;
  std::span<const std::size_t> sizes;
  bool on_device;  // both sides of all of them; else one of each may be host memory that CUDA knows
};

// Enqueues them on a stream of this device, which is the current one. None: they are better left to CUDA, or the device has no
// such kernel, or doesn't reach all of the memory; nothing is enqueued.
std::optional<cudaError_t> copy_by_kernel(const copy_list& all, int ordinal, cudaStream_t on);

}  // namespace cokv::cuda
