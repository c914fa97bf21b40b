// Built where there is no nccl.h, or no CUDA: links over NCCL are a scheme that this build lacks, and ranks
// add up otherwise.
#include "cokv/kvstream/nccl_group.hpp"
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

namespace cokv {

awaitable<result<nccl_gpu>> nccl_gpu_of(device) { co_return errc::unsupported; }
awaitable<result<std::vector<std::byte>>> make_nccl_group_id(device) { co_return errc::unsupported; }
awaitable<result<std::shared_ptr<nccl_group>>> nccl_group::join(device, stream, nccl_place, nccl_group_options) {
  co_return errc::unsupported;
}

}  // namespace cokv
