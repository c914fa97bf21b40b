// How one write of a stream becomes messages, where messages carry streams: what lies together goes from where it lies,
// several pieces in one message; what is small is copied, together with its neighbours. Pure.
//
//     cut_into_messages(from, packing, [&](std::vector<std::byte> packed) { ... },
//                       [&](std::span<const asio::const_buffer> direct, std::size_t bytes) { ... });
#pragma once

#include <array>
#include <span>
#include <vector>

#include "cokv/runtime/net.hpp"

namespace cokv::detail {

constexpr std::size_t largest_message = std::size_t{4} << 20;  // what a reader has to keep at most

// Packs into buffers that it is given back.
class message_packing {
 public:
  static constexpr std::size_t most = std::size_t{64} << 10;  // in one message

  // Smaller pieces are packed: in a message of several, or by itself, each costs more than so much of a copy.
  explicit message_packing(std::size_t least_piece, std::size_t most_together = byte_stream::const_buffers::limit)
      : least_piece_(least_piece), most_together_(most_together) {}

  std::size_t least_piece() const noexcept { return least_piece_; }
  std::size_t most_together() const noexcept { return most_together_; }  // pieces of a message that aren't packed
  bool empty() const noexcept { return bytes_.empty(); }
  bool holds(std::size_t n) const noexcept { return bytes_.size() + n <= most; }
  void add(const asio::const_buffer& b) {
    if (bytes_.capacity() == 0 && !spare_.empty()) {
      bytes_ = std::move(spare_.back());
      spare_.pop_back();
    }
    const auto* at = static_cast<const std::byte*>(b.data());
    bytes_.insert(bytes_.end(), at, at + b.size());
  }
  std::vector<std::byte> take() { return std::exchange(bytes_, {}); }
  void give_back(std::vector<std::byte> used) {
    if (spare_.size() == most_spare) return;
    used.clear();
    spare_.push_back(std::move(used));
  }

 private:
  static constexpr std::size_t most_spare = 16;
  std::size_t least_piece_, most_together_;
  std::vector<std::byte> bytes_;
  std::vector<std::vector<std::byte>> spare_;
};

template <class Packed, class Direct>
void cut_into_messages(const byte_stream::const_buffers& from, message_packing& packing, Packed send_packed,
                       Direct send_direct) {
  constexpr std::size_t least_direct = 16 << 10;  // a message costs more than a copy
  const auto flush = [&] {
    if (!packing.empty()) send_packed(packing.take());
  };
  for (auto at = from.begin(); at != from.end();) {
    std::size_t bytes = 0;
    auto end = at;
    for (; end != from.end() && end->size() >= packing.least_piece(); ++end) bytes += end->size();
    if (bytes < least_direct) {
      if (end == at) ++end;
      for (; at != end; ++at) {
        if (!packing.holds(at->size())) flush();
        packing.add(*at);
      }
      continue;
    }
    flush();
    std::array<asio::const_buffer, byte_stream::const_buffers::limit> direct;
    std::size_t n = 0, room = largest_message;
    for (; at != end; ++at) {
      for (auto rest = *at; rest.size() > 0;) {
        direct[n++] = asio::buffer(rest, room);
        room -= direct[n - 1].size();
        rest += direct[n - 1].size();
        if (room > 0 && n < packing.most_together()) continue;
        send_direct(std::span<const asio::const_buffer>(direct).first(n), largest_message - room);
        n = 0;
        room = largest_message;
      }
    }
    if (n > 0) send_direct(std::span<const asio::const_buffer>(direct).first(n), largest_message - room);
  }
  flush();
}

}  // namespace cokv::detail
