// A selection of KV memory: layers x a sequence's blocks (or some of its tokens) x heads. It iterates the contiguous
// extents it covers, neighbours merged, so one selection can be copied, sent or digested without knowing the layout.
//
//     cokv::slice s(g, {.first = 0, .count = 4}, block_table);         // four layers of a whole sequence
//     s.tokens({32, 7}).heads({0, 2});                                 // seven tokens of two heads
//     s.for_each_extent(pool_blocks, [&](cokv::extent e) { send(memory + e.offset, e.size); });
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <memory>
#include <vector>

#include "cokv/kvstream/geometry.hpp"

namespace cokv {

struct index_range {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  std::uint64_t end() const noexcept { return std::uint64_t{first} + count; }
  friend bool operator==(index_range, index_range) = default;
};

// Bytes that lie together in paged memory [layer][block]...
struct extent {
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
  friend bool operator==(const extent&, const extent&) = default;
};

// Paged memory of `blocks` blocks: where a layer's part of a block begins, and the bytes of it all.
std::uint64_t segment_offset(const geometry& g, std::uint32_t blocks, std::uint32_t layer, std::uint32_t block);
std::uint64_t pool_bytes(const geometry& g, std::uint32_t blocks);

class slice {
 public:
  // `blocks` is a sequence's block table: indexes into paged memory, in the order of its tokens. Everything is selected
  // until narrowed. Throws std::out_of_range for layers that the geometry does not have.
  slice(geometry g, index_range layers, std::vector<std::uint32_t> blocks);

  // Narrow to positions in the sequence, or to heads; planes without heads belong to every selection of heads, since
  // every tensor-parallel shard keeps them. Throw std::out_of_range beyond what there is.
  slice& tokens(index_range positions);
  slice& heads(index_range heads);

  const geometry& shape() const noexcept { return *geometry_; }
  index_range layers() const noexcept { return layers_; }
  index_range tokens() const noexcept { return tokens_; }
  const std::vector<std::uint32_t>& blocks() const noexcept { return blocks_; }
  std::uint64_t bytes() const;

  // In order of layer, block, head, plane; extents that touch are given as one. Throws std::out_of_range for a block
  // index that is not below pool_blocks.
  template <std::invocable<extent> F>
  void for_each_extent(std::uint32_t pool_blocks, F&& f) const {
    extent pending;
    walk(pool_blocks, [&](extent e) {
      if (pending.size > 0 && pending.offset + pending.size == e.offset) {
        pending.size += e.size;
        return;
      }
      if (pending.size > 0) f(pending);
      pending = e;
    });
    if (pending.size > 0) f(pending);
  }
  std::vector<extent> extents(std::uint32_t pool_blocks) const;

 private:
  template <class F>
  void walk(std::uint32_t pool_blocks, F&& f) const;
  template <class F>
  void walk_block(std::uint32_t layer, std::uint64_t base, index_range rows, F&& f) const;
  void check_blocks(std::uint32_t pool_blocks) const;
  index_range heads_of(std::uint32_t layer) const;

  std::shared_ptr<const geometry> geometry_;
  index_range layers_;
  std::vector<std::uint32_t> blocks_;
  index_range tokens_;
  index_range heads_;
  bool all_heads_ = true;
};

template <class F>
void slice::walk_block(std::uint32_t layer, std::uint64_t base, index_range rows, F&& f) const {
  auto& group = geometry_->group(layer);
  auto heads = heads_of(layer);
  bool whole = rows.count == geometry_->block_tokens();
  if (whole && heads.count > 0)
    f(extent{base + geometry_->head_bytes(layer) * heads.first, geometry_->head_bytes(layer) * heads.count});
  auto part = [&](std::uint32_t head, std::size_t plane) {
    auto row = geometry_->row_bytes(layer, plane);
    f(extent{base + geometry_->plane_offset(layer, head, plane) + row * rows.first, row * rows.count});
  };
  for (auto head = heads.first; !whole && head < heads.end(); ++head)
    for (std::size_t i = 0; i < group.planes.size(); ++i)
      if (group.planes[i].per_head) part(head, i);
  for (std::size_t i = 0; i < group.planes.size(); ++i)
    if (!group.planes[i].per_head) part(0, i);
}

template <class F>
void slice::walk(std::uint32_t pool_blocks, F&& f) const {
  check_blocks(pool_blocks);
  if (tokens_.count == 0) return;
  auto per_block = geometry_->block_tokens();
  for (auto layer = layers_.first; layer < layers_.end(); ++layer) {
    auto layer_base = segment_offset(*geometry_, pool_blocks, layer, 0);
    auto bytes = geometry_->segment_bytes(layer);
    for (auto position = std::uint64_t{tokens_.first}; position < tokens_.end();) {
      auto first = static_cast<std::uint32_t>(position % per_block);
      auto count = static_cast<std::uint32_t>(std::min<std::uint64_t>(per_block - first, tokens_.end() - position));
      walk_block(layer, layer_base + bytes * blocks_[position / per_block], {first, count}, f);
      position += count;
    }
  }
}

}  // namespace cokv
