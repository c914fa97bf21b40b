// How a block lies in Redis: a head that says what it is, and its segments in pieces, under keys of one hash tag, so all
// on one node. Pure; docs/protocol.md has it with golden bytes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cokv/kvstream/block_key.hpp"
#include "cokv/kvstream/geometry.hpp"
#include "cokv/kvstream/namespace_id.hpp"

namespace cokv::detail {

inline constexpr std::uint64_t max_redis_piece = std::uint64_t{64} << 20;
inline constexpr std::uint32_t max_redis_pieces = 1 << 14;  // of a block: its scripts name them all

struct redis_head {
  namespace_id ns;
  block_key key;
  std::uint64_t nonce = 0;  // of who wrote it: part of its pieces' names
  std::uint64_t piece = 0;  // bytes of a piece; the last of a segment has the rest
  block_layout layout;
  std::vector<std::uint64_t> digests;  // of each segment, XXH3-64

  std::uint32_t pieces_of(std::uint32_t layer) const {
    return static_cast<std::uint32_t>((layout.segments[layer] + piece - 1) / piece);
  }
  std::uint64_t piece_bytes(std::uint32_t layer, std::uint32_t i) const {
    return std::min(piece, layout.segments[layer] - i * piece);
  }

  std::string encode() const;
  // None when it is no head, or not that of this block.
  static std::optional<redis_head> decode(std::string_view bytes, const namespace_id& ns, const block_key& key);
};

// The key of a block's head, of one of its pieces, of all of them.
std::string head_name(const namespace_id& ns, const block_key& key);
std::string piece_name(const redis_head& head, std::uint32_t layer, std::uint32_t piece);
std::vector<std::string> piece_names(const redis_head& head);

}  // namespace cokv::detail
