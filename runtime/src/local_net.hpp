// Byte streams between processes of one machine: Unix sockets, which carry file descriptors besides bytes.
#pragma once

#include "cokv/runtime/net.hpp"

namespace cokv::detail {

result<listener> listen_local(const asio::any_io_executor& ex, const endpoint& at, int backlog);
awaitable<result<byte_stream>> connect_local(asio::any_io_executor ex, endpoint to);

}  // namespace cokv::detail
