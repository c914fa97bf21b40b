// Attention on a matrix unit (Intel AMX), over bf16 KV: sixteen queries against 32 keys at a time. Scores and
// results are f32; queries, keys, values and softmax's weights go into the unit as bf16.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernel/cpu/attention_job.hpp"
#include "kernel/cpu/avx512_bf16.hpp"
#include "kernel/cpu/onednn.hpp"

namespace cokv::kernel {

// oneDNN asked the kernel for leave to use the unit, which is the process's from then on.
bool has_attention_tiles(dtype kv, std::uint32_t dim) noexcept {
  return COKV_X86 && kv == dtype::bf16 && dim % 32 == 0 && best_isa() == isa::avx512_bf16 &&
         onednn::on_matrix_unit(dtype::bf16);
}

#if COKV_X86
#define COKV_AMX \
  __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,amx-tile,amx-bf16")))
namespace {

constexpr std::uint32_t tile_queries = 16, tile_keys = 32;
constexpr std::uint32_t most = attention_job::most;
static_assert(most % tile_queries == 0);

// Eight tiles of sixteen rows of 64 bytes. The layout is the processor's: "Intel 64 and IA-32 Architectures Software
// Developer's Manual", LDTILECFG.
struct alignas(64) tile_layout {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(tile_layout) == 64);

struct alignas(64) scratch {
  alignas(64) std::array<float, tile_queries * tile_keys> scores;
  alignas(64) std::array<bf16, tile_queries * tile_keys> weights;
  std::array<float, most> top, sums, position, slope;  // highest score, sum of weights; where it stands
  std::vector<bf16> queries;                           // [query][dim], scaled
  std::vector<float> results;                          // [query][dim], relative to the highest score so far
  std::vector<bf16> keys;                              // [half][dim / 2][key][2]
  std::vector<bf16> values;                            // [key / 2][dim][2]
};

// The tile of keys and values that begins at position `key`; zeros behind `last`, never what the pool holds there.
COKV_INLINE void stage(const attention_work& w, const attention_job& j, scratch& s, std::uint32_t key,
                       std::uint32_t last) {
  auto& kv = *w.kv;
  const bf16 *k[tile_keys], *v[tile_keys];
  const auto there = std::min(tile_keys, last + 1 - key);
  for (std::uint32_t t = 0; t < there; ++t) {
    const bool next = t > 0 && (key + t) % kv.block_tokens != 0;  // in the same block as the one before
    k[t] = next ? k[t - 1] + w.dim : reinterpret_cast<const bf16*>(kv.at(j.sequence->blocks, key + t, j.kv_head, 0));
    v[t] = next ? v[t - 1] + w.dim : reinterpret_cast<const bf16*>(kv.at(j.sequence->blocks, key + t, j.kv_head, 1));
  }
  // Pairs of dimensions are turned as if each were a float.
  for (std::uint32_t half = 0; half < 2; ++half)
    for (std::uint32_t d = 0; d < w.dim; d += 2 * lanes) {
      vf rows[lanes];
      for (std::uint32_t t = 0; t < lanes; ++t) {
        rows[t] = vf{};
        if (half * lanes + t < there) std::memcpy(&rows[t], k[half * lanes + t] + d, sizeof(vf));
      }
      transpose(rows);
      auto* to = s.keys.data() + (half * w.dim + d) * lanes;
      for (std::uint32_t i = 0; i < lanes; ++i) std::memcpy(to + i * 2 * lanes, &rows[i], sizeof(vf));
    }
  for (std::uint32_t t = 0; t < tile_keys; t += 2)
    for (std::uint32_t d = 0; d < w.dim; d += lanes) {
      vh even = {}, odd = {};
      if (t < there) std::memcpy(&even, v[t] + d, sizeof even);
      if (t + 1 < there) std::memcpy(&odd, v[t + 1] + d, sizeof odd);
      const auto pairs = __builtin_shufflevector(even, odd, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8,
                                                 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
      std::memcpy(s.values.data() + (t / 2 * w.dim + d) * 2, &pairs, sizeof pairs);
    }
}

// Sixteen queries from `first` on against the tile's keys: scores.
COKV_INLINE COKV_AMX void score(const attention_work& w, scratch& s, std::uint32_t first) {
  const auto* q = s.queries.data() + std::size_t{first} * w.dim;
  _tile_zero(0);
  _tile_zero(1);
  for (std::uint32_t d = 0; d < w.dim; d += 2 * lanes) {
    _tile_loadd(2, q + d, w.dim * sizeof(bf16));
    _tile_loadd(3, s.keys.data() + d * lanes, 64);
    _tile_loadd(4, s.keys.data() + (w.dim + d) * lanes, 64);
    _tile_dpbf16ps(0, 2, 3);
    _tile_dpbf16ps(1, 2, 4);
  }
  _tile_stored(0, s.scores.data(), tile_keys * sizeof(float));
  _tile_stored(1, s.scores.data() + lanes, tile_keys * sizeof(float));
}

// Sixteen vectors to one, of which lane i is what vector i comes to: at each round halves are dealt as transpose() does.
template <class Op>
COKV_INLINE COKV_AMX vf across(vf (&v)[lanes], const Op& op) {
  for (int n = lanes / 2; n > 0; n /= 2)
    for (int i = 0; i < n; ++i) {
      const vf &a = v[i], &b = v[i + n];
      v[i] = op(__builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23),
                __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31));
    }
  return v[0];
}

// What softmax makes of the scores so far: weights, and sums and results relative to the new highest scores.
COKV_INLINE COKV_AMX void weigh(const attention_work& w, scratch& s, std::uint32_t first, std::uint32_t key) {
  const vf ascending = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const vf at[2] = {ascending + static_cast<float>(key), ascending + static_cast<float>(key + lanes)};
  const bool seen = static_cast<float>(key + tile_keys - 1) <= s.position[first];  // all, by all
  vf rows[lanes], before, down, total;
  for (std::uint32_t i = 0; i < tile_queries; ++i) {
    vf x[2];
    for (std::uint32_t h = 0; h < 2; ++h) {
      float* scores = s.scores.data() + i * tile_keys + h * lanes;
      load(x[h], scores);
      if (w.slopes) x[h] += (at[h] - s.position[first + i]) * s.slope[first + i];
      if (!seen) x[h] = at[h] <= s.position[first + i] ? x[h] : vf{} + masked;
      if (w.slopes || !seen) store(scores, x[h]);
    }
    rows[i] = _mm512_max_ps(x[0], x[1]);
  }
  load(before, s.top.data() + first);
  const vf top =
      _mm512_max_ps(before, across(rows, [](const vf& a, const vf& b) COKV_AMX { return vf(_mm512_max_ps(a, b)); }));
  store(s.top.data() + first, top);
  const auto rises = _mm512_cmp_ps_mask(top, before, _CMP_GT_OQ);
  down = exp_below_one(before - top);
  for (std::uint32_t i = 0; i < tile_queries; ++i) {
    vf p[2];
    for (std::uint32_t h = 0; h < 2; ++h) {
      vf x;
      load(x, s.scores.data() + i * tile_keys + h * lanes);
      p[h] = exp_below_one(x - s.top[first + i]);
      store_rounded(s.weights.data() + i * tile_keys + h * lanes, p[h]);
    }
    rows[i] = p[0] + p[1];
  }
  load(total, s.sums.data() + first);
  total = total * down + across(rows, [](const vf& a, const vf& b) COKV_AMX { return a + b; });
  store(s.sums.data() + first, total);
  if (!rises) return;
  for (std::uint32_t i = 0; i < tile_queries; ++i) {
    if (!(rises >> i & 1)) continue;
    float* row = s.results.data() + std::size_t{first + i} * w.dim;
    for (std::uint32_t d = 0; d < w.dim; d += lanes) {
      vf v;
      load(v, row + d);
      v *= down[i];
      store(row + d, v);
    }
  }
}

// Values by their weights, added to the results.
COKV_INLINE COKV_AMX void gather(const attention_work& w, scratch& s, std::uint32_t first) {
  float* results = s.results.data() + std::size_t{first} * w.dim;
  _tile_loadd(2, s.weights.data(), tile_keys * sizeof(bf16));
  for (std::uint32_t d = 0; d < w.dim; d += 2 * lanes) {
    _tile_loadd(0, results + d, w.dim * sizeof(float));
    _tile_loadd(1, results + d + lanes, w.dim * sizeof(float));
    _tile_loadd(3, s.values.data() + d * 2, w.dim * 2 * sizeof(bf16));
    _tile_loadd(4, s.values.data() + (d + lanes) * 2, w.dim * 2 * sizeof(bf16));
    _tile_dpbf16ps(0, 2, 3);
    _tile_dpbf16ps(1, 2, 4);
    _tile_stored(0, results + d, w.dim * sizeof(float));
    _tile_stored(1, results + d + lanes, w.dim * sizeof(float));
  }
}

COKV_AMX void run(const attention_work& w, const attention_job& j, scratch& s) {
  const tile_layout layout;
  _tile_loadconfig(&layout);
  const auto last = static_cast<std::uint32_t>(s.position[j.count - 1]);
  for (std::uint32_t key = 0; key <= last; key += tile_keys) {
    stage(w, j, s, key, last);
    for (std::uint32_t first = 0; first < j.count; first += tile_queries) {
      if (s.position[first + tile_queries - 1] < static_cast<float>(key))
        continue;  // positions rise: all stand before it
      score(w, s, first);
      weigh(w, s, first, key);
      gather(w, s, first);
    }
  }
  _tile_release();
}

COKV_AVX512 void take_queries(const attention_work& w, const attention_job& j, scratch& s) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(w.dim));
  for (std::uint32_t i = 0; i < j.count; ++i)
    for (std::uint32_t d = 0; d < w.dim; d += lanes) {
      vf v;
      load(v, j.query(w, i) + d);
      v *= scale;
      store(s.queries.data() + std::size_t{i} * w.dim + d, v);
    }
}

