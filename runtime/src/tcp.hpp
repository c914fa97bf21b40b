// What of TCP more than one file of the network needs.
#pragma once

#include <boost/asio/ip/tcp.hpp>

#include "cokv/runtime/net.hpp"

namespace cokv::detail {

byte_stream make_tcp_stream(asio::ip::tcp::socket socket);
result<asio::ip::tcp::acceptor> open_tcp_acceptor(const asio::any_io_executor& ex, const endpoint& at, int backlog);
endpoint to_endpoint(const asio::ip::tcp::endpoint& e);

}  // namespace cokv::detail
