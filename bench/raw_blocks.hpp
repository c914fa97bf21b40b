// Blocks over a bare TCP socket: as many extents a system call as it takes, from where they lie to where they belong,
// with nothing around them but a command of 16 bytes. What a remote cache cannot beat.
#pragma once

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <span>

#include "other_process.hpp"
#include "remote_blocks.hpp"

namespace cokv::bench {

// Both change the list.
inline void move_all(int fd, std::vector<iovec>& all, bool sending) {
  for (std::size_t at = 0; at < all.size();) {
    msghdr m{};
    m.msg_iov = all.data() + at;
    m.msg_iovlen = std::min<std::size_t>(64, all.size() - at);
    auto n = sending ? ::sendmsg(fd, &m, MSG_NOSIGNAL) : ::recvmsg(fd, &m, 0);
    must_be(n > 0, "the bare socket broke");
    for (auto left = static_cast<std::size_t>(n); left != 0;) {
      const auto part = std::min(left, all[at].iov_len);
      all[at].iov_base = static_cast<char*>(all[at].iov_base) + part;
      all[at].iov_len -= part;
      left -= part;
      if (all[at].iov_len == 0) ++at;
    }
  }
}

inline void move_bytes(int fd, void* data, std::size_t n, bool sending) {
  std::vector<iovec> one{{data, n}};
  move_all(fd, one, sending);
}

struct raw_command {
  std::uint32_t put = 0, first = 0, count = 0, unused = 0;
};

inline sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  at.sin_port = htons(port);
  return at;
}

inline void without_delay(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

// The other process: one connection, one command after the other.
inline void serve_raw(const model_shape& model, const std::function<void(std::uint16_t)>& tell) {
  const block_pool memory(model, 3);
  const int door = ::socket(AF_INET, SOCK_STREAM, 0);
  auto at = loopback(0);
  socklen_t size = sizeof at;
  must_be(::bind(door, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0 && ::listen(door, 1) == 0, "listening");
  ::getsockname(door, reinterpret_cast<sockaddr*>(&at), &size);
  tell(ntohs(at.sin_port));
  const int fd = ::accept(door, nullptr, nullptr);
  without_delay(fd);
  for (raw_command c;;) {
    move_bytes(fd, &c, sizeof c, false);
    auto extents = memory.extents(c.first, c.count);
    move_all(fd, extents, !c.put);
    if (c.put) move_bytes(fd, &c, 1, true);
  }
}

class raw_client {
 public:
  raw_client(const model_shape& model)
      : there_([&](auto tell) {
          try {
            serve_raw(model, tell);
          } catch (const std::exception&) {  // its peer is done
          }
        }) {
    count_process(there_.id());
    fd_ = ::socket(AF_INET, SOCK_STREAM, 0);
    const auto at = loopback(there_.port());
    must_be(::connect(fd_, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0, "connecting");
    without_delay(fd_);
  }
  ~raw_client() { ::close(fd_); }

  void put(const block_pool& from, std::size_t first, std::size_t count) {
    raw_command c{1, static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(count)};
    move_bytes(fd_, &c, sizeof c, true);
    auto extents = from.extents(first, count);
    move_all(fd_, extents, true);
    move_bytes(fd_, &c, 1, false);
  }
  void get(const block_pool& into, std::size_t first, std::size_t count) {
    raw_command c{0, static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(count)};
    move_bytes(fd_, &c, sizeof c, true);
    auto extents = into.extents(first, count);
    move_all(fd_, extents, false);
  }

 private:
  other_process there_;
  int fd_ = -1;
};

}  // namespace cokv::bench
