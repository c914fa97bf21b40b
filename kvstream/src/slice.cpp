#include "cokv/kvstream/slice.hpp"

#include <limits>
#include <stdexcept>

namespace cokv {

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
  narrowed_ = true;
  return *this;
}

slice& slice::heads(index_range heads) {
  for (auto layer = layers_.first; layer < layers_.end(); ++layer)
    if (auto of = geometry_->kv_heads(layer); of > 0 && heads.end() > of)
      throw std::out_of_range("slice: heads beyond the geometry");
  heads_ = heads;
  all_heads_ = false;
  return *this;
}

slice& slice::planes(plane_set which) noexcept {
  planes_ = which;
  return *this;
}

slice& slice::ends_at(std::uint32_t tokens) noexcept {
  end_ = tokens;
  return *this;
}

index_range slice::heads_of(std::uint32_t layer) const {
  auto heads = geometry_->kv_heads(layer);
  if (heads == 0 || all_heads_) return {0, heads};
  return heads_;
}

index_range slice::tokens(std::uint32_t layer) const {
  const auto window = geometry_->group(layer).window;
  if (window == 0 || (!end_ && !narrowed_)) return tokens_;
  const auto end = end_ ? std::uint64_t{*end_} : tokens_.end();
  const auto from = std::max<std::uint64_t>(tokens_.first, end - std::min<std::uint64_t>(end, window));
  if (from >= tokens_.end()) return {};
  return {static_cast<std::uint32_t>(from), static_cast<std::uint32_t>(tokens_.end() - from)};
}

index_range slice::covered() const {
  const auto per_block = geometry_->block_tokens();
  auto from = tokens_.end();
  for (auto layer = layers_.first; layer < layers_.end(); ++layer)
    if (auto t = tokens(layer); t.count > 0) from = std::min<std::uint64_t>(from, t.first);
  if (from == tokens_.end()) return {};
  const auto first = static_cast<std::uint32_t>(from / per_block);
  return {first, static_cast<std::uint32_t>((tokens_.end() - 1) / per_block) + 1 - first};
}

bool slice::distinct() const {
  const auto places = covered();
  std::vector<std::uint32_t> sorted(blocks_.begin() + places.first, blocks_.begin() + static_cast<long>(places.end()));
  std::ranges::sort(sorted);
  return std::ranges::adjacent_find(sorted) == sorted.end();
}

std::uint64_t slice::bytes() const {
  std::uint64_t bytes = 0;
  for (auto layer = layers_.first; layer < layers_.end(); ++layer) {
    const auto& group = geometry_->group(layer);
    const auto heads = planes_ == plane_set::shared ? 0 : heads_of(layer).count;
    std::uint64_t per_token = 0;
    for (std::size_t i = 0; i < group.planes.size(); ++i) {
      const auto times = group.planes[i].per_head ? heads : planes_ != plane_set::per_head;
      per_token += geometry_->row_bytes(layer, i) * times;
    }
    bytes += per_token * tokens(layer).count;
  }
  return bytes;
}

bool slice::reaches(const kv_layout& in) const noexcept {
  const auto places = covered();
  const auto per_block = geometry_->block_tokens();
  const bool even = in.page_tokens() % per_block == 0;
  for (auto i = places.first; i < places.end(); ++i) {
    if (blocks_[i] >= in.blocks()) return false;
    if (even) continue;
    const auto end = std::min<std::uint64_t>(tokens_.end() - std::uint64_t{i} * per_block, per_block);
    if (end > in.tokens_of(blocks_[i])) return false;
  }
  return true;
}

bool slice::fits(const kv_layout& in) const noexcept { return *geometry_ == in.shape() && reaches(in); }

void slice::check(const kv_layout& in) const {
  if (*geometry_ != in.shape()) throw std::invalid_argument("slice: the layout is of another geometry");
  if (!reaches(in)) throw std::out_of_range("slice: blocks or tokens beyond the layout");
}

std::vector<extent> slice::extents(const kv_layout& in) const {
  std::vector<extent> out;
  for_each_extent(in, [&](extent e) { out.push_back(e); });
  return out;
}

}  // namespace cokv
