// Built where there is no nccl.h, or no CUDA.
#include "cokv/runtime/error.hpp"
#include "link/nccl/nccl_version.hpp"

namespace cokv::detail {

result<std::string> nccl_version() { return errc::unsupported; }

}  // namespace cokv::detail
