#include "cokv/runtime/detail/cuda_error.hpp"
#include "cuda.hpp"

namespace cokv::cuda {

result<opened> open(const asio::any_io_executor&, int, const device_options&) { return errc::unsupported; }

std::string explain(int ordinal) {
  return "cuda:" + std::to_string(ordinal) + ": this cokv was built without CUDA (configure with -DCOKV_CUDA=ON)";
}

}  // namespace cokv::cuda

namespace cokv::detail {

error_code cuda_error(int code) noexcept { return code == 0 ? error_code() : make_error_code(errc::unsupported); }

}  // namespace cokv::detail
