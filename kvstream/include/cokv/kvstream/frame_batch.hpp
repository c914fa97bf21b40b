// Frames of segments that go out together, of as few buffers as it takes: what stands between two payloads, a trailer and
// the next head, is one. A batch and what stands around it are one system call's.
//
//     frame_batch batch;
//     batch.add(writer.segment(layer, block), payload, seal(head, digest));
//     if (batch.full()) { co_await stream.write(batch.buffers()); batch.clear(); }
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <utility>

#include "cokv/kvstream/frame.hpp"
#include "cokv/runtime/asio.hpp"
#include "cokv/runtime/buffer.hpp"
#include "cokv/runtime/net.hpp"

namespace cokv {

class frame_batch {
 public:
  static constexpr std::size_t limit = 62;

  std::size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }
  bool full() const noexcept { return size_ == limit; }

  // Before it is full. The payload is held until clear().
  void add(const frame_head& head, buffer payload, const frame_trailer& trailer) {
    seams_[size_].head = head;
    seams_[size_ + 1].trailer = trailer;
    payloads_[size_++] = std::move(payload);
  }

  // All of it, in order, between two others. Valid until the batch changes.
  std::span<asio::const_buffer> buffers(std::span<const std::byte> before = {}, std::span<const std::byte> after = {}) {
    std::size_t n = 0;
    const auto put = [&](const void* bytes, std::size_t size) {
      if (size != 0) buffers_[n++] = {bytes, size};
    };
    put(before.data(), before.size());
    if (size_ != 0) put(&seams_[0].head, sizeof(frame_head));
    for (std::size_t i = 0; i < size_; ++i) {
      put(payloads_[i].data(), payloads_[i].size());
      put(&seams_[i + 1], i + 1 < size_ ? sizeof(seam) : sizeof(frame_trailer));
    }
    put(after.data(), after.size());
    return std::span(buffers_).first(n);
  }

  void clear() {
    for (std::size_t i = 0; i < size_; ++i) payloads_[i] = {};
    size_ = 0;
  }

 private:
  struct seam {
    frame_trailer trailer;
    frame_head head;
  };
  static_assert(sizeof(seam) == sizeof(frame_trailer) + sizeof(frame_head));

  std::size_t size_ = 0;
  std::array<seam, limit + 1> seams_;
  std::array<buffer, limit> payloads_;
  std::array<asio::const_buffer, 2 * limit + 3> buffers_;
  static_assert(2 * limit + 3 < byte_stream::const_buffers::limit);  // an HTTP head may go before it
};

}  // namespace cokv
