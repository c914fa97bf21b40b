// Where a cache server's blocks lie in memory that its client can read: the answer to a `:read` by reference, which has
// places and digests instead of bytes. Pure: bytes in, places out. The bytes are in docs/protocol.md.
//
//     auto where = block_places::decode(bytes, about, memory.size());    // checked: nothing lies outside
//     auto segment = memory.slice(where->at(layer, block).offset, about.layout.segments[layer]);
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cokv/kvstream/frame_stream.hpp"

namespace cokv {

struct block_places {
  struct place {
    std::uint64_t offset = 0;
    std::uint64_t digest = 0;  // XXH3-64 of the segment, made when it was written
    friend bool operator==(const place&, const place&) = default;
  };

  std::uint64_t memory = 0;  // a random number of the memory that is meant
  std::uint64_t generation = 0;
  std::uint32_t layers = 0;
  std::vector<std::uint64_t> lives;  // of each leading block that was found: no other had this number in its place
  std::vector<place> places;         // of the blocks' segments, layer by layer

  std::size_t blocks() const noexcept { return lives.size(); }
  const place& at(std::uint32_t layer, std::size_t block) const { return places[layer * lives.size() + block]; }

  static std::uint64_t encoded_bytes(std::size_t layers, std::size_t blocks) noexcept;
  std::vector<std::byte> encode() const;
  // The first head_bytes tell how many there are in all; nothing else of them was looked at. errc::protocol for more
  // layers or blocks than that.
  static constexpr std::size_t head_bytes = 32;
  static result<std::size_t> announced_bytes(std::span<const std::byte> head, std::size_t most_layers,
                                             std::size_t most_blocks);

  // errc::digest_mismatch; errc::protocol for what is no answer to `asked`, or names a place outside of [0, memory_bytes).
  static result<block_places> decode(std::span<const std::byte> bytes, const stream_begin& asked,
                                     std::uint64_t memory_bytes);
  // The same without bounds: whose memory is it? Only `memory` is to be looked at.
  static result<std::uint64_t> memory_of(std::span<const std::byte> bytes);

  friend bool operator==(const block_places&, const block_places&) = default;
};

}  // namespace cokv
