// A selection of KV: layers x a sequence's blocks (or some of its tokens) x heads. It iterates the contiguous extents
// that it covers in memory of any layout, neighbours merged, so one selection can be copied, sent or digested without
// knowing the layout.
//
//     cokv::slice s(g, {.first = 0, .count = 4}, block_table);         // four layers of a whole sequence
//     s.tokens({32, 7}).heads({0, 2});                                 // seven tokens of two heads
//     s.for_each_extent(layout, [&](cokv::extent e) { send(memory + e.offset, e.size); });
//
// The order is the same for every layout: layer, block, head, plane, token, dim, and behind a block's heads its planes
// without heads: plane, token, dim. So what one side packs through its layout, the other unpacks through its own.
//
// Sliding windows: a layer group with a window keeps no more than the last `window` tokens before the sequence's end,
// and a slice covers no others there. The end is where tokens() ends, or where ends_at() says; a slice that was told
// neither does not know how far its last block is filled, and leaves nothing out. Blocks of which no layer covers a
// token are neither read, written nor looked at: the table may say anything there.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cokv/kvstream/geometry.hpp"
#include "cokv/kvstream/kv_layout.hpp"

namespace cokv {

struct index_range {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  std::uint64_t end() const noexcept { return std::uint64_t{first} + count; }
  friend bool operator==(index_range, index_range) = default;
};

// Planes with heads are split over tensor-parallel workers, those without are the same on each.
enum class plane_set : std::uint8_t { all, per_head, shared };

class slice {
 public:
  // `blocks` is a sequence's block table: indexes into memory, in the order of its tokens. Everything is selected until
  // narrowed. Throws std::out_of_range for layers that the geometry does not have.
  slice(geometry g, index_range layers, std::vector<std::uint32_t> blocks);

  // Narrow to positions in the sequence, or to heads. Planes without heads belong to every selection of heads, unless
  // planes() says otherwise. Throw std::out_of_range beyond what there is.
  slice& tokens(index_range positions);
  slice& heads(index_range heads);
  slice& planes(plane_set which) noexcept;
  // How many tokens the sequence has, for windows, where tokens() ends before it: a part of a sequence then covers what
  // is left of it in the end, not what its own end needs.
  slice& ends_at(std::uint32_t tokens) noexcept;

  const geometry& shape() const noexcept { return *geometry_; }
  index_range layers() const noexcept { return layers_; }
  index_range tokens() const noexcept { return tokens_; }
  // Of them, those that a layer covers.
  index_range tokens(std::uint32_t layer) const;
  const std::vector<std::uint32_t>& blocks() const noexcept { return blocks_; }
  // The places in blocks() that some layer covers a token of.
  index_range covered() const;
  // No block is covered twice: it could not be written with the bytes of both places.
  bool distinct() const;
  std::uint64_t bytes() const;

  // The layout is of this geometry and has every block and token selected. What follows throws where it does not:
  // std::invalid_argument, std::out_of_range.
  bool fits(const kv_layout& in) const noexcept;

  // f(extent), extents that touch given as one.
  template <std::invocable<extent> F>
  void for_each_extent(const kv_layout& in, F&& f) const {
    check(in);
    merge<false>(in, [&](std::uint32_t, std::size_t, extent e) { f(e); });
  }
  // f(layer, place in blocks(), kv_run): the same bytes, cut where layers and blocks meet, and in few words where a
  // layout keeps rows or their chunks apart.
  template <std::invocable<std::uint32_t, std::size_t, const kv_run&> F>
  void for_each_run(const kv_layout& in, F&& f) const {
    check(in);
    merge<true>(in, f);
  }
  // f(layer, place in blocks(), extent): each on its own, a chunk of a row of one token (a row, where the layout keeps it
  // together). What moves when nothing is packed or merged; for comparison.
  template <std::invocable<std::uint32_t, std::size_t, extent> F>
  void for_each_fragment(const kv_layout& in, F&& f) const {
    check(in);
    walk<true>(in, [&]<class What>(std::uint32_t layer, std::size_t place, const What& what) {
      if constexpr (std::same_as<What, kv_run>) each_chunk(what, [&](extent e) { f(layer, place, e); });
    });
  }
  std::vector<extent> extents(const kv_layout& in) const;

 private:
  struct stretch;
  template <class F>
  static void each_chunk(const kv_run& run, F&& f);
  template <bool Runs, class F>
  void merge(const kv_layout& in, F&& f) const;
  template <bool Fragments, class F>
  void walk(const kv_layout& in, F&& f) const;
  template <bool Fragments, class F>
  static void walk_block(const detail::placed_group& g, const stretch& s, F&& f);
  template <bool Fragments, class F>
  static void walk_plane(const detail::placed_plane& p, const stretch& s, std::uint64_t head, F&& f);
  void check(const kv_layout& in) const;
  bool reaches(const kv_layout& in) const noexcept;
  index_range heads_of(std::uint32_t layer) const;

  std::shared_ptr<const geometry> geometry_;
  index_range layers_;
  std::vector<std::uint32_t> blocks_;
  index_range tokens_;
  index_range heads_;
  bool all_heads_ = true;
  bool narrowed_ = false;  // to tokens
  plane_set planes_ = plane_set::all;
  std::optional<std::uint32_t> end_;
};

}  // namespace cokv

#include "cokv/kvstream/detail/slice_walk.hpp"
