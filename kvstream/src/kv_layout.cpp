#include "cokv/kvstream/kv_layout.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "cokv/runtime/error.hpp"
#include "detail/lattice.hpp"

namespace cokv {
namespace {

using wide = unsigned __int128;

[[noreturn]] void bad_layout(const std::string& what) { throw config_error("kv layout: " + what); }

std::string named(const layer_group& g, std::size_t plane) {
  return "layer " + std::to_string(g.first) + ": plane '" + g.planes[plane].name + "'";
}

// A size that fits is far from where sums and products with counts of 32 bits would wrap.
std::uint64_t sized(const std::string& who, wide bytes) {
  if (bytes > kv_layout::max_bytes) bad_layout(who + " reaches beyond 2^62 bytes");
  return static_cast<std::uint64_t>(bytes);
}

std::uint64_t times(const std::string& who, std::uint64_t a, std::uint64_t b) { return sized(who, wide{a} * b); }

detail::lattice lattice_of(const plane_strides& s, const layer_group& g, const page_table& pages, bool per_head,
                           std::uint64_t chunks) {
  detail::lattice l{.offset = s.offset, .chunk = s.chunk_bytes, .dimensions = {}};
  const detail::lattice::dimension all[] = {{s.layer, s.next_buffer == 0 ? g.count : 1},
                                            {s.page, pages.pages},
                                            {s.head, per_head ? g.kv_heads : 1},
                                            {s.token, pages.page_tokens},
                                            {s.chunk, chunks}};
  for (const auto& d : all)
    if (d.count > 1) l.dimensions.push_back(d);
  std::ranges::sort(l.dimensions, std::greater{}, &detail::lattice::dimension::stride);
  return l;
}

// A plane's part of one buffer.
struct part {
  std::uint32_t buffer;
  std::uint64_t end;
  detail::lattice where;
  std::string name;
};

void check_apart(std::vector<part>& parts) {
  std::ranges::sort(parts, {}, [](const part& p) { return std::pair(p.buffer, p.where.offset); });
  for (std::size_t i = 0; i < parts.size(); ++i)
    for (auto j = i + 1; j < parts.size(); ++j) {
      if (parts[j].buffer != parts[i].buffer || parts[j].where.offset >= parts[i].end) break;
      if (!apart(parts[i].where, parts[j].where)) bad_layout(parts[j].name + " overlaps " + parts[i].name);
    }
}

}  // namespace

kv_layout::kv_layout(geometry g, page_table pages, std::vector<std::vector<plane_strides>> groups)
    : geometry_(std::move(g)), pages_(pages) {
  if (pages_.pages == 0 || pages_.page_tokens == 0) bad_layout("no pages, or none with tokens");
  const auto per_block = geometry_.block_tokens();
  blocks_per_page_ = (pages_.page_tokens - 1) / per_block + 1;
  if (std::uint64_t{pages_.pages} * blocks_per_page_ > std::numeric_limits<std::uint32_t>::max())
    bad_layout("more than 2^32 blocks");
  if (groups.size() != geometry_.groups().size())
    bad_layout("strides for " + std::to_string(groups.size()) + " layer groups, the geometry has " +
               std::to_string(geometry_.groups().size()));
  for (std::size_t i = 0; i < groups.size(); ++i) place(i, std::move(groups[i]));

  std::vector<part> parts;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const auto& shape = geometry_.groups()[i];
    group_of_.insert(group_of_.end(), shape.count, static_cast<std::uint32_t>(i));
    for (std::size_t p = 0; p < shape.planes.size(); ++p) {
      const auto& plane = groups_[i].planes[p];
      auto where = lattice_of(plane.at, shape, pages_, plane.per_head, plane.chunks);
      if (!where.nested()) bad_layout(named(shape, p) + " overlaps itself");
      const auto end = plane.at.offset + where.span();
      const auto copies = plane.at.next_buffer == 0 ? 1 : shape.count;
      for (std::uint32_t layer = 0; layer < copies; ++layer) {
        const auto buffer = plane.at.buffer + layer * plane.at.next_buffer;
        if (bytes_.size() <= buffer) bytes_.resize(buffer + 1);
        bytes_[buffer] = std::max(bytes_[buffer], end);
        parts.push_back({buffer, end, where, named(shape, p)});
      }
    }
  }
  check_apart(parts);
}

