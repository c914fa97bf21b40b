// Where KV lies in memory: for every plane, strides over layers, pages, heads, tokens and chunks of a row, in one
// buffer or in one a layer. A slice (slice.hpp) is the same bytes in the same order through any of them, so KV moves
// between two layouts without either side knowing the other's.
//
//     auto ours = cokv::kv_layout::paged(g, 1024);
//     // vLLM's [2][blocks][tokens][heads][dim], a tensor a layer:
//     const std::uint64_t row = 256, token = 8 * row, block = 16 * token;
//     plane_strides k{.page = block, .head = row, .token = token, .next_buffer = 1}, v = k;
//     v.offset = 1024 * block;
//     auto theirs = cokv::kv_layout::strided(g, {.pages = 1024, .page_tokens = 16}, {{k, v}});
//
// A page is what memory keeps together: a block, or a request's whole slot of max_seq tokens. Slices count in blocks of
// geometry::block_tokens() all the same: a page is as many of them as it takes, block b being the (b % blocks_per_page)th
// of page b / blocks_per_page. Where page_tokens is no multiple, the page's last block has fewer tokens, and no others
// can be selected.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cokv/kvstream/geometry.hpp"

namespace cokv {

// Bytes that lie together.
struct extent {
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
  std::uint32_t buffer = 0;  // of a layout's buffers
  friend bool operator==(const extent&, const extent&) = default;
};

// Rows at equal distances, cut into chunks at equal distances: what a head of a plane is in memory. Its bytes are those
// of its rows in order, and of their chunks.
struct kv_run {
  std::uint64_t offset = 0;
  std::uint32_t buffer = 0;
  std::uint64_t rows = 1;
  std::uint64_t row_stride = 0;
  std::uint64_t chunks = 1;
  std::uint64_t chunk_stride = 0;
  std::uint64_t chunk_bytes = 0;

  std::uint64_t row_bytes() const noexcept { return chunks * chunk_bytes; }
  std::uint64_t bytes() const noexcept { return rows * row_bytes(); }
  bool together() const noexcept { return rows == 1 && chunks == 1; }
  friend bool operator==(const kv_run&, const kv_run&) = default;
};

// Of one plane of a layer group: chunk c of a token's row begins at offset + layer * .layer + page * .page + head * .head
// + token * .token + c * .chunk, layers counted from the group's first, tokens from the page's. All in bytes.
struct plane_strides {
  std::uint64_t offset = 0;
  std::uint64_t layer = 0;
  std::uint64_t page = 0;
  std::uint64_t head = 0;
  std::uint64_t token = 0;
  std::uint64_t chunk = 0;
  std::uint64_t chunk_bytes = 0;  // 0: a row is one chunk
  std::uint32_t buffer = 0;       // which one has the group's first layer,
  std::uint32_t next_buffer = 0;  // and how many further the next layer is; then .layer is 0
};

struct page_table {
  std::uint32_t pages = 0;
  std::uint32_t page_tokens = 0;
};

namespace detail {

struct placed_plane {
  plane_strides at;
  std::uint64_t row = 0;
  std::uint64_t chunks = 1;
  bool per_head = true;
  bool together = false;  // a page's rows of a head lie behind each other
};

struct placed_group {
  std::uint32_t first = 0;
  std::vector<placed_plane> planes;
  std::size_t lead = 0;         // the first plane with heads
  std::uint64_t head_run = 0;   // a block's planes of a head lie behind each other in so many bytes, or 0,
  bool heads_together = false;  // and so do the heads
};

}  // namespace detail

// Immutable.
class kv_layout {
 public:
  static constexpr std::uint64_t max_bytes = std::uint64_t{1} << 62;
  static constexpr std::uint32_t max_buffers = 65536;

  // All throw config_error, naming the layer and plane, for sizes beyond the limits above, strides through which bytes
  // would be shared (or that interleave so that nobody can tell), and what is not aligned to its dtype.

  // kv_pool's: [layer][block][head][plane][token][dim], planes without heads behind.
  static kv_layout paged(geometry g, std::uint32_t blocks);

  // Requests of up to `tokens` tokens, a page each: [layer][plane][request][head][token][dim], as frameworks keep K and
  // V of a batch; planes without heads [layer][plane][request][token][dim].
  static kv_layout contiguous(geometry g, std::uint32_t requests, std::uint32_t tokens);

  // FasterTransformer's two caches, a request's slot of the batch being a page: K in buffer 0, [layer][batch][head]
  // [head_size / x][max_seq][x] with x elements in 16 bytes, and V in buffer 1, [layer][batch][head][max_seq][head_size].
  // For geometries of two planes with heads, K first.
  static kv_layout faster_transformer(geometry g, std::uint32_t batch, std::uint32_t max_seq);

  // Anybody's: strides for each layer group, in the order of its planes.
  static kv_layout strided(geometry g, page_table pages, std::vector<std::vector<plane_strides>> groups);

  // The same memory, selected in blocks of fewer tokens: block b becomes blocks n * b to n * b + n - 1, n being how many of
  // them it has (in_smaller_blocks). Throws config_error where they don't fill a block, or blocks don't fill a page.
  kv_layout in_blocks_of(std::uint32_t tokens) const;

  const geometry& shape() const noexcept { return geometry_; }
  std::uint32_t blocks() const noexcept { return pages_.pages * blocks_per_page_; }
  std::uint32_t blocks_per_page() const noexcept { return blocks_per_page_; }
  std::uint32_t page_tokens() const noexcept { return pages_.page_tokens; }
  // Of its tokens, those that a block has room for: block_tokens(), less in the last one of a page.
  std::uint32_t tokens_of(std::uint32_t block) const noexcept;

  std::uint32_t buffers() const noexcept { return static_cast<std::uint32_t>(bytes_.size()); }
  // The least that a buffer must have.
  std::uint64_t bytes(std::uint32_t buffer) const { return bytes_.at(buffer); }

  const detail::placed_group& group(std::uint32_t layer) const { return groups_[group_of_.at(layer)]; }

 private:
  kv_layout(geometry g, page_table pages, std::vector<std::vector<plane_strides>> groups);
  void place(std::size_t group, std::vector<plane_strides> planes);
  void find_runs(detail::placed_group& g) const;

  geometry geometry_;
  page_table pages_;
  std::uint32_t blocks_per_page_ = 1;
  std::vector<detail::placed_group> groups_;
  std::vector<std::uint32_t> group_of_;
  std::vector<std::uint64_t> bytes_;
};

// A block table where every block has become `n` smaller ones.
std::vector<std::uint32_t> in_smaller_blocks(std::span<const std::uint32_t> table, std::uint32_t n);

// Paged memory of `blocks` blocks: where a layer's part of a block begins, and the bytes of it all. pool_bytes throws
// config_error beyond kv_layout::max_bytes.
std::uint64_t segment_offset(const geometry& g, std::uint32_t blocks, std::uint32_t layer, std::uint32_t block);
std::uint64_t pool_bytes(const geometry& g, std::uint32_t blocks);
// The same where the layers `elsewhere`, ascending, share two places of the largest one's size: kv_pool.hpp.
std::uint64_t pool_bytes(const geometry& g, std::uint32_t blocks, std::span<const std::uint32_t> elsewhere);

}  // namespace cokv
