#include "small_copies.hpp"

namespace cokv::cuda {

std::optional<cudaError_t> copy_by_kernel(const copy_list&, int, cudaStream_t) { return std::nullopt; }

}  // namespace cokv::cuda
