// CUDA's errors as error_codes, with CUDA's own text.
#pragma once

#include <cuda_runtime_api.h>

#include "cokv/runtime/asio.hpp"

namespace cokv::cuda {

const boost::system::error_category& category() noexcept;

inline error_code make_error(cudaError_t e) noexcept {
  return e == cudaSuccess ? error_code() : error_code(static_cast<int>(e), category());
}

// Another engine's graph capture forbids the call, or is ended by it: says nothing of the device.
inline bool is_of_capture(cudaError_t e) noexcept {
  return e >= cudaErrorStreamCaptureUnsupported && e <= cudaErrorStreamCaptureWrongThread;
}

// Ends everything on the device for this process.
bool sticks(cudaError_t e) noexcept;

// For calls whose failure changes nothing: it must not be reported by the next one.
inline void drop(cudaError_t e) noexcept {
  if (e != cudaSuccess) (void)cudaGetLastError();
}

// The driver is missing, too old, or has no device: not an error of the device.
bool means_no_device(cudaError_t e) noexcept;

}  // namespace cokv::cuda
