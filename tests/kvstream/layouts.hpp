// What the tests of layouts share: each layout's address function written down from what it says, element by element
// and without strides, random geometries and selections, and the bytes of a selection in canonical order.
#pragma once

#include <compare>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "cokv/kvstream/slice.hpp"

namespace cokv::test {

struct byte_place {
  std::uint32_t buffer = 0;
  std::uint64_t offset = 0;
  friend auto operator<=>(const byte_place&, const byte_place&) = default;
};

struct element {
  std::uint32_t layer, page, token, head;  // of the model, the memory, the page, the plane (0 for one without heads)
  std::size_t plane;
  std::uint32_t dim;
};

struct known_layout {
  std::string name;
  kv_layout layout;
  std::function<byte_place(const element&)> at;
};

inline std::uint64_t width(const geometry& g, const element& e) {
  return size_of(g.group(e.layer).planes[e.plane].type);
}
inline std::uint64_t dims(const geometry& g, const element& e) { return g.group(e.layer).planes[e.plane].dim; }
inline std::uint64_t heads(const geometry& g, const element& e) {
  return g.group(e.layer).planes[e.plane].per_head ? g.kv_heads(e.layer) : 1;
}

// f(layer, plane) for all before those of e.
template <class F>
std::uint64_t sum_before(const geometry& g, const element& e, F f) {
  std::uint64_t sum = 0;
  for (std::uint32_t layer = 0; layer <= e.layer; ++layer)
    for (std::size_t p = 0; p < g.group(layer).planes.size(); ++p) {
      if (layer == e.layer && p == e.plane) return sum;
      sum += f(element{layer, 0, 0, 0, p, 0});
    }
  return sum;
}

inline known_layout known_paged(const geometry& g, std::uint32_t blocks) {
  return {"paged", kv_layout::paged(g, blocks), [g, blocks](const element& e) {
            std::uint64_t at = 0, tokens = g.block_tokens();
            for (std::uint32_t layer = 0; layer < e.layer; ++layer) at += g.segment_bytes(layer) * blocks;
            at += g.segment_bytes(e.layer) * e.page;
            const auto& group = g.group(e.layer);
            std::uint64_t head = 0, before = 0, shared = 0;
            for (std::size_t p = 0; p < group.planes.size(); ++p) {
              const auto& plane = group.planes[p];
              const auto bytes = tokens * plane.dim * size_of(plane.type);
              if (plane.per_head) head += bytes;
              if (p < e.plane && plane.per_head) before += bytes;
              if (p < e.plane && !plane.per_head) shared += bytes;
            }
            at += group.planes[e.plane].per_head ? head * e.head + before : head * group.kv_heads + shared;
            return byte_place{0, at + (e.token * dims(g, e) + e.dim) * width(g, e)};
          }};
}

// [layer][plane][page][head][token][dim]
inline known_layout known_contiguous(const geometry& g, std::uint32_t requests, std::uint32_t tokens) {
  return {"contiguous", kv_layout::contiguous(g, requests, tokens), [=](const element& e) {
            const auto before = sum_before(g, e, [&](const element& o) {
              return std::uint64_t{requests} * heads(g, o) * tokens * dims(g, o) * width(g, o);
            });
            return byte_place{
                0, before + (((e.page * heads(g, e) + e.head) * tokens + e.token) * dims(g, e) + e.dim) * width(g, e)};
          }};
}

// K [layer][batch][head][dim / x][max_seq][x], V [layer][batch][head][max_seq][dim]
inline known_layout known_faster_transformer(const geometry& g, std::uint32_t batch, std::uint32_t max_seq) {
  return {"faster_transformer", kv_layout::faster_transformer(g, batch, max_seq), [=](const element& e) {
            const auto layers = sum_before(g, e, [&](const element& o) {
              return o.plane == e.plane ? std::uint64_t{batch} * heads(g, o) * max_seq * dims(g, o) * width(g, o) : 0;
            });
            const auto row = e.page * heads(g, e) + e.head, d = dims(g, e);
            if (e.plane == 1) return byte_place{1, layers + ((row * max_seq + e.token) * d + e.dim) * width(g, e)};
            const auto x = 16 / width(g, e);
            return byte_place{
                0, layers + (((row * (d / x) + e.dim / x) * max_seq + e.token) * x + e.dim % x) * width(g, e)};
          }};
}

// vLLM's: a buffer a layer, [plane][block][token][head][dim]
inline known_layout known_tensor_a_layer(const geometry& g, std::uint32_t blocks) {
  std::vector<std::vector<plane_strides>> groups;
  for (const auto& group : g.groups()) {
    std::uint64_t at = 0;
    auto& planes = groups.emplace_back();
    for (std::size_t i = 0; i < group.planes.size(); ++i) {
      const auto row = g.row_bytes(group.first, i), token = row * (group.planes[i].per_head ? group.kv_heads : 1);
      const auto page = token * g.block_tokens();
      planes.push_back(
          {.offset = at, .page = page, .head = row, .token = token, .buffer = group.first, .next_buffer = 1});
      at += page * blocks;
    }
  }
  return {"tensor a layer", kv_layout::strided(g, {blocks, g.block_tokens()}, std::move(groups)),
          [=](const element& e) {
            std::uint64_t at = 0;
            for (std::size_t p = 0; p < e.plane; ++p) {
              const element o{e.layer, 0, 0, 0, p, 0};
              at += std::uint64_t{blocks} * g.block_tokens() * heads(g, o) * dims(g, o) * width(g, o);
            }
            const auto row = (std::uint64_t{e.page} * g.block_tokens() + e.token) * heads(g, e) + e.head;
            return byte_place{e.layer, at + (row * dims(g, e) + e.dim) * width(g, e)};
          }};
}

// [page][layer][token][plane][head][dim], each plane padded to 4 bytes, with 8 bytes between layers; a page holds
// several blocks.
inline known_layout known_interleaved(const geometry& g, std::uint32_t pages, std::uint32_t tokens) {
  auto padded = [g](const element& o) { return (heads(g, o) * dims(g, o) * width(g, o) + 3) / 4 * 4; };
  auto token_bytes = [=](std::uint32_t layer) {
    std::uint64_t n = 0;
    for (std::size_t p = 0; p < g.group(layer).planes.size(); ++p) n += padded({layer, 0, 0, 0, p, 0});
    return n;
  };
  auto layer_at = [=](std::uint32_t layer) {
    std::uint64_t n = 0;
    for (std::uint32_t l = 0; l < layer; ++l) n += tokens * token_bytes(l) + 8;
    return n;
  };
  std::vector<std::vector<plane_strides>> groups;
  for (const auto& group : g.groups()) {
    auto& planes = groups.emplace_back();
    std::uint64_t in_token = 0;
    for (std::size_t i = 0; i < group.planes.size(); ++i) {
      planes.push_back({.offset = 64 + layer_at(group.first) + in_token,
                        .layer = tokens * token_bytes(group.first) + 8,
                        .page = layer_at(g.layers()),
                        .head = g.row_bytes(group.first, i),
                        .token = token_bytes(group.first)});
      in_token += padded({group.first, 0, 0, 0, i, 0});
    }
  }
  return {"interleaved", kv_layout::strided(g, {pages, tokens}, std::move(groups)), [=](const element& e) {
            auto at = 64 + e.page * layer_at(g.layers()) + layer_at(e.layer) + e.token * token_bytes(e.layer);
            for (std::size_t p = 0; p < e.plane; ++p) at += padded({e.layer, 0, 0, 0, p, 0});
            return byte_place{0, at + (e.head * dims(g, e) + e.dim) * width(g, e)};
          }};
}

// [layer][plane][page][head][dim][token]: no two elements of a token together.
inline known_layout known_dim_first(const geometry& g, std::uint32_t pages, std::uint32_t tokens) {
  std::vector<std::vector<plane_strides>> groups;
  std::uint64_t at = 0;
  for (const auto& group : g.groups()) {
    auto& planes = groups.emplace_back();
    std::uint64_t layer = 0;
    for (std::size_t i = 0; i < group.planes.size(); ++i) {
      const element o{group.first, 0, 0, 0, i, 0};
      const auto w = width(g, o), head = dims(g, o) * tokens * w, page = heads(g, o) * head;
      planes.push_back(
          {.offset = at + layer, .page = page, .head = head, .token = w, .chunk = tokens * w, .chunk_bytes = w});
      layer += page * pages;
    }
    for (auto& p : planes) p.layer = layer;
    at += layer * group.count;
  }
  return {"dim first", kv_layout::strided(g, {pages, tokens}, std::move(groups)), [=](const element& e) {
            const auto before = sum_before(g, e, [&](const element& o) {
              return std::uint64_t{pages} * heads(g, o) * tokens * dims(g, o) * width(g, o);
            });
            const auto row = (e.page * heads(g, e) + e.head) * dims(g, e) + e.dim;
            return byte_place{0, before + (row * tokens + e.token) * width(g, e)};
          }};
}

class shapes {
 public:
  explicit shapes(std::uint32_t seed) : random_(seed) {}

  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(random_() % n); }
  index_range range_of(std::uint32_t n) {
    const auto first = below(n + 1);
    return {first, below(n - first + 1)};
  }
  void shuffle(std::vector<std::uint32_t>& v) { std::shuffle(v.begin(), v.end(), random_); }

