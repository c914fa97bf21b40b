// Small shapes of KV of every kind: heads, a latent without any, fp8 with scales, sliding windows.
#pragma once

#include <vector>

#include "cokv/kvstream/geometry.hpp"

namespace cokv::test {

inline std::vector<geometry> small_models(std::uint32_t block_tokens) {
  std::vector<plane> kv{{"k", dtype::bf16, true, 4}, {"v", dtype::bf16, true, 2}};
  std::vector<plane> latent{{"c", dtype::bf16, false, 6}, {"r", dtype::bf16, false, 2}};
  std::vector<plane> scaled{
      {"s", dtype::f32, true, 1}, {"k", dtype::fp8_e4m3, true, 8}, {"v", dtype::fp8_e4m3, true, 8}};
  return {geometry::attention(6, 4, 8, dtype::f32, block_tokens), geometry(block_tokens, {{0, 5, 0, latent}}),
          geometry(block_tokens, {{0, 2, 3, kv}, {2, 2, 0, latent}, {4, 2, 2, scaled}}),
          geometry(block_tokens, {{.first = 0, .count = 2, .kv_heads = 2, .planes = kv, .window = 5},
                                  {.first = 2, .count = 3, .kv_heads = 2, .planes = kv}})};
}

}  // namespace cokv::test
