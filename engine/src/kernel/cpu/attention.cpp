#include "kernel/cpu/attention.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "kernel/cpu/attention_job.hpp"
#include "kernel/cpu/parallel.hpp"
#include "kernel/cpu/simd.hpp"

namespace cokv::kernel {
namespace {

// Keys lie in lanes, so a query costs the same whether it comes alone or with others.
constexpr std::uint32_t key_tile = lanes;

using job = attention_job;
using work = attention_work;

// What a job keeps between its tiles, a query at a time: the query, scaled; its results so far, relative to the highest
// score so far; the sum of weights, a lane's each; and where it stands.
struct scratch {
  std::vector<float> queries, results, sums;
  std::array<float, job::most> top, position, slope;
  std::vector<float> keys;    // a tile, [dim][key]
  std::vector<float> values;  // a tile, [key][dim]
};

COKV_INLINE float highest(const vf& v) {
  vf a = __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
  vf m = v < a ? a : v;
  a = __builtin_shufflevector(m, m, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
  m = m < a ? a : m;
  a = __builtin_shufflevector(m, m, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
  m = m < a ? a : m;
  a = __builtin_shufflevector(m, m, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
  m = m < a ? a : m;
  return m[0];
}

// Sixteen dimensions of a row from `d` on, as floats; zeros behind the last.
template <class T>
COKV_INLINE void load_row(vf& v, const T* row, std::uint32_t d, std::uint32_t dim) {
  if (d + lanes <= dim) return load(v, row + d);
  float part[lanes] = {};
  for (std::uint32_t i = d; i < dim; ++i) part[i - d] = to_float(row[i]);
  load(v, part);
}

// The tile of keys and values that begins at position `key`. Behind `last` there are zeros, never what the pool happens
// to hold there: zero times NaN is NaN.
template <class T>
COKV_INLINE void stage(const work& w, const job& j, scratch& s, std::uint32_t key, std::uint32_t last) {
  auto& kv = *w.kv;
  const T *k[key_tile], *v[key_tile];
  const auto there = std::min(key_tile, last + 1 - key);
  for (std::uint32_t t = 0; t < there; ++t) {
    const bool next = t > 0 && (key + t) % kv.block_tokens != 0;  // in the same block as the one before
    k[t] = next ? k[t - 1] + w.dim : reinterpret_cast<const T*>(kv.at(j.sequence->blocks, key + t, j.kv_head, 0));
    v[t] = next ? v[t - 1] + w.dim : reinterpret_cast<const T*>(kv.at(j.sequence->blocks, key + t, j.kv_head, 1));
  }
  for (std::uint32_t d = 0; d < w.padded; d += lanes) {
    vf rows[lanes];
    for (std::uint32_t t = 0; t < key_tile; ++t) {
      vf value = {};
      rows[t] = vf{};
      if (t < there) load_row(rows[t], k[t], d, w.dim), load_row(value, v[t], d, w.dim);
      store(s.values.data() + std::size_t{t} * w.padded + d, value);
    }
    transpose(rows);
    for (int i = 0; i < lanes; ++i) store(s.keys.data() + (d + static_cast<std::uint32_t>(i)) * lanes, rows[i]);
  }
}

// Q queries, from `first` on, against the tile.
template <int Q>
COKV_INLINE void attend(const work& w, scratch& s, std::uint32_t first, std::uint32_t key) {
  vf scores[Q] = {};
  const float* q = s.queries.data() + std::size_t{first} * w.padded;
  for (std::uint32_t d = 0; d < w.dim; ++d) {
    vf k;
    load(k, s.keys.data() + d * lanes);
    for (int i = 0; i < Q; ++i) scores[i] += q[static_cast<std::size_t>(i) * w.padded + d] * k;
  }
  const vf at = vf{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} + static_cast<float>(key);
  float down[lanes] = {}, weights[Q * lanes];
  for (int i = 0; i < Q; ++i) {
    const auto n = first + static_cast<std::uint32_t>(i);
    if (w.slopes) scores[i] += (at - s.position[n]) * s.slope[n];
    scores[i] = at <= s.position[n] ? scores[i] : vf{} + masked;
    const float top = std::max(s.top[n], highest(scores[i]));
    down[i] = s.top[n] - top;
    s.top[n] = top;
  }
  vf scale;
  load(scale, down);
  exp(scale, scale);
  store(down, scale);
  for (int i = 0; i < Q; ++i) {
    const auto n = first + static_cast<std::uint32_t>(i);
    vf x = scores[i] - s.top[n], p, total;
    exp(p, x);
    store(weights + i * lanes, p);
    load(total, s.sums.data() + std::size_t{n} * lanes);
    total = total * down[i] + p;
    store(s.sums.data() + std::size_t{n} * lanes, total);
  }
  float* results = s.results.data() + std::size_t{first} * w.padded;
  for (std::uint32_t d = 0; d < w.padded; d += lanes) {
    vf acc[Q];
    for (int i = 0; i < Q; ++i) {
      load(acc[i], results + static_cast<std::size_t>(i) * w.padded + d);
      acc[i] *= down[i];
    }
    for (std::uint32_t t = 0; t < key_tile; ++t) {
      vf v;
      load(v, s.values.data() + std::size_t{t} * w.padded + d);
      for (int i = 0; i < Q; ++i) acc[i] += weights[static_cast<std::uint32_t>(i) * lanes + t] * v;
    }
    for (int i = 0; i < Q; ++i) store(results + static_cast<std::size_t>(i) * w.padded + d, acc[i]);
  }
}

// Q at a time is what fits in registers.
template <class T, int Q>
COKV_INLINE void run(const work& w, const job& j, scratch& s) {
  const auto last = static_cast<std::uint32_t>(s.position[j.count - 1]);
  for (std::uint32_t key = 0; key <= last; key += key_tile) {
    stage<T>(w, j, s, key, last);
    // Positions rise: who stands before the tile comes first.
    std::uint32_t i = 0;
    while (s.position[i] < static_cast<float>(key)) ++i;
    for (; i + Q <= j.count; i += Q) attend<Q>(w, s, i, key);
    if constexpr (Q > 4)
      for (; i + 4 <= j.count; i += 4) attend<4>(w, s, i, key);
    for (; i + 2 <= j.count; i += 2) attend<2>(w, s, i, key);
    for (; i < j.count; ++i) attend<1>(w, s, i, key);
  }
}

template <class T>
void run_plain(const work& w, const job& j, scratch& s) {
  run<T, 2>(w, j, s);
}
template <class T>
COKV_AVX2 void run_avx2(const work& w, const job& j, scratch& s) {
  run<T, 4>(w, j, s);
}
template <class T>
COKV_AVX512 void run_avx512(const work& w, const job& j, scratch& s) {
  run<T, 8>(w, j, s);
}

template <class T>
void run_best(const work& w, const job& j, scratch& s) {
  switch (best_isa()) {
    case isa::plain:
      return run_plain<T>(w, j, s);
    case isa::avx2:
      return run_avx2<T>(w, j, s);
    default:
      return run_avx512<T>(w, j, s);
  }
}

void run_job(const work& w, const job& j) {
  thread_local scratch s;
  s.keys.resize(key_tile * w.padded), s.values.resize(key_tile * w.padded);
  s.queries.resize(std::size_t{j.count} * w.padded);
  s.results.assign(std::size_t{j.count} * w.padded, 0.0f);
  s.sums.assign(std::size_t{j.count} * lanes, 0.0f);
  const float scale = 1.0f / std::sqrt(static_cast<float>(w.dim));
  for (std::uint32_t i = 0; i < j.count; ++i) {
    s.top[i] = masked;
    s.position[i] = j.position(w, i);
    if (w.slopes) s.slope[i] = w.slopes[j.head(w, i)];
    const float* from = j.query(w, i);
    float* to = s.queries.data() + std::size_t{i} * w.padded;
    for (std::uint32_t d = 0; d < w.dim; ++d) to[d] = from[d] * scale;
  }
  if (w.kv->type == dtype::bf16)
    run_best<bf16>(w, j, s);
  else
    run_best<float>(w, j, s);
  for (std::uint32_t i = 0; i < j.count; ++i) {
    vf parts;
    load(parts, s.sums.data() + std::size_t{i} * lanes);
    const float share = 1.0f / sum(parts);
    const float* from = s.results.data() + std::size_t{i} * w.padded;
    const auto at = j.out_index(w, i);
    for (std::uint32_t d = 0; d < w.dim; ++d) {
      if (w.out_type == dtype::bf16)
        static_cast<bf16*>(w.out)[at + d] = to_bf16(from[d] * share);
      else
        static_cast<float*>(w.out)[at + d] = from[d] * share;
    }
  }
}

}  // namespace

void attention(const float* q, std::size_t q_stride, void* out, dtype out_type, std::uint32_t heads, const layer_kv& kv,
               std::span<const sequence_rows> sequences, std::span<const float> slopes) {
  work w{q, q_stride, out, out_type, heads, kv.dim, (kv.dim + lanes - 1) / lanes * lanes, &kv, slopes.data()};
  const bool tiles = has_attention_tiles(kv.type, kv.dim);
  const auto group = heads / kv.heads;
  std::vector<job> jobs;
  double cycles = 0;
  for (auto& s : sequences) {
    const auto queries = s.count * group;
    for (std::uint32_t head = 0; head < kv.heads; ++head)
      // The longest pieces first: what is left at the end is short.
      for (std::uint32_t i = (queries + job::most - 1) / job::most; i-- > 0;) {
        const auto first = i * job::most, count = std::min(job::most, queries - first);
        jobs.push_back({&s, head, first, count});
        cycles += (s.start + double(first) / group + 1) * w.dim * (0.15 * count + 0.5);
      }
  }
  parallel(jobs.size(), jobs.empty() ? 0 : cycles / 3.0 / double(jobs.size()),
           [&](std::size_t i) { tiles ? attend_on_tiles(w, jobs[i]) : run_job(w, jobs[i]); });
}

}  // namespace cokv::kernel
