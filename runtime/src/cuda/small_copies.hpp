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
  std::span<const std::size_t> sizes;  // none of them 0
  bool on_device;                      // both sides of all of them; else one of each may be host memory that CUDA knows
};

// A device's.
class small_copies {
 public:
  struct outcome {
    cudaError_t status = cudaSuccess;
    bool begun = false;  // some of it is on the stream
  };
  explicit small_copies(int ordinal) : ordinal_(ordinal) {}

  // Enqueues them on a stream of the device, which is the current one. None: they are better left to CUDA, or the device has no
  // such kernel, or doesn't reach all of the memory; nothing is enqueued.
  std::optional<outcome> enqueue(const copy_list& all, cudaStream_t on);

 private:
  void* kernel();

  const int ordinal_;
  bool asked_ = false;
  void* kernel_ = nullptr;  // null, once asked: CUDA copies
};

}  // namespace cokv::cuda
