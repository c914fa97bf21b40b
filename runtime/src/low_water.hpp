// The receive low-water mark of a TCP socket (SO_RCVLOWAT): how many bytes a read that has to wait waits for. To wake a
// reader costs the sender of a machine as much as 50 KiB and more, so a reader that is sure of many lets some come together. A
// peer that sends slowly is heard after a while all the same.
#pragma once

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <optional>
#include <utility>

#include "cokv/runtime/detail/lazy_deadline.hpp"

namespace cokv::detail {

class low_water {
 public:
  explicit low_water(asio::ip::tcp::socket& of) : socket_(of) {}

  // So many are sure to come, the next read's among them.
  void expect(std::size_t bytes) noexcept { sure_ = bytes; }

  void before_read(std::size_t room) {
    const auto bytes =
        std::min({std::exchange(sure_, 0) / 2, room, most});  // half: while the rest comes, they are taken
    const auto mark = static_cast<int>(bytes - bytes % least);
    if (mark != 0 && !closed_) {
      if (!patience_) patience_.emplace(socket_.get_executor(), [this] { set(1); });
      patience_->expect_within(std::chrono::milliseconds(4));
    }
    set(closed_ ? 1 : std::max(mark, 1));
  }

  void close() {
    closed_ = true;
    patience_.reset();
  }

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
  bool closed_ = false;
};

}  // namespace cokv::detail