  // Rows are multiples of 16 bytes, so that every layout takes them.
  geometry make(bool keys_and_values) {
    static constexpr dtype types[] = {dtype::f32, dtype::bf16, dtype::f16, dtype::fp8_e4m3, dtype::u8};
    std::vector<layer_group> groups;
    std::uint32_t first = 0;
    for (auto n = 1 + below(3); n > 0; --n) {
      layer_group g{.first = first, .count = 1 + below(3), .kv_heads = 1 + below(3), .planes = {}};
      g.window = below(2) ? 0 : 1 + below(9);
      bool any = false;
      for (std::uint32_t p = 0, planes = keys_and_values ? 2 : 1 + below(4); p < planes; ++p) {
        const auto type = types[below(5)];
        const bool per_head = keys_and_values || below(3) > 0;
        any |= per_head;
        g.planes.push_back(
            {"p" + std::to_string(p), type, per_head, static_cast<std::uint32_t>(16 / size_of(type)) * (1 + below(2))});
      }
      if (!any) g.kv_heads = 0;
      first += g.count;
      groups.push_back(std::move(g));
    }
    return geometry(1 + below(4), std::move(groups));
  }

  // Every kind that can hold the geometry, each with at least `blocks` blocks.
  std::vector<known_layout> layouts(const geometry& g, std::uint32_t blocks, bool keys_and_values) {
    const auto bt = g.block_tokens();
    const auto tokens = bt * 2 + below(bt);  // 2 or 3 blocks a page, the third not full
    std::vector<known_layout> out = {known_paged(g, blocks),          known_contiguous(g, blocks, tokens),
                                     known_tensor_a_layer(g, blocks), known_interleaved(g, blocks, bt * 2),
                                     known_dim_first(g, blocks, bt),  known_contiguous(g, 1, bt * blocks)};
    if (keys_and_values) {
      out.push_back(known_faster_transformer(g, blocks, tokens));
      out.push_back(known_faster_transformer(g, 1, bt * blocks));
    }
    return out;
  }

