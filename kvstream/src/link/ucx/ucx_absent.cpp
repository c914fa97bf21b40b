// Built where there is no ucp.h: links over UCX are a scheme that this build lacks.
#include "cokv/runtime/error.hpp"
#include "link/ucx/ucx_network.hpp"

namespace cokv::detail {

awaitable<result<byte_stream>> connect_ucx(endpoint) { co_return errc::unsupported; }
result<listener> listen_ucx(const asio::any_io_executor&, const endpoint&) { return errc::unsupported; }
result<std::string> ucx_version() { return errc::unsupported; }

}  // namespace cokv::detail
