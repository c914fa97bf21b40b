// The shape of KV memory: layers in groups, and the planes that one layer keeps for each block of tokens (K and V, a
// compressed latent, fp8 data and its scales). Everything that sizes, slices or names KV starts from here.
//
//     auto g = cokv::geometry::attention(28, 4, 128, cokv::dtype::bf16);   // Qwen2.5-7B, 16 tokens a block
//     assert(g.block_bytes() == 917'504 && g.segment_bytes(0) == 32'768);
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cokv/kvstream/dtype.hpp"

namespace cokv {

// One array that a layer keeps for every token: `dim` elements, for each KV head or once for all of them.
struct plane {
  std::string name;
  dtype type = dtype::f32;
  bool per_head = true;
  std::uint32_t dim = 0;
  friend bool operator==(const plane&, const plane&) = default;
};

// Consecutive layers of one shape. kv_heads is 0 exactly when no plane has heads. Layers with a sliding window attend to
// so many tokens at most; the others' KV is of no use to them (slice.hpp). A block has room for every layer all the same.
struct layer_group {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  std::uint32_t kv_heads = 0;
  std::vector<plane> planes;
  std::uint32_t window = 0;  // tokens; 0: all
  friend bool operator==(const layer_group&, const layer_group&) = default;
};

// Bytes of a block's segments, one a layer, in layer order: what a store needs to know of a geometry.
struct block_layout {
  std::vector<std::uint64_t> segments;

  std::uint32_t layers() const noexcept { return static_cast<std::uint32_t>(segments.size()); }
  std::uint64_t bytes() const noexcept;
  friend bool operator==(const block_layout&, const block_layout&) = default;
};

// Immutable. A layer's part of a block, its segment, is laid out [head][plane][token][dim] over the planes with heads,
// then [plane][token][dim] over those without; so a range of heads is one extent, K and V together.
class geometry {
 public:
  static constexpr std::uint32_t max_layers = 4096;
  static constexpr std::uint32_t max_block_tokens = 65536;
  static constexpr std::uint64_t max_segment_bytes = std::uint64_t{1} << 30;

  // Throws config_error, naming the layer and plane, when groups leave a gap or overlap, a plane is empty, twice
  // there, of unknown type or not aligned to its type, or a size is beyond the limits above.
  geometry(std::uint32_t block_tokens, std::vector<layer_group> groups);

  // Every layer K and V of `head_size` elements for each of `kv_heads` heads.
  static geometry attention(std::uint32_t layers, std::uint32_t kv_heads, std::uint32_t head_size, dtype type,
                            std::uint32_t block_tokens = 16);

  // The same in blocks of so many tokens.
  geometry in_blocks_of(std::uint32_t tokens) const { return geometry(tokens, groups_); }

  std::uint32_t layers() const noexcept { return static_cast<std::uint32_t>(group_of_.size()); }
  std::uint32_t block_tokens() const noexcept { return block_tokens_; }
  const std::vector<layer_group>& groups() const noexcept { return groups_; }
  const layer_group& group(std::uint32_t layer) const { return groups_[group_of_.at(layer)]; }
  std::uint32_t kv_heads(std::uint32_t layer) const { return group(layer).kv_heads; }

  // Bytes one layer keeps for a block, and all layers together.
  std::uint64_t segment_bytes(std::uint32_t layer) const { return sizes_[group_of_.at(layer)].segment; }
  std::uint64_t block_bytes() const noexcept { return block_bytes_; }
  // Bytes of one head in a segment: its planes together, all tokens.
  std::uint64_t head_bytes(std::uint32_t layer) const { return sizes_[group_of_.at(layer)].head; }
  // Where a plane begins in a segment; `head` is ignored for a plane without heads.
  std::uint64_t plane_offset(std::uint32_t layer, std::uint32_t head, std::size_t plane) const;
  // Bytes one token takes in one plane (of one head).
  std::uint64_t row_bytes(std::uint32_t layer, std::size_t plane) const;

  block_layout layout() const;
  // One line that says everything above, the same on every machine; namespaces are made from it.
  std::string canonical() const;

  friend bool operator==(const geometry& a, const geometry& b) noexcept {
    return a.block_tokens_ == b.block_tokens_ && a.groups_ == b.groups_;
  }

 private:
  struct sizes {
    std::uint64_t head = 0;
    std::uint64_t segment = 0;
    std::vector<std::uint64_t> offsets;  // of each plane: in a head, or in the segment for a plane without heads
  };

  std::uint32_t block_tokens_;
  std::vector<layer_group> groups_;
  std::vector<sizes> sizes_;
  std::vector<std::uint32_t> group_of_;
  std::uint64_t block_bytes_ = 0;
};

}  // namespace cokv
