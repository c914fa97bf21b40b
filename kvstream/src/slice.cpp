#include "cokv/kvstream/slice.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace cokv {

std::uint64_t segment_offset(const geometry& g, std::uint32_t blocks, std::uint32_t layer, std::uint32_t block) {
  std::uint64_t before = 0;
  for (auto& group : g.groups()) {
    if (layer < group.first + group.count)
      return (before + g.segment_bytes(layer) * (layer - group.first)) * blocks + g.segment_bytes(layer) * block;
    before += g.segment_bytes(group.first) * group.count;
  }
  throw std::out_of_range("segment_offset: no layer " + std::to_string(layer));
}

std::uint64_t pool_bytes(const geometry& g, std::uint32_t blocks) { return g.block_bytes() * blocks; }

slice::slice(geometry g, index_range layers, std::vector<std::uint32_t> blocks)
    : geometry_(std::make_shared<const geometry>(std::move(g))), layers_(layers), blocks_(std::move(blocks)) {
  if (layers_.end() > geometry_->layers()) throw std::out_of_range("slice: layers beyond the geometry");
  auto all = std::uint64_t{geometry_->block_tokens()} * blocks_.size();
  if (all > std::numeric_limits<std::uint32_t>::max()) throw std::out_of_range("slice: more than 2^32 tokens");
  tokens_ = {0, static_cast<std::uint32_t>(all)};
}

slice& slice::tokens(index_range positions) {
  if (positions.end() > std::uint64_t{geometry_->block_tokens()} * blocks_.size())
    throw std::out_of_range("slice: tokens beyond the blocks");
  tokens_ = positions;
  return *this;
}

slice& slice::heads(index_range heads) {
  for (auto& group : geometry_->groups())
    if (group.kv_heads > 0 && heads.end() > group.kv_heads) throw std::out_of_range("slice: heads beyond the geometry");
  heads_ = heads;
  all_heads_ = false;
  return *this;
}

index_range slice::heads_of(std::uint32_t layer) const {
  auto heads = geometry_->kv_heads(layer);
  if (heads == 0 || all_heads_) return {0, heads};
  return heads_;
}

void slice::check_blocks(std::uint32_t pool_blocks) const {
  for (auto b : blocks_)
    if (b >= pool_blocks) throw std::out_of_range("slice: block index beyond the pool");
}

std::uint64_t slice::bytes() const {
  std::uint64_t per_token = 0;
  for (auto layer = layers_.first; layer < layers_.end(); ++layer) {
    auto& group = geometry_->group(layer);
    for (std::size_t i = 0; i < group.planes.size(); ++i)
      per_token += geometry_->row_bytes(layer, i) * (group.planes[i].per_head ? heads_of(layer).count : 1);
  }
  return per_token * tokens_.count;
}

std::vector<extent> slice::extents(std::uint32_t pool_blocks) const {
  std::vector<extent> out;
  for_each_extent(pool_blocks, [&](extent e) { out.push_back(e); });
  return out;
}

}  // namespace cokv
