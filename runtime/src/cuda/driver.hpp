// Functions that only the driver has, found by entry point: nothing of it is linked.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace cokv::cuda {

// 64-bit words in pinned memory that a stream writes, or waits for. A CUresult has the value of its cudaError_t.
class stream_words {
 public:
  // None where the driver or the device can't.
  static std::optional<stream_words> find(int ordinal);

  // Everything that the stream did before is visible to whoever sees the value.
  cudaError_t write(cudaStream_t s, std::uint64_t* word, std::uint64_t value) const {
    return static_cast<cudaError_t>(
        write_(s, reinterpret_cast<CUdeviceptr>(word), value, CU_STREAM_WRITE_VALUE_DEFAULT));
  }
  cudaError_t wait_until_at_least(cudaStream_t s, std::uint64_t* word, std::uint64_t value) const {
    return static_cast<cudaError_t>(wait_(s, reinterpret_cast<CUdeviceptr>(word), value, CU_STREAM_WAIT_VALUE_GEQ));
  }

 private:
  using function = CUresult (*)(CUstream, CUdeviceptr, cuuint64_t, unsigned);
  function write_ = nullptr;
  function wait_ = nullptr;
};

// False where setting the device would make a context on it.
bool primary_context_active(int ordinal);

// How much lies behind an address that an allocation, or a mapped one of another process, begins at.
cudaError_t mapped_bytes(void* base, std::size_t& bytes);

}  // namespace cokv::cuda
