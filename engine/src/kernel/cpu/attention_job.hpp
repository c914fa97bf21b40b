// What the ways to compute attention on the CPU share: a piece of the work, and vectors turned into columns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernel/cpu/attention.hpp"
#include "kernel/cpu/simd.hpp"

namespace cokv::kernel {

inline constexpr float masked = -std::numeric_limits<float>::infinity();  // the score of a key that isn't seen

struct attention_work {
  const float* q;
  std::size_t q_stride;
  void* out;
  dtype out_type;
  std::uint32_t heads, dim, padded;  // padded: a multiple of lanes
  const layer_kv* kv;
  const float* slopes;  // null: none
};

// Queries of one KV head: (token, query head) pairs of a sequence, tokens outermost.
struct attention_job {
  static constexpr std::uint32_t most = 64;

  const sequence_rows* sequence;
  std::uint32_t kv_head;
  std::uint32_t first, count;

  // Of query i: its place in the sequence, its head, its numbers, and where its result goes.
  float position(const attention_work& w, std::uint32_t i) const noexcept {
    return static_cast<float>(sequence->start + token(w, i));
  }
  std::size_t head(const attention_work& w, std::uint32_t i) const noexcept {
    return std::size_t{kv_head} * group(w) + (first + i) % group(w);
  }
  const float* query(const attention_work& w, std::uint32_t i) const noexcept {
    return w.q + (sequence->row + token(w, i)) * w.q_stride + head(w, i) * w.dim;
  }
  std::size_t out_index(const attention_work& w, std::uint32_t i) const noexcept {
    return ((sequence->row + token(w, i)) * w.heads + head(w, i)) * w.dim;
  }

 private:
  static std::uint32_t group(const attention_work& w) noexcept { return w.heads / w.kv->heads; }
  std::size_t token(const attention_work& w, std::uint32_t i) const noexcept { return (first + i) / group(w); }
};

// On a matrix unit: whether there is one that such KV suits; the piece itself, of any number of queries.
bool has_attention_tiles(dtype kv, std::uint32_t dim) noexcept;
void attend_on_tiles(const attention_work& w, const attention_job& j);

// Rows become columns: four times, the upper half of the rows is dealt between the lower one's.
COKV_INLINE void transpose(vf (&rows)[lanes]) {
  for (int round = 0; round < 4; ++round) {
    vf dealt[lanes];
    for (int i = 0; i < lanes / 2; ++i) {
      const vf &a = rows[i], &b = rows[i + lanes / 2];
      dealt[2 * i] = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      dealt[2 * i + 1] = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    }
    for (int i = 0; i < lanes; ++i) rows[i] = dealt[i];
  }
}

}  // namespace cokv::kernel
