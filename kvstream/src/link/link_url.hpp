// Which kind of link, and where: tcp://HOST:PORT, ucx://HOST:PORT, nccl://HOST:PORT; shm:///PATH, cuda_ipc:///PATH;
// mpi://RANK, and mpi:// to listen.
#pragma once

#include <string_view>

#include "cokv/runtime/net.hpp"

namespace cokv::detail {

enum class link_scheme : std::uint8_t { tcp, shm, mpi, ucx, nccl };

struct link_url {
  link_scheme scheme = link_scheme::tcp;
  endpoint at = {};
  int rank = any_rank;
  bool of_devices = false;  // cuda_ipc: shm, and devices copy by themselves
  static constexpr int any_rank = -1;
  bool operator==(const link_url&) const = default;
  std::string to_string() const;
};

// errc::invalid_argument for what is no URL, errc::unsupported for a scheme that no build has.
result<link_url> parse_link_url(std::string_view text);

// What lies under a link's connection: the scheme's network; NCCL's is tcp. errc::unsupported for a scheme that this
// build lacks, or that this context can't have.
awaitable<result<byte_stream>> connect_stream(link_url to);
result<listener> listen_streams(const asio::any_io_executor& ex, const link_url& at);

}  // namespace cokv::detail
