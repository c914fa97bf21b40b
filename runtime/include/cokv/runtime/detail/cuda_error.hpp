// A CUDA runtime call's failure as the error_code that streams and devices give: one category, with CUDA's own text. For
// what is enqueued by stream::launch_native; without CUDA in the build errc::unsupported.
//
//     if (auto ec = detail::cuda_error(cudaLaunchKernel(...))) return ec;
#pragma once

#include "cokv/runtime/error.hpp"

namespace cokv::detail {

// No error for 0, cudaSuccess. What failed is not reported again by the next call.
error_code cuda_error(int code) noexcept;

}  // namespace cokv::detail
