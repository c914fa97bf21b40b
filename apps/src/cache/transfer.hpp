// The parts of a transfer that know memory: the staging of one layer, and the sender of a :read's answer.
#pragma once

#include <memory>
#include <vector>

#include "cokv/kvstream/frame_stream.hpp"
#include "cokv/kvstream/store.hpp"
#include "http/exchange.hpp"

namespace cokv::cache {

// Memory for one layer of many blocks, used again for each.
class layer_memory {
 public:
  static std::uint64_t needed(const block_layout& layout, std::size_t blocks);
  // A buffer a block, of that layer's segment size. What of() gave before is given again.
  std::vector<buffer> of(const block_layout& layout, std::size_t blocks, std::uint32_t layer);

 private:
  buffer memory_;
};

// The answer to a :read: its length is told before the first layer is read. When a block turns out to be damaged or
// gone on the way, the stream says so and ends soundly, and the connection ends with it, as less came than announced.
class block_sender {
 public:
  // The first `blocks` of the keys are to be sent; the rest is not there.
  block_sender(stream_begin about, std::uint32_t blocks);

  std::uint64_t length() const noexcept { return length_; }
  // After start(). `reader` gives the blocks that are sent.
  awaitable<void> run(http::exchange& x, block_reader& reader);

 private:
  struct segments {
    std::vector<segment_view> views;  // of the leading good blocks
    error_code error;
  };
  awaitable<segments> next_layer(block_reader& reader, std::uint32_t layer);
  awaitable<error_code> send_layer(http::exchange& x, std::uint32_t layer, const std::vector<segment_view>& views);

  void take_back(std::uint32_t block);

  stream_writer out_;
  std::uint32_t blocks_;
  std::uint64_t length_;
  std::vector<std::byte> pending_;  // frames without segments, which go out with the next that have some
  bool copies_ = false;             // the store does not show its memory
  layer_memory memory_;
};

}  // namespace cokv::cache
