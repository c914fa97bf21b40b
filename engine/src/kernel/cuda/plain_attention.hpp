// Attention of new tokens over paged KV by plain arithmetic in f32: for f32, and for heads that tensor cores don't take. A
// block of threads takes a token's query head, and its keys 128 at a time. Compiled for the host and for devices.
#pragma once

#include "kernel/cuda/attention_kernel.hpp"

namespace cokv::kernel::gpu {

constexpr std::uint32_t plain_threads = 128, widest_plain_head = 1024;

struct plain_shared {
  float q[widest_plain_head], result[widest_plain_head];
  float scores[plain_threads];
  float tops[2], sums[2];  // so far; the two take turns
};

// For blocks in the order [row][head]: job.tiles[row].first is the row's token in its sequence.
template <class T, class Each>
COKV_ON_DEVICE void plain_attention(const attention_job& job, plain_shared& s, std::uint32_t nth, Each each) {
  const auto head = nth % job.heads, dim = job.kv.dim, kv_head = head / (job.heads / job.kv.heads);
  const auto tile = job.tiles[nth / job.heads];
  const auto of = job.sequences[tile.sequence];
  const auto position = of.start + tile.first;
  const auto offset = (std::size_t{of.row + tile.first} * job.heads + head) * dim;
  const float scale = log2_e / sqrtf(static_cast<float>(dim));
  const float slope = job.slopes ? job.slopes[head] * log2_e : 0.0f;
  each([&](std::uint32_t thread) {
    for (auto d = thread; d < dim; d += plain_threads) {
      s.q[d] = to_float(static_cast<const T*>(job.q)[offset + d]) * scale;
      s.result[d] = 0;
    }
    if (thread == 0) s.tops[0] = no_score, s.sums[0] = 0;
  });
  std::uint32_t now = 0;
  for (std::uint32_t first = 0; first <= position; first += plain_threads, now ^= 1) {
    const auto count = position + 1 - first < plain_threads ? position + 1 - first : plain_threads;
    each([&](std::uint32_t thread) {
      if (thread >= count) return;
      const auto* k = job.kv.template at<T>(of.table, first + thread, kv_head, 0);
      float sum = 0;
      for (std::uint32_t d = 0; d < dim; ++d) sum += s.q[d] * to_float(k[d]);
      s.scores[thread] = sum - slope * static_cast<float>(position - first - thread);
    });
    each([&](std::uint32_t thread) {
      if (thread != 0) return;
      float top = s.tops[now];
      for (std::uint32_t i = 0; i < count; ++i) top = fmaxf(top, s.scores[i]);
      s.tops[now ^ 1] = top;
    });
    const float top = s.tops[now ^ 1], fade = exp2f(s.tops[now] - top);
    each([&](std::uint32_t thread) {
      if (thread < count) s.scores[thread] = exp2f(s.scores[thread] - top);
    });
    each([&](std::uint32_t thread) {
      for (auto d = thread; d < dim; d += plain_threads) {
        float sum = s.result[d] * fade;
        for (std::uint32_t i = 0; i < count; ++i)
          sum += s.scores[i] * to_float(job.kv.template at<T>(of.table, first + i, kv_head, 1)[d]);
        s.result[d] = sum;
      }
      if (thread == 0) {
        float sum = s.sums[now] * fade;
        for (std::uint32_t i = 0; i < count; ++i) sum += s.scores[i];
        s.sums[now ^ 1] = sum;
      }
    });
  }
  each([&](std::uint32_t thread) {
    for (auto d = thread; d < dim; d += plain_threads)
      put(static_cast<T*>(job.out)[offset + d], s.result[d] / s.sums[now]);
  });
}

}  // namespace cokv::kernel::gpu
