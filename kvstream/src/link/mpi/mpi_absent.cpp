// Built where there is no mpi.h: links over MPI are a scheme that this build lacks.
#include "cokv/runtime/error.hpp"
#include "link/mpi/mpi_network.hpp"

namespace cokv::detail {

awaitable<result<byte_stream>> connect_mpi(int) { co_return errc::unsupported; }
result<listener> listen_mpi(const asio::any_io_executor&) { return errc::unsupported; }
result<std::string> mpi_version() { return errc::unsupported; }

}  // namespace cokv::detail
