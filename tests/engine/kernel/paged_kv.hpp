// KV of a sequence in a pool, and attention over it in double precision.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <span>
#include <vector>

#include "engine/kernel/random.hpp"
#include "kernel/cpu/attention.hpp"
#include "kernel/cpu/rows.hpp"
#include "kernel/cpu/simd.hpp"

namespace cokv::test {

// A pool whose every byte is 0xff (a NaN in both types) but for the KV of one sequence in scattered blocks.
struct paged_sequence {
  paged_sequence(dtype type, std::uint32_t kv_heads, std::uint32_t dim, std::uint32_t block_tokens,
                 std::uint32_t tokens, unsigned seed = 1)
      : tokens(tokens),
        keys(random_floats(tokens * kv_heads * dim, seed, 2)),
        values(random_floats(tokens * kv_heads * dim, seed + 1)) {
    const auto count = (tokens + block_tokens - 1) / block_tokens;
    kv = {nullptr, std::size_t{2} * kv_heads * dim * block_tokens * size_of(type), type, kv_heads, dim, block_tokens};
    memory.assign((2 * count + 1) * kv.block_bytes, std::byte{0xff});
    kv.base = memory.data();
    for (std::uint32_t i = 0; i < count; ++i) blocks.push_back(2 * i + 1);
    std::shuffle(blocks.begin(), blocks.end(), std::mt19937(5));
  }
  void write(std::uint32_t up_to) {
    for (std::uint32_t t = 0; t < up_to; ++t)
      for (std::uint32_t h = 0; h < kv.heads; ++h) {
        auto at = (std::size_t{t} * kv.heads + h) * kv.dim;
        kernel::convert(keys.data() + at, kv.at(blocks.data(), t, h, 0), kv.type, kv.dim);
        kernel::convert(values.data() + at, kv.at(blocks.data(), t, h, 1), kv.type, kv.dim);
      }
  }
  float read(const std::vector<float>& from, std::uint32_t t, std::uint32_t head, std::uint32_t d) const {
    auto v = from[(std::size_t{t} * kv.heads + head) * kv.dim + d];
    return kv.type == dtype::bf16 ? kernel::to_float(kernel::to_bf16(v)) : v;
  }
  std::vector<double> exact(const float* q, std::uint32_t position, std::uint32_t heads,
                            std::span<const float> slopes = {}) const {
    std::vector<double> out;
    for (std::uint32_t h = 0; h < heads; ++h) {
      std::vector<double> p(position + 1), o(kv.dim);
      double total = 0;
      for (std::uint32_t t = 0; t <= position; ++t) {
        for (std::uint32_t d = 0; d < kv.dim; ++d)
          p[t] += double(q[h * kv.dim + d]) * read(keys, t, h / (heads / kv.heads), d);
        const double further = slopes.empty() ? 0 : double(slopes[h]) * (position - t);
        total += p[t] = std::exp(p[t] / std::sqrt(double(kv.dim)) - further);
      }
      for (std::uint32_t t = 0; t <= position; ++t)
        for (std::uint32_t d = 0; d < kv.dim; ++d) o[d] += p[t] / total * read(values, t, h / (heads / kv.heads), d);
      out.insert(out.end(), o.begin(), o.end());
    }
    return out;
  }
  std::uint32_t tokens;
  std::vector<float> keys, values;
  std::vector<std::uint32_t> blocks;
  std::vector<std::byte> memory;
  kernel::layer_kv kv;
};

}  // namespace cokv::test
