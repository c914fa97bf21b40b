#include "kernel/cpu/attention.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "kernel/cpu/parallel.hpp"
#include "kernel/cpu/simd.hpp"

namespace cokv::kernel {
namespace {

constexpr std::uint32_t key_tile = 16, tiles_a_job = 4;
constexpr float none = -std::numeric_limits<float>::infinity();

// Sixteen queries side by side, one a lane: (token, query head) pairs that share a KV head.
struct query_tile {
  std::array<std::uint32_t, lanes> row, head;
  std::array<float, lanes> position;
  std::uint32_t used, first, last;  // lowest and highest position
};

struct job {
  const sequence_rows* sequence;
  std::uint32_t kv_head;
  std::uint32_t first, count;  // of the sequence's (token, head) pairs, tokens outermost
};

struct scratch {
  std::vector<float> keys, values, queries, results, sums;
};

struct work {
  const float* q;
  std::size_t q_stride;
  void* out;
  dtype out_type;
  std::uint32_t heads, dim, padded;
  const layer_kv* kv;
};

template <class T>
COKV_INLINE void stage(float* to, const T* from, std::uint32_t dim, std::uint32_t padded) {
  std::uint32_t d = 0;
  for (; d + lanes <= dim; d += lanes) {
    vf v;
    load(v, from + d);
    store(to + d, v);
  }
  for (; d < dim; ++d) to[d] = to_float(from[d]);
  for (; d < padded; ++d) to[d] = 0;
}

// One tile of queries against one tile of keys. K keys and C dimensions at a time are what fits in registers.
template <int K, int C>
COKV_INLINE void one_tile(const float* q, const float* keys, const float* values, float* results, float* sums,
                          std::uint32_t dim, const float* positions, std::uint32_t key, bool masked) {
  vf scores[key_tile];
  for (std::uint32_t t = 0; t < key_tile; t += K) {
    vf acc[K] = {};
    const float* k = keys + t * dim;
    for (std::uint32_t d = 0; d < dim; ++d) {
      vf query;
      load(query, q + d * lanes);
      for (int i = 0; i < K; ++i) acc[i] += k[i * dim + d] * query;
    }
    for (int i = 0; i < K; ++i) scores[t + i] = acc[i];
  }
  if (masked) {
    vf limit;
    load(limit, positions);
    for (std::uint32_t t = 0; t < key_tile; ++t)
      scores[t] = limit < static_cast<float>(key + t) ? vf{} + none : scores[t];
  }
  vf old, total, top, scale;
  load(old, sums), load(total, sums + lanes);
  top = old;
  for (auto& s : scores) top = top < s ? s : top;
  vf down = old - top;
  exp(scale, down);
  total *= scale;
  float weights[key_tile * lanes];
  for (std::uint32_t t = 0; t < key_tile; ++t) {
    vf x = scores[t] - top, p;
    exp(p, x);
    total += p;
    store(weights + t * lanes, p);
  }
  store(sums, top), store(sums + lanes, total);
  for (std::uint32_t d = 0; d < dim; d += C) {
    vf acc[C];
    for (int c = 0; c < C; ++c) {
      load(acc[c], results + (d + c) * lanes);
      acc[c] *= scale;
    }
    for (std::uint32_t t = 0; t < key_tile; ++t) {
      vf p;
      load(p, weights + t * lanes);
      for (int c = 0; c < C; ++c) acc[c] += values[t * dim + d + c] * p;
    }
    for (int c = 0; c < C; ++c) store(results + (d + c) * lanes, acc[c]);
  }
}

template <class T, int K, int C>
COKV_INLINE void run(const work& w, const job& j, scratch& s, const query_tile* tiles, std::uint32_t count) {
  auto& kv = *w.kv;
  const std::size_t tile_floats = std::size_t{w.padded} * lanes;
  std::uint32_t last = 0;
  for (std::uint32_t i = 0; i < count; ++i) last = std::max(last, tiles[i].last);
  for (std::uint32_t key = 0; key <= last; key += key_tile) {
    for (std::uint32_t t = 0; t < key_tile; ++t) {
      float *k = s.keys.data() + t * w.padded, *v = s.values.data() + t * w.padded;
      if (key + t <= last) {
        stage(k, reinterpret_cast<const T*>(kv.at(j.sequence->blocks, key + t, j.kv_head, 0)), w.dim, w.padded);
        stage(v, reinterpret_cast<const T*>(kv.at(j.sequence->blocks, key + t, j.kv_head, 1)), w.dim, w.padded);
      } else {  // never what the pool happens to hold there: zero times NaN is NaN
        std::fill_n(k, w.padded, 0.0f), std::fill_n(v, w.padded, 0.0f);
      }
    }
    for (std::uint32_t i = 0; i < count; ++i)
      if (key <= tiles[i].last)
        one_tile<K, C>(s.queries.data() + i * tile_floats, s.keys.data(), s.values.data(),
                       s.results.data() + i * tile_floats, s.sums.data() + i * 2 * lanes, w.padded,
                       tiles[i].position.data(), key, key + key_tile - 1 > tiles[i].first);
  }
}

template <class T>
void run_plain(const work& w, const job& j, scratch& s, const query_tile* tiles, std::uint32_t count) {
  run<T, 2, 2>(w, j, s, tiles, count);
}
template <class T>
COKV_AVX2 void run_avx2(const work& w, const job& j, scratch& s, const query_tile* tiles, std::uint32_t count) {
  run<T, 4, 4>(w, j, s, tiles, count);
}
template <class T>
COKV_AVX512 void run_avx512(const work& w, const job& j, scratch& s, const query_tile* tiles, std::uint32_t count) {
  run<T, 16, 8>(w, j, s, tiles, count);
}

template <class T>
void run_best(const work& w, const job& j, scratch& s, const query_tile* tiles, std::uint32_t count) {
  switch (best_isa()) {
    case isa::plain:
      return run_plain<T>(w, j, s, tiles, count);
    case isa::avx2:
      return run_avx2<T>(w, j, s, tiles, count);
    default:
      return run_avx512<T>(w, j, s, tiles, count);
  }
}

void run_job(const work& w, const job& j) {
  thread_local scratch s;
  const std::size_t tile_floats = std::size_t{w.padded} * lanes;
  const auto group = w.heads / w.kv->heads;
  const auto count = (j.count + lanes - 1) / lanes;
  s.keys.resize(key_tile * w.padded), s.values.resize(key_tile * w.padded);
  s.queries.assign(count * tile_floats, 0.0f), s.results.assign(count * tile_floats, 0.0f);
  s.sums.assign(count * 2 * lanes, 0.0f);
  std::array<query_tile, tiles_a_job> tiles;
  const float scale = 1.0f / std::sqrt(static_cast<float>(w.dim));
  for (std::uint32_t i = 0; i < count; ++i) {
    auto& t = tiles[i];
    auto first = j.first + i * lanes;
    t.used = std::min<std::uint32_t>(lanes, j.first + j.count - first);
    t.first = j.sequence->start + first / group;
    t.last = j.sequence->start + (first + t.used - 1) / group;
    std::fill_n(s.sums.data() + i * 2 * lanes, lanes, none);
    for (std::uint32_t lane = 0; lane < lanes; ++lane) {
      auto pair = first + std::min(lane, t.used - 1);
      t.row[lane] = j.sequence->row + pair / group;
      t.head[lane] = j.kv_head * group + pair % group;
      t.position[lane] = static_cast<float>(j.sequence->start + pair / group);
      const float* from = w.q + t.row[lane] * w.q_stride + std::size_t{t.head[lane]} * w.dim;
      float* to = s.queries.data() + i * tile_floats + lane;
      for (std::uint32_t d = 0; d < w.dim; ++d) to[d * lanes] = from[d] * scale;
    }
  }
  if (w.kv->type == dtype::bf16)
    run_best<bf16>(w, j, s, tiles.data(), count);
  else
    run_best<float>(w, j, s, tiles.data(), count);
  for (std::uint32_t i = 0; i < count; ++i)
    for (std::uint32_t lane = 0; lane < tiles[i].used; ++lane) {
      auto at = (std::size_t{tiles[i].row[lane]} * w.heads + tiles[i].head[lane]) * w.dim;
      const float* from = s.results.data() + i * tile_floats + lane;
      const float share = 1.0f / s.sums[i * 2 * lanes + lanes + lane];
      for (std::uint32_t d = 0; d < w.dim; ++d) {
        if (w.out_type == dtype::bf16)
          static_cast<bf16*>(w.out)[at + d] = to_bf16(from[d * lanes] * share);
        else
          static_cast<float*>(w.out)[at + d] = from[d * lanes] * share;
      }
    }
}

}  // namespace

void attention(const float* q, std::size_t q_stride, void* out, dtype out_type, std::uint32_t heads, const layer_kv& kv,
               std::span<const sequence_rows> sequences) {
  work w{q, q_stride, out, out_type, heads, kv.dim, (kv.dim + 7) / 8 * 8, &kv};
  const auto group = heads / kv.heads;
  std::vector<job> jobs;
  double cycles = 0;
  for (auto& s : sequences) {
    const auto pairs = s.count * group;
    for (std::uint32_t head = 0; head < kv.heads; ++head)
      // The longest pieces first: what is left at the end is short.
      for (std::uint32_t i = (pairs + lanes * tiles_a_job - 1) / (lanes * tiles_a_job); i-- > 0;) {
        auto first = i * lanes * tiles_a_job;
        jobs.push_back({&s, head, first, std::min(lanes * tiles_a_job, pairs - first)});
        cycles += 2.5 * w.dim * (s.start + double(first) / group + 1) * ((jobs.back().count + lanes - 1) / lanes);
      }
  }
  parallel(jobs.size(), jobs.empty() ? 0 : cycles / 3.0 / double(jobs.size()),
           [&](std::size_t i) { run_job(w, jobs[i]); });
}

}  // namespace cokv::kernel
