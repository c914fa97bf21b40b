// The parts of a transfer that know memory: where an upload is received, and the sender of a :read's answer.
#pragma once

#include <memory>
#include <vector>

#include "cokv/kvstream/frame_batch.hpp"
#include "cokv/kvstream/store.hpp"
#include "cokv/kvstream/stream_receiver.hpp"
#include "http/exchange.hpp"

namespace cokv::cache {

// Memory for one layer of many blocks, used again for each.
class layer_memory {
 public:
  static std::uint64_t needed(const block_layout& layout, std::size_t blocks);
  // A buffer a block, of that layer's segment size. What of() gave before is given again.
  std::vector<buffer> of(const block_layout& layout, std::size_t blocks, std::uint32_t layer);
  buffer one(const block_layout& layout, std::size_t blocks, std::uint32_t layer, std::size_t block);

 private:
  buffer memory_;
};

// Where an upload's segments are received: in the store's own memory where it gives some; else, and for blocks that are
// there already, in memory for one layer, so that they are compared like the others.
class upload_memory {
 public:
  upload_memory(const stream_begin& about, std::unique_ptr<block_writer> writer);

  block_writer& writer() { return *writer_; }
  // Tells the receiver where the layers to come go: as many of them as there are places for.
  void expect(stream_receiver& in);
  void arrived(std::uint32_t block, std::uint64_t digest) { digests_[block] = digest; }
  // All of the layer has arrived.
  awaitable<error_code> store_layer(std::uint32_t layer);

 private:
  const stream_begin& about_;
  std::unique_ptr<block_writer> writer_;
  bool in_place_ = true;      // the store gives places
  bool all_in_place_ = true;  // for all blocks
  layer_memory memory_;
  std::vector<buffer> layer_;           // the places of the last one that is expected
  std::vector<std::uint64_t> digests_;  // of the layer that is coming
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
  awaitable<result<std::vector<segment_view>>> fetch(block_reader& reader, std::uint32_t layer);
  void add(std::uint32_t layer, std::uint32_t block, segment_view view);
  awaitable<error_code> flush(http::exchange& x, std::span<const std::byte> after = {});

  void take_back(std::uint32_t block);

  stream_writer out_;
  std::uint32_t blocks_;
  std::uint64_t length_;
  std::vector<std::byte> pending_;  // frames without segments, which go out with the next that have some
  bool copies_ = false;             // the store does not show its memory
  layer_memory memory_;

  frame_batch batch_;              // goes out with the next write
  std::vector<std::byte> before_;  // it
};

}  // namespace cokv::cache
