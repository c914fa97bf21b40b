#include "kvstream/transfers.hpp"

namespace cokv::test {

std::vector<std::uint64_t> naive_bytes(const geometry& g, std::uint32_t blocks, const selection& s) {
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
