// How a slice finds its bytes: block by block, in the longest runs that the layout has there.
#pragma once

#include "cokv/kvstream/slice.hpp"

namespace cokv {

// Some tokens of a block, in one layer.
struct slice::stretch {
  std::uint64_t layer;  // of the group
  std::uint64_t page;
  std::uint64_t token;  // of the page, the first
  std::uint32_t count;
  bool whole;  // the block's tokens, all of them
  bool shared;
  index_range heads;
};

template <bool Fragments, class F>
void slice::walk_plane(const detail::placed_plane& p, const stretch& s, std::uint64_t head, F&& f) {
  const auto buffer = p.at.buffer + static_cast<std::uint32_t>(s.layer) * p.at.next_buffer;
  const auto at = p.at.offset + s.layer * p.at.layer + s.page * p.at.page + head * p.at.head + s.token * p.at.token;
  if (!Fragments && p.together)
    f(extent{at, p.row * s.count, buffer});
  else
    f(kv_run{at, buffer, s.count, p.at.token, p.chunks, p.at.chunk, p.at.chunk_bytes});
}

// f takes extents, and runs that are none.
template <bool Fragments, class F>
void slice::walk_block(const detail::placed_group& g, const stretch& s, F&& f) {
  if (!Fragments && s.whole && g.head_run > 0) {
    const auto& p = g.planes[g.lead].at;
    const auto buffer = p.buffer + static_cast<std::uint32_t>(s.layer) * p.next_buffer;
    auto at = p.offset + s.layer * p.layer + s.page * p.page + s.heads.first * p.head;
    if (g.heads_together && s.heads.count > 0)
      f(extent{at, g.head_run * s.heads.count, buffer});
    else
      for (std::uint32_t h = 0; h < s.heads.count; ++h, at += p.head) f(extent{at, g.head_run, buffer});
  } else {
    for (auto head = std::uint64_t{s.heads.first}; head < s.heads.end(); ++head)
      for (const auto& p : g.planes)
        if (p.per_head) walk_plane<Fragments>(p, s, head, f);
  }
  if (!s.shared) return;
  for (const auto& p : g.planes)
    if (!p.per_head) walk_plane<Fragments>(p, s, 0, f);
}

template <bool Fragments, class F>
void slice::walk(const kv_layout& in, F&& f) const {
  const auto per_block = geometry_->block_tokens(), per_page = in.blocks_per_page();
  for (auto layer = layers_.first; layer < layers_.end(); ++layer) {
    const auto positions = tokens(layer);
    if (positions.count == 0) continue;
    const auto& g = in.group(layer);
    stretch s{.layer = layer - g.first,
              .page = 0,
              .token = 0,
              .count = 0,
              .whole = false,
              .shared = planes_ != plane_set::per_head,
              .heads = planes_ != plane_set::shared ? heads_of(layer) : index_range{}};
    std::size_t place = positions.first / per_block;
    auto first = positions.first % per_block;
    for (auto left = positions.count; left > 0; left -= s.count, ++place, first = 0) {
      const auto block = blocks_[place];
      s.page = block;
      s.token = first;
      if (per_page > 1) {
        s.page = block / per_page;
        s.token += std::uint64_t{block % per_page} * per_block;
      }
      s.count = std::min(per_block - first, left);
      s.whole = s.count == per_block;
      walk_block<Fragments>(g, s, [&](const auto& what) { f(layer, place, what); });
    }
  }
}

template <class F>
void slice::each_chunk(const kv_run& run, F&& f) {
  for (std::uint64_t row = 0; row < run.rows; ++row)
    for (std::uint64_t c = 0; c < run.chunks; ++c)
      f(extent{run.offset + row * run.row_stride + c * run.chunk_stride, run.chunk_bytes, run.buffer});
}

// Extents that are merged, or runs, of which those that are extents are merged within their block.
template <bool Runs, class F>
void slice::merge(const kv_layout& in, F&& f) const {
  extent pending;
  std::uint32_t of_layer = 0;
  std::size_t of_place = 0;
  auto flush = [&] {
    if (pending.size == 0) return;
    if constexpr (Runs)
      f(of_layer, of_place, kv_run{.offset = pending.offset, .buffer = pending.buffer, .chunk_bytes = pending.size});
    else
      f(of_layer, of_place, pending);
  };
  auto add = [&](std::uint32_t layer, std::size_t place, extent e) {
    if (pending.offset + pending.size == e.offset && pending.buffer == e.buffer && pending.size > 0 &&
        (!Runs || (of_layer == layer && of_place == place))) {
      pending.size += e.size;
      return;
    }
    flush();
    pending = e;
    of_layer = layer;
    of_place = place;
  };
  walk<false>(in, [&]<class What>(std::uint32_t layer, std::size_t place, const What& what) {
    if constexpr (std::same_as<What, extent>) {
      add(layer, place, what);
    } else if constexpr (Runs) {
      flush();
      pending.size = 0;
      f(layer, place, what);
    } else {
      each_chunk(what, [&](extent e) { add(layer, place, e); });
    }
  });
  flush();
}

}  // namespace cokv
