// Attention of new tokens over paged KV: every token sees what its sequence's blocks hold before it, and itself.
// Grouped queries, softmax in one pass (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018).
// Keys are taken in tiles, counted from the start of the sequence, so a token's result does not depend on how the
// sequence was cut into steps, on the batch, or on the size of a block. On a matrix unit (Intel AMX), over bf16 KV,
// queries and softmax's weights are rounded to bf16; sums are f32 everywhere.
//
//     attention(q, q_stride, out, dtype::f32, heads, layer_kv, sequences);
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cokv/kvstream/dtype.hpp"

namespace cokv::kernel {

// One layer of a pool, [block][head][K, V][token][dim].
struct layer_kv {
  std::byte* base = nullptr;    // of block 0
  std::size_t block_bytes = 0;  // from one block's segment to the next
  dtype type = dtype::f32;      // f32 or bf16
  std::uint32_t heads = 0;      // KV heads
  std::uint32_t dim = 0;        // even
  std::uint32_t block_tokens = 0;

  std::size_t plane_bytes() const noexcept { return std::size_t{block_tokens} * dim * size_of(type); }
  // Where the K (0) or V (1) of a token of a sequence is.
  std::byte* at(const std::uint32_t* blocks, std::uint32_t token, std::uint32_t head, std::uint32_t plane) const {
    return base + blocks[token / block_tokens] * block_bytes + (std::size_t{head} * 2 + plane) * plane_bytes() +
           std::size_t{token % block_tokens} * dim * size_of(type);
  }
};

// `count` new tokens from position `start` on; they are rows [row, row + count) of the batch.
struct sequence_rows {
  const std::uint32_t* blocks = nullptr;
  std::uint32_t start = 0, count = 0, row = 0;
};

// q: [rows][q_stride] floats, heads * dim of them used, rotated. out: [rows][heads * dim] of out_type (f32 or bf16).
// K and V of all positions up to start + count are in the pool. slopes: none, or [heads], ALiBi's: a score falls by slope
// times the distance between query and key.
void attention(const float* q, std::size_t q_stride, void* out, dtype out_type, std::uint32_t heads, const layer_kv& kv,
               std::span<const sequence_rows> sequences, std::span<const float> slopes = {});

}  // namespace cokv::kernel
