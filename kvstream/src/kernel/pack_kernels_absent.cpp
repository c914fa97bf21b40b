#include "cokv/runtime/error.hpp"
#include "kernel/pack_kernels.hpp"

namespace cokv::detail {

bool pack_kernels::on(stream) {
  known_ = known::not_there;
  return false;
}

error_code pack_kernels::launch(stream, bool, const pack_job&, const buffer&, std::span<const buffer>, bool& reached) {
  reached = false;
  return errc::unsupported;
}

void forget_pack_kernels() {}

}  // namespace cokv::detail