template <class T>
COKV_AVX512 void give_results(const attention_work& w, const attention_job& j, const scratch& s) {
  for (std::uint32_t i = 0; i < j.count; ++i) {
    const float share = 1.0f / s.sums[i];
    for (std::uint32_t d = 0; d < w.dim; d += lanes) {
      vf v;
      load(v, s.results.data() + std::size_t{i} * w.dim + d);
      v *= share;
      store(static_cast<T*>(w.out) + j.out_index(w, i) + d, v);
    }
  }
}

}  // namespace

void attend_on_tiles(const attention_work& w, const attention_job& j) {
  thread_local scratch s;
  const auto rows = (j.count + tile_queries - 1) / tile_queries * tile_queries;
  s.queries.assign(std::size_t{rows} * w.dim, 0);
  s.results.assign(std::size_t{rows} * w.dim, 0.0f);
  s.keys.resize(std::size_t{tile_keys} * w.dim), s.values.resize(std::size_t{tile_keys} * w.dim);
  s.sums.fill(0);
  for (std::uint32_t i = 0; i < rows; ++i) {
    const auto n = std::min(i, j.count - 1);  // what fills up the last tile stands where the last query does
    s.top[i] = masked;
    s.position[i] = j.position(w, n);
    s.slope[i] = w.slopes ? w.slopes[j.head(w, n)] : 0;
  }
  take_queries(w, j, s);
  run(w, j, s);
  if (w.out_type == dtype::bf16)
    give_results<bf16>(w, j, s);
  else
    give_results<float>(w, j, s);
}

#else
void attend_on_tiles(const attention_work&, const attention_job&) {}
#endif

}  // namespace cokv::kernel
