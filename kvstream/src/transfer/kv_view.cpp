#include "cokv/kvstream/kv_view.hpp"

#include <algorithm>

#include "cokv/runtime/error.hpp"

namespace cokv {

kv_view::kv_view(const kv_pool& pool, std::span<const block_lease> leases) {
  auto made = std::make_shared<state>(state{pool.shape(), pool.blocks(), &pool, {}, {}});
  for (const auto& lease : leases) made->refs[lease.index()] = lease.ref();
  state_ = std::move(made);
}

kv_view::kv_view(geometry g, buffer memory, std::uint32_t blocks) {
  if (memory.size() < pool_bytes(g, blocks))
    throw config_error("KV memory of " + std::to_string(memory.size()) + " bytes is too small for " +
                       std::to_string(blocks) + " blocks");
  state_ = std::make_shared<state>(state{std::move(g), blocks, nullptr, {}, std::move(memory)});
}

result<std::vector<buffer>> kv_view::pieces(const slice& what) const {
  const auto& [shape, blocks, pool, refs, memory] = *state_;
  if (what.shape() != shape) return errc::invalid_argument;
  for (auto b : what.blocks())
    if (b >= blocks) return errc::out_of_range;
  std::vector<buffer> pieces;
  if (!pool) {
    what.for_each_extent(blocks, [&](extent e) { pieces.push_back(state_->memory.slice(e.offset, e.size)); });
    return pieces;
  }

  // Extents of neighbouring blocks are one run of memory, but each block is held by its own buffer.
  struct held {
    std::uint64_t offset;
    buffer segment;
  };
  std::vector<held> segments;
  for (auto layer = what.layers().first; layer < what.layers().end(); ++layer)
    for (auto b : what.blocks()) {
      auto ref = refs.find(b);
      if (ref == refs.end()) return errc::stale_reference;
      auto segment = pool->segment(layer, ref->second);
      if (!segment) return segment.error();
      segments.push_back({pool->offset(layer, b), std::move(*segment)});
    }
  std::ranges::sort(segments, {}, &held::offset);
  what.for_each_extent(blocks, [&](extent e) {
    auto at = std::ranges::upper_bound(segments, e.offset, {}, &held::offset) - 1;
    while (e.size > 0) {
      const auto begin = e.offset - at->offset;
      const auto n = std::min(e.size, at->segment.size() - begin);
      pieces.push_back(at->segment.slice(begin, n));
      e = {e.offset + n, e.size - n};
      while (e.size > 0 && at->offset + at->segment.size() <= e.offset) ++at;
    }
  });
  return pieces;
}

}  // namespace cokv
