// Streams of bytes between the ranks of an MPI job: what a link's connection is over MPI.
#pragma once

#include <string>

#include "cokv/runtime/net.hpp"

namespace cokv::detail {

class mpi_channel;
byte_stream mpi_stream_of(std::shared_ptr<mpi_channel> channel);

// errc::unsupported where there is no MPI, errc::invalid_argument for a rank that the job doesn't have.
awaitable<result<byte_stream>> connect_mpi(int rank);
// Takes streams from any rank.
result<listener> listen_mpi(const asio::any_io_executor& ex);
// "Open MPI v4.1.4". Loads it, and initialises nothing.
result<std::string> mpi_version();

}  // namespace cokv::detail
