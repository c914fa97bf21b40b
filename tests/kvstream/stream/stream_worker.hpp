// A worker of a topology for tests of streams: its part of the model, its pool, its block tables, and what is to be in
// them, by the definition of the paged layout alone.
#pragma once

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

#include "cokv/kvstream/kv_stream.hpp"
#include "cokv/kvstream/placement.hpp"
#include "cokv/runtime/sim_context.hpp"
#include "kvstream/transfers.hpp"

namespace cokv::test {

inline constexpr std::uint32_t block_tokens = 4;
inline constexpr std::uint32_t pool_blocks = 24;

inline std::byte truth(std::uint32_t layer, std::size_t plane, std::uint32_t head, std::uint32_t sequence,
                       std::uint32_t token, std::uint64_t at) {
  std::uint64_t x = layer;
  for (std::uint64_t part :
       {std::uint64_t{plane}, std::uint64_t{head}, std::uint64_t{sequence}, std::uint64_t{token}, at})
    x = (x ^ part) * 0x9e3779b97f4a7c15u + (x >> 29);
  return static_cast<std::byte>(x >> 56);
}

// Of one layer (as the worker numbers it), sequence, or range of tokens, where it is given.
struct stream_part {
  std::optional<std::uint32_t> layer = {}, sequence = {};
  index_range tokens = {0, ~0u};
};

struct worker_memory {
  placement where;
  kv_pool pool;
  std::vector<block_lease> leases;
  std::vector<stream_sequence> sequences;

  worker_memory(sim_context& context, const topology& t, const geometry& model, worker w,
                const std::vector<std::uint32_t>& lengths, bool on_device = false)
      : where(t, model, w), pool(where.shape(), pool_blocks, memory(context, where.shape(), on_device)) {
    std::ranges::fill(pool.memory().bytes(), std::byte{0xdd});
    leases = pool.allocate(pool_blocks).value();
    std::vector<std::uint32_t> free(pool_blocks);
    std::iota(free.begin(), free.end(), 0);
    for (auto length : lengths) {
      stream_sequence s{.tokens = length};
      for (std::uint32_t b = 0; b < (length + block_tokens - 1) / block_tokens; ++b) {
        const auto pick = context.below(free.size());
        s.blocks.push_back(free[pick]);
        free.erase(free.begin() + static_cast<std::ptrdiff_t>(pick));
      }
      sequences.push_back(std::move(s));
    }
  }

  static buffer memory(sim_context& context, const geometry& shape, bool on_device) {
    const auto n = pool_bytes(shape, pool_blocks);
    return on_device ? any_device(context.get_executor()).allocate(n).value() : buffer::host(n);
  }

  // f(byte, what it is to be) for every byte of every token that a layer keeps.
  template <class F>
  void each(F f, const stream_part& of = {}) {
    const auto& shape = where.shape();
    std::uint64_t layer_at = 0;
    for (std::uint32_t local = 0; local < shape.layers(); ++local) {
      const auto layer = where.global_layer(local);
      const auto& group = shape.group(local);
      for (std::uint32_t s = 0; s < sequences.size(); ++s)
        for (std::uint32_t token = 0; token < sequences[s].tokens; ++token) {
          if (of.layer.value_or(local) != local || of.sequence.value_or(s) != s) continue;
          if (token < of.tokens.first || token >= of.tokens.end()) continue;
          if (group.window != 0 && token + group.window < sequences[s].tokens) continue;
          const auto block = sequences[s].blocks[token / block_tokens];
          for (std::size_t p = 0; p < group.planes.size(); ++p)
            for (std::uint32_t h = 0; h < (group.planes[p].per_head ? group.kv_heads : 1); ++h) {
              const auto head = group.planes[p].per_head ? where.heads(layer).first + h : 0;
              const auto row = shape.row_bytes(local, p);
              auto* at = pool.memory().data() + layer_at + shape.segment_bytes(local) * block +
                         shape.plane_offset(local, h, p) + row * (token % block_tokens);
              for (std::uint64_t b = 0; b < row; ++b) f(at[b], truth(layer, p, head, s, token, b));
            }
        }
      layer_at += shape.segment_bytes(local) * pool_blocks;
    }
  }
  void fill(const stream_part& of = {}) {
    each([](std::byte& b, std::byte is) { b = is; }, of);
  }
  std::size_t wrong(const stream_part& of = {}) {
    std::size_t n = 0;
    each([&](std::byte& b, std::byte is) { n += b != is; }, of);
    return n;
  }

  stream_side side(const route& way, worker w) { return {way, w, where.shape(), kv_view(pool, leases), sequences}; }
};

}  // namespace cokv::test
