// CUDA's errors as error_codes, with CUDA's own text.
#pragma once

#include <cuda_runtime_api.h>

#include "cokv/runtime/asio.hpp"

namespace cokv::cuda {

const boost::system::error_category& category() noexcept;

inline error_code make_error(cudaError_t e) noexcept {
  return e == cudaSuccess ? error_code() : error_code(static_cast<int>(e), category());
}

// The driver is missing, too old, or has no device: not an error of the device.
bool means_no_device(cudaError_t e) noexcept;

}  // namespace cokv::cuda
