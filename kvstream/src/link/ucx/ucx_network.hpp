// Byte streams over UCX, for links: ucx://HOST:PORT.
#pragma once

#include <string>

#include "cokv/runtime/net.hpp"

namespace cokv::detail {

class ucx_channel;
byte_stream ucx_stream_of(std::shared_ptr<ucx_channel> channel);

// errc::unsupported where there is no UCX, and in virtual time.
awaitable<result<byte_stream>> connect_ucx(endpoint to);
result<listener> listen_ucx(const asio::any_io_executor& ex, const endpoint& at);
// "UCX 1.13.0". Loads it.
result<std::string> ucx_version();

}  // namespace cokv::detail