void kv_layout::place(std::size_t index, std::vector<plane_strides> planes) {
  const auto& shape = geometry_.groups()[index];
  if (planes.size() != shape.planes.size())
    bad_layout("layer " + std::to_string(shape.first) + ": strides for " + std::to_string(planes.size()) +
               " planes, the geometry has " + std::to_string(shape.planes.size()));
  detail::placed_group out{.first = shape.first, .planes = {}};
  for (std::size_t i = 0; i < planes.size(); ++i) {
    auto s = planes[i];
    const auto name = named(shape, i);
    const bool per_head = shape.planes[i].per_head;
    const auto element = size_of(shape.planes[i].type);
    const auto row = geometry_.row_bytes(shape.first, i);
    if (s.chunk_bytes == 0) s.chunk_bytes = row;
    if (row % s.chunk_bytes != 0)
      bad_layout(name + " has rows of " + std::to_string(row) + " bytes, no multiple of its chunks'");
    auto chunks = row / s.chunk_bytes;
    if (chunks == 1 || s.chunk == s.chunk_bytes) chunks = 1, s.chunk = 0, s.chunk_bytes = row;
    if (s.next_buffer != 0 && s.layer != 0) bad_layout(name + " has both a stride and a buffer for its next layer");
    if (wide{s.buffer} + wide{s.next_buffer} * (shape.count - 1) >= max_buffers)
      bad_layout(name + " needs more than " + std::to_string(max_buffers) + " buffers");
    for (auto bytes : {s.offset, s.layer, s.page, per_head ? s.head : 0, s.token, s.chunk, s.chunk_bytes})
      if (bytes % element != 0) bad_layout(name + " is not aligned to its dtype");
    auto last = [&](std::uint64_t stride, std::uint64_t count) {
      return wide{times(name, stride, count == 1 ? 0 : count - 1)};
    };
    sized(name, wide{s.offset} + last(s.layer, shape.count) + last(s.page, pages_.pages) +
                    last(per_head ? s.head : 0, std::max<std::uint64_t>(shape.kv_heads, 1)) +
                    last(s.token, pages_.page_tokens) + last(s.chunk, chunks) + s.chunk_bytes);
    out.planes.push_back({s, row, chunks, per_head, chunks == 1 && (s.token == row || pages_.page_tokens == 1)});
  }
  find_runs(out);
  groups_.push_back(std::move(out));
}

// Runs longer than a plane of one head, for pages of one block: what makes a whole block of ours one extent.
void kv_layout::find_runs(detail::placed_group& g) const {
  const detail::placed_plane* before = nullptr;
  std::uint64_t run = 0;
  for (std::size_t i = 0; i < g.planes.size(); ++i) {
    const auto& p = g.planes[i];
    if (!p.per_head) continue;
    const auto bytes = p.row * geometry_.block_tokens();
    if (!before) g.lead = i;
    if (before) {
      const auto& lead = g.planes[g.lead].at;
      if (p.at.offset != lead.offset + run || p.at.buffer != lead.buffer || p.at.next_buffer != lead.next_buffer ||
          p.at.layer != lead.layer || p.at.page != lead.page || p.at.head != lead.head)
        return;
    }
    if (!p.together) return;
    run += bytes;
    before = &p;
  }
  if (run == 0 || pages_.page_tokens != geometry_.block_tokens()) return;
  g.head_run = run;
  g.heads_together = g.planes[g.lead].at.head == run;
}

std::uint32_t kv_layout::tokens_of(std::uint32_t block) const noexcept {
  const auto before = std::uint64_t{block % blocks_per_page_} * geometry_.block_tokens();
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(geometry_.block_tokens(), pages_.page_tokens - before));
}

kv_layout kv_layout::strided(geometry g, page_table pages, std::vector<std::vector<plane_strides>> groups) {
  return kv_layout(std::move(g), pages, std::move(groups));
}

kv_layout kv_layout::paged(geometry g, std::uint32_t blocks) {
  pool_bytes(g, blocks);  // what follows is inside it
  std::vector<std::vector<plane_strides>> groups;
  for (const auto& shape : g.groups()) {
    const auto segment = g.segment_bytes(shape.first);
    auto& planes = groups.emplace_back();
    for (std::size_t i = 0; i < shape.planes.size(); ++i)
      planes.push_back({.offset = segment_offset(g, blocks, shape.first, 0) + g.plane_offset(shape.first, 0, i),
                        .layer = segment * blocks,
                        .page = segment,
                        .head = shape.planes[i].per_head ? g.head_bytes(shape.first) : 0,
                        .token = g.row_bytes(shape.first, i)});
  }
  const page_table pages{blocks, g.block_tokens()};
  return kv_layout(std::move(g), pages, std::move(groups));
}

