// The receive low-water mark of a TCP socket (SO_RCVLOWAT): how many bytes a read that has to wait waits for. To wake a
// reader costs the sender of a machine as much as 50 KiB and more, so a reader that is sure of many lets some come together. A
// peer that sends slowly is heard after a while all the same.
#pragma once

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <optional>

#include "cokv/runtime/detail/lazy_deadline.hpp"

namespace cokv::detail {

class low_water {
 public:
  explicit low_water(asio::ip::tcp::socket& of) : socket_(of) {}

  // So many are sure to come, the next read's among them.
  void expect(std::size_t bytes) noexcept { sure_ = bytes; }

  void before_read(std::size_t room) {
    // Half: while the rest comes, they are taken.
    const auto bytes = socket_.is_open() ? std::min({sure_ / 2, room, most}) : 0;
    const auto mark = static_cast<int>(bytes - bytes % least);
    sure_ = 0;
    if (mark != 0) {
      if (!patience_) patience_.emplace(socket_.get_executor(), [this] { set(1); });
      patience_->expect_within(std::chrono::milliseconds(4));
    }
    set(std::max(mark, 1));
  }

  // With the socket, before it.
  void close() { patience_.reset(); }

 private:
  static constexpr std::size_t least = 64 << 10, most = 384 << 10;

  // Also for a read that is waiting: Linux (from 4.18) looks whether there is enough for it now.
  void set(int mark) {
    if (mark == mark_) return;
    error_code ignored;
    socket_.set_option(asio::socket_base::receive_low_watermark(mark), ignored);
    mark_ = mark;
  }

  asio::ip::tcp::socket& socket_;
  std::optional<lazy_deadline> patience_;
  std::size_t sure_ = 0;
  int mark_ = 1;
};

}  // namespace cokv::detail
