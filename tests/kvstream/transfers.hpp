// What the tests of transfers share: a device for either context, bytes that tell their place, and a model that picks
// a slice's bytes one by one.
#pragma once

#include <doctest/doctest.h>

#include <vector>

#include "cokv/kvstream/slice.hpp"
#include "cokv/runtime/device.hpp"
#include "support/co_test.hpp"

namespace cokv::test {

inline device any_device(const asio::any_io_executor& ex) {
  const bool simulated = ex.target<sim_context::executor_type>() != nullptr;
  return open_device(ex, simulated ? "sim:h200" : "cpu").value();
}

inline std::byte byte_at(std::uint64_t i, std::uint64_t seed = 0) {
  return static_cast<std::byte>(((i + 1) * 0x9E3779B97F4A7C15ull + seed * 0xBF58476D1CE4E5B9ull) >> 56);
}

inline buffer patterned(std::size_t n, std::uint64_t seed = 0) {
  buffer b = buffer::host(n);
  for (std::size_t i = 0; i < n; ++i) b.bytes()[i] = byte_at(i, seed);
  return b;
}

inline buffer blank(std::size_t n) {
  buffer b = buffer::host(n);
  std::ranges::fill(b.bytes(), std::byte{0xdd});
  return b;
}

// The offsets in paged memory of every byte of a selection, found element by element from what the layout says:
// [layer][block][head][plane][token][dim], planes without heads behind.
struct selection {
  index_range layers, tokens, heads;
  std::vector<std::uint32_t> table;
};

inline std::vector<std::uint64_t> naive_bytes(const geometry& g, std::uint32_t blocks, const selection& s) {
  std::vector<std::uint64_t> at;
  std::uint64_t layer_base = 0;
  for (std::uint32_t layer = 0; layer < g.layers(); ++layer) {
    const auto segment = g.segment_bytes(layer);
    const auto& group = g.group(layer);
    for (std::size_t i = 0; i < s.table.size(); ++i) {
      if (layer < s.layers.first || layer >= s.layers.end()) break;
      std::uint64_t offset = layer_base + segment * s.table[i];
      auto plane_of = [&](const plane& p, bool selected) {
        const auto row = std::uint64_t{size_of(p.type)} * p.dim;
        for (std::uint32_t t = 0; t < g.block_tokens(); ++t, offset += row) {
          const auto position = i * g.block_tokens() + t;
          if (!selected || position < s.tokens.first || position >= s.tokens.end()) continue;
          for (std::uint64_t b = 0; b < row; ++b) at.push_back(offset + b);
        }
      };
      for (std::uint32_t head = 0; head < group.kv_heads; ++head)
        for (const auto& p : group.planes)
          if (p.per_head) plane_of(p, head >= s.heads.first && head < s.heads.end());
      for (const auto& p : group.planes)
        if (!p.per_head) plane_of(p, true);
    }
    layer_base += segment * blocks;
  }
  return at;
}

}  // namespace cokv::test
