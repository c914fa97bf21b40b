// Built where there is no mpi.h: links over MPI are a scheme that this build lacks.
#include "cokv/kvstream/mpi_group.hpp"
#include "cokv/runtime/error.hpp"
#include "link/mpi/mpi_network.hpp"

namespace cokv::detail {

awaitable<result<byte_stream>> connect_mpi(int) { co_return errc::unsupported; }
result<listener> listen_mpi(const asio::any_io_executor&) { return errc::unsupported; }
result<std::string> mpi_version() { return errc::unsupported; }

}  // namespace cokv::detail

namespace cokv {

result<std::shared_ptr<mpi_group>> mpi_group::split(const asio::any_io_executor&, std::uint32_t) {
  return errc::unsupported;
}

}  // namespace cokv