kv_layout kv_layout::in_blocks_of(std::uint32_t tokens) const {
  const auto before = geometry_.block_tokens();
  if (tokens == 0 || before % tokens != 0)
    bad_layout("blocks of " + std::to_string(before) + " tokens are not made of blocks of " + std::to_string(tokens));
  if (pages_.page_tokens % before != 0) bad_layout("a page's last block has fewer tokens than the others");
  std::vector<std::vector<plane_strides>> groups;
  for (const auto& g : groups_) {
    auto& planes = groups.emplace_back();
    for (const auto& p : g.planes) planes.push_back(p.at);
  }
  return kv_layout(geometry_.in_blocks_of(tokens), pages_, std::move(groups));
}

std::vector<std::uint32_t> in_smaller_blocks(std::span<const std::uint32_t> table, std::uint32_t n) {
  std::vector<std::uint32_t> out;
  out.reserve(table.size() * n);
  for (const auto block : table)
    for (std::uint32_t i = 0; i < n; ++i) out.push_back(block * n + i);
  return out;
}

kv_layout kv_layout::contiguous(geometry g, std::uint32_t requests, std::uint32_t tokens) {
  std::vector<std::vector<plane_strides>> groups;
  std::uint64_t at = 0;
  for (const auto& shape : g.groups()) {
    auto& planes = groups.emplace_back();
    std::uint64_t layer = 0;
    for (std::size_t i = 0; i < shape.planes.size(); ++i) {
      const auto name = named(shape, i);
      const auto row = g.row_bytes(shape.first, i);
      const auto head = times(name, row, tokens);
      const auto page = times(name, head, shape.planes[i].per_head ? shape.kv_heads : 1);
      planes.push_back({.offset = at + layer, .page = page, .head = head, .token = row});
      layer = sized(name, wide{layer} + times(name, page, requests));
    }
    for (auto& p : planes) p.layer = layer;
    at = sized(named(shape, 0), wide{at} + times(named(shape, 0), layer, shape.count));
  }
  return kv_layout(std::move(g), {requests, tokens}, std::move(groups));
}

kv_layout kv_layout::faster_transformer(geometry g, std::uint32_t batch, std::uint32_t max_seq) {
  constexpr std::uint64_t chunk = 16;
  std::vector<std::vector<plane_strides>> groups;
  std::uint64_t at[2] = {};
  for (const auto& shape : g.groups()) {
    if (shape.planes.size() != 2 || !shape.planes[0].per_head || !shape.planes[1].per_head)
      bad_layout("layer " + std::to_string(shape.first) + ": FasterTransformer keeps K and V, both with heads");
    auto& planes = groups.emplace_back();
    for (std::uint32_t i = 0; i < 2; ++i) {
      const auto name = named(shape, i);
      const auto row = g.row_bytes(shape.first, i);
      plane_strides s{.offset = at[i], .token = row, .buffer = i};
      if (i == 0) {
        if (row % chunk != 0) bad_layout(name + " has rows of " + std::to_string(row) + " bytes, no multiple of 16");
        s.token = s.chunk_bytes = chunk;
        s.chunk = times(name, chunk, max_seq);
      }
      s.head = times(name, row, max_seq);
      s.page = times(name, s.head, shape.kv_heads);
      s.layer = times(name, s.page, batch);
      at[i] = sized(name, wide{at[i]} + times(name, s.layer, shape.count));
      planes.push_back(s);
    }
  }
  return kv_layout(std::move(g), {batch, max_seq}, std::move(groups));
}

std::uint64_t segment_offset(const geometry& g, std::uint32_t blocks, std::uint32_t layer, std::uint32_t block) {
  std::uint64_t before = 0;
  for (auto& group : g.groups()) {
    if (layer < group.first + group.count)
      return (before + g.segment_bytes(layer) * (layer - group.first)) * blocks + g.segment_bytes(layer) * block;
    before += g.segment_bytes(group.first) * group.count;
  }
  throw std::out_of_range("segment_offset: no layer " + std::to_string(layer));
}

std::uint64_t pool_bytes(const geometry& g, std::uint32_t blocks) {
  if (wide{g.block_bytes()} * blocks > kv_layout::max_bytes)
    throw config_error("KV memory of " + std::to_string(blocks) + " blocks would reach beyond 2^62 bytes");
  return g.block_bytes() * blocks;
}

std::uint64_t pool_bytes(const geometry& g, std::uint32_t blocks, std::span<const std::uint32_t> elsewhere) {
  auto all = pool_bytes(g, blocks);
  std::uint64_t largest = 0;
  for (auto layer : elsewhere) {
    const auto bytes = g.segment_bytes(layer) * blocks;
    largest = std::max(largest, bytes);
    all -= bytes;
  }
  return all + 2 * largest;
}

}  // namespace cokv
