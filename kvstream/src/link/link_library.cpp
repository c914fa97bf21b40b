#include "cokv/kvstream/link_library.hpp"

#include "cokv/runtime/error.hpp"
#include "link/mpi/mpi_network.hpp"
#include "link/nccl/nccl_version.hpp"
#include "link/ucx/ucx_network.hpp"

namespace cokv {

result<std::string> link_library(std::string_view scheme) {
  if (scheme == "mpi") return detail::mpi_version();
  if (scheme == "nccl") return detail::nccl_version();
  if (scheme == "ucx") return detail::ucx_version();
  return errc::invalid_argument;
}

}  // namespace cokv
