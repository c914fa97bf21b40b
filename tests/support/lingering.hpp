// A descriptor whose closing waits: a TCP connection with bytes that nobody reads, told to linger for an hour.
//
//     lingering slow;
//     stream.attach(std::move(slow.end));
//     ...
//     slow.release();   // from now on it can be closed, and is, if somebody is at it
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "cokv/runtime/memory_handle.hpp"

namespace cokv::test {

class lingering {
 public:
  lingering() {
    const int door = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int near = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const where = reinterpret_cast<sockaddr*>(&at);
    socklen_t size = sizeof at;
    REQUIRE(::bind(door, where, size) == 0);
    REQUIRE(::listen(door, 1) == 0);
    REQUIRE(::getsockname(door, where, &size) == 0);
    REQUIRE(::connect(near, where, size) == 0);
    far_ = ::accept4(door, nullptr, nullptr, SOCK_CLOEXEC);
    REQUIRE(far_ >= 0);
    ::close(door);
    const linger hour{.l_onoff = 1, .l_linger = 3600};
    REQUIRE(::setsockopt(near, SOL_SOCKET, SO_LINGER, &hour, sizeof hour) == 0);
    const std::vector<char> much(1 << 16);
    while (::send(near, much.data(), much.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
    }
    end = memory_handle::of_descriptor(near, 0, 0).file;
  }
  ~lingering() { release(); }
  lingering(const lingering&) = delete;

  void release() {
    if (far_ >= 0) ::close(far_);
    far_ = -1;
  }

  std::shared_ptr<const int> end;

 private:
  int far_;
};

}  // namespace cokv::test
