// Built where there is no nccl.h, or no CUDA: links over NCCL are a scheme that this build lacks.
#include "cokv/runtime/error.hpp"
#include "link/nccl/nccl_network.hpp"
#include "link/nccl/nccl_version.hpp"

namespace cokv::detail {

result<std::string> nccl_version() { return errc::unsupported; }

error_code check_nccl(const window_registry&) { return errc::unsupported; }
awaitable<result<std::vector<std::byte>>> make_nccl_meeting(std::shared_ptr<window_registry>) {
  co_return errc::unsupported;
}
result<std::unique_ptr<link_carrier>> make_nccl_carrier(const window_registry&, const std::vector<std::byte>&, int,
                                                        const link_options&) {
  return errc::unsupported;
}

}  // namespace cokv::detail
