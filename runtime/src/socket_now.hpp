// One system call that moves what can be moved without waiting, of as many pieces as a buffer_list has: Asio's operations take
// 64 of them.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>

#include "cokv/runtime/net.hpp"

namespace cokv::detail {

using iovec_array = std::array<iovec, byte_stream::mutable_buffers::limit>;

inline error_code last_error() { return {errno, boost::system::system_category()}; }

// Lists the buffers in `parts`: how many there are.
template <class Buffer>
std::size_t list_parts(const buffer_list<Buffer>& buffers, iovec_array& parts) {
  std::size_t n = 0;
  for (const auto& b : buffers) parts[n++] = {const_cast<void*>(static_cast<const void*>(b.data())), b.size()};
  return n;
}

// A call of the system that signals may interrupt.
template <class Call>
result<std::size_t> uninterrupted(Call call) {
  ssize_t n;
  while ((n = call()) < 0 && errno == EINTR) {
  }
  if (n < 0) return last_error();
  return static_cast<std::size_t>(n);
}

// One call with all of the buffers; none where they hold no byte.
template <class Buffer, class Call>
result<std::size_t> in_one_call(const buffer_list<Buffer>& buffers, Call call) {
  if (buffers.bytes() == 0) return std::size_t(0);
  iovec_array parts;
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = list_parts(buffers, parts);
  return uninterrupted([&] { return call(message); });
}

// Of a socket that does not block. Errors: would_block, bad_descriptor (it is closed), broken_pipe, connection_reset, ...
inline result<std::size_t> send_now(int socket, const byte_stream::const_buffers& from) {
  return in_one_call(from, [socket](msghdr& m) { return ::sendmsg(socket, &m, MSG_NOSIGNAL); });
}

// eof: the peer sends no more.
inline result<std::size_t> receive_now(int socket, const byte_stream::mutable_buffers& into) {
  const auto n = in_one_call(into, [socket](msghdr& m) { return ::recvmsg(socket, &m, 0); });
  if (n && *n == 0 && into.bytes() != 0) return error_code(asio::error::eof);
  return n;
}

// Of an open socket that does not block: neither bytes nor an end nor an error wait to be read.
inline bool nothing_came(int socket) {
  std::byte one;
  const auto n = uninterrupted([&] { return ::recv(socket, &one, 1, MSG_PEEK | MSG_DONTWAIT); });
  return !n && n.error() == asio::error::would_block;
}

}  // namespace cokv::detail