  // So many blocks of the layout, each once; only those with room for all their tokens.
  std::vector<std::uint32_t> table(const kv_layout& in, std::uint32_t n) {
    std::vector<std::uint32_t> all;
    for (std::uint32_t b = 0; b < in.blocks(); ++b)
      if (in.tokens_of(b) == in.shape().block_tokens()) all.push_back(b);
    if (below(2)) shuffle(all);
    all.resize(n);
    return all;
  }

 private:
  std::mt19937 random_;
};

// What is selected, and the same narrowing for any block table.
struct narrowing {
  index_range layers, tokens, heads;
  plane_set planes = plane_set::all;
  bool narrow_tokens = false, narrow_heads = false;
  std::optional<std::uint32_t> end = {};

  static narrowing of(shapes& r, const geometry& g, std::uint32_t blocks) {
    narrowing n;
    n.layers = r.range_of(g.layers());
    n.narrow_tokens = r.below(3) > 0;
    n.tokens = {0, blocks * g.block_tokens()};
    if (n.narrow_tokens) n.tokens = r.range_of(n.tokens.count);
    std::uint32_t fewest = 99;
    for (const auto& group : g.groups())
      if (group.kv_heads > 0) fewest = std::min(fewest, group.kv_heads);
    n.narrow_heads = fewest != 99 && r.below(2);
    if (n.narrow_heads) n.heads = r.range_of(fewest);
    n.planes = static_cast<plane_set>(r.below(3));
    if (r.below(4) == 0) n.end = static_cast<std::uint32_t>(n.tokens.end()) + r.below(6);
    return n;
  }

  slice select(const geometry& g, std::vector<std::uint32_t> table) const {
    slice s(g, layers, std::move(table));
    if (narrow_tokens) s.tokens(tokens);
    if (narrow_heads) s.heads(heads);
    if (end) s.ends_at(*end);
    return s.planes(planes);
  }

  bool covers(const geometry& g, std::uint32_t layer, std::uint32_t position) const {
    if (position < tokens.first || position >= tokens.end()) return false;
    const auto window = g.group(layer).window;
    if (window == 0 || (!narrow_tokens && !end)) return true;
    return position + std::uint64_t{window} >= (end ? *end : tokens.end());
  }
};

// Every byte of the selection in canonical order: layer, block, head, plane, token, dim; then planes without heads.
inline std::vector<byte_place> by_definition(const geometry& g, const known_layout& in, const narrowing& n,
                                             const std::vector<std::uint32_t>& table) {
  std::vector<byte_place> out;
  for (auto layer = n.layers.first; layer < n.layers.end(); ++layer) {
    const auto& group = g.group(layer);
    for (std::uint32_t i = 0; i < table.size(); ++i) {
      auto plane = [&](std::uint32_t head, std::size_t p) {
        for (std::uint32_t t = 0; t < g.block_tokens(); ++t) {
          if (!n.covers(g, layer, i * g.block_tokens() + t)) continue;
          const auto per_page = in.layout.blocks_per_page();
          for (std::uint32_t d = 0; d < group.planes[p].dim; ++d) {
            const element e{layer, table[i] / per_page, table[i] % per_page * g.block_tokens() + t, head, p, d};
            auto at = in.at(e);
            for (std::uint64_t b = 0; b < width(g, e); ++b, ++at.offset) out.push_back(at);
          }
        }
      };
      for (std::uint32_t head = 0; head < group.kv_heads && n.planes != plane_set::shared; ++head) {
        if (n.narrow_heads && (head < n.heads.first || head >= n.heads.end())) continue;
        for (std::size_t p = 0; p < group.planes.size(); ++p)
          if (group.planes[p].per_head) plane(head, p);
      }
      for (std::size_t p = 0; p < group.planes.size() && n.planes != plane_set::per_head; ++p)
        if (!group.planes[p].per_head) plane(0, p);
    }
  }
  return out;
}

}  // namespace cokv::test
