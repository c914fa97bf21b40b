// Attention of new tokens over paged KV in bf16, on tensor cores: every token sees what its sequence's blocks hold before
// it, and itself. Softmax in one pass (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018) over
// tiles of keys that come into shared memory while the tile before is computed with (Dao, "FlashAttention-2", 2023).
// Queries of a KV head are packed: a matrix's rows are (token, query head) pairs, tokens outermost.
//
// Prompts: a block of threads takes 64 such rows, and all keys. Decoding has few rows and many keys: a warp takes 16 rows
// and a part of the keys, and what the parts came to is merged behind them (Dao et al., "Flash-Decoding", 2023). Where a
// sequence is cut depends on its own length alone. Compiled for the host and for devices.
#pragma once

#include <cmath>

#include "kernel/cuda/row_kernels.hpp"
#include "kernel/cuda/warp.hpp"

namespace cokv::kernel::gpu {

// New tokens of a sequence: positions from `start` on, rows from `row` on, of queries and of results.
struct attention_sequence {
  std::uint32_t start, count, row, table;
};
// Packed rows of a sequence, from `first` on; decoding, where what its parts come to begins, in slots.
struct attention_tile {
  std::uint32_t sequence, first, slots;
};

struct attention_job {
  const void* q;  // [rows][heads * dim]
  void* out;      // [rows][heads * dim]
  paged_kv kv;
  const attention_sequence* sequences;
  const attention_tile* tiles;
  const float* slopes;  // [heads], ALiBi's, or null
  std::uint32_t heads;
  std::uint32_t tile_count;
  // Decoding: what each part comes to, a slot for each of a tile's [KV head][part][row], and `dim` times as much for the
  // results.
  std::uint32_t parts;  // at most, of a sequence
  float *tops, *sums, *results;
};

// Keys that a part of a sequence has: more where it is long, so that there are never many parts.
constexpr std::uint32_t least_part = 128, most_parts = 64;
COKV_ON_DEVICE std::uint32_t part_keys(std::uint32_t context) {
  auto keys = least_part;
  while (keys * most_parts < context) keys *= 2;
  return keys;
}
COKV_ON_DEVICE std::uint32_t parts_of(std::uint32_t context) {
  const auto keys = part_keys(context);
  return (context + keys - 1) / keys;
}

constexpr std::uint32_t decode_rows = 16;  // of a tile, at most
COKV_ON_DEVICE std::uint32_t rows_of(const attention_sequence& of, std::uint32_t group, std::uint32_t first) {
  const auto left = of.count * group - first;
  return left < decode_rows ? left : decode_rows;
}

constexpr float log2_e = 1.44269504088896341f;
constexpr float no_score = -HUGE_VALF;

// `Dim` is the head's, or the next multiple of 32, up to 128: beyond it registers run out; `Parts`: of a sequence's keys, else all of them.
template <std::uint32_t Dim, std::uint32_t Warps, std::uint32_t Keys, bool Parts>
struct attention_shape {
  static constexpr std::uint32_t dim = Dim, warps = Warps, keys = Keys, rows = 16 * Warps;
  static constexpr bool parts = Parts;
  static constexpr std::uint32_t stride = Dim + 8;  // eight rows of a matrix lie in other banks
};
template <std::uint32_t Dim>
using prompt_shape = attention_shape<Dim, 4, 32, false>;
template <std::uint32_t Dim>
using decode_shape = attention_shape<Dim, 1, 32, true>;

template <class Shape>
struct attention_shared {
  alignas(16) bf16 keys[2][Shape::keys * Shape::stride];
  alignas(16) bf16 values[2][Shape::keys * Shape::stride];
};

template <class Shape>
class attention {
 public:
  using block = block_of<Shape::warps>;

  COKV_ON_DEVICE attention(const attention_job& job, attention_shared<Shape>& shared, block& threads, std::uint32_t nth)
      : job_(job), shared_(shared), threads_(threads) {
    part_ = Shape::parts ? nth % job.parts : 0;
    nth = Shape::parts ? nth / job.parts : nth;
    kv_head_ = nth % job.kv.heads;
    // Of a prompt's rows the last see most keys: they come first, and who is left at the end has little to do.
    const auto nth_tile = nth / job.kv.heads;
    const auto tile = job.tiles[Shape::parts ? nth_tile : job.tile_count - 1 - nth_tile];
    of_ = job.sequences[tile.sequence];
    first_ = tile.first;
    group_ = job.heads / job.kv.heads;
    const auto last = first_ + Shape::rows < of_.count * group_ ? first_ + Shape::rows - 1 : of_.count * group_ - 1;
    to_ = of_.start + last / group_ + 1;
    scale_ = log2_e / sqrtf(static_cast<float>(job.kv.dim));
    if (Shape::parts) {
      const auto keys = part_keys(of_.start + of_.count);
      from_ = part_ * keys;
      if (from_ + keys < to_) to_ = from_ + keys;
      slots_ =
          tile.slots + std::size_t{kv_head_ * parts_of(of_.start + of_.count) + part_} * rows_of(of_, group_, first_);
    }
  }

  COKV_ON_DEVICE void run() {
    if (from_ >= to_) return;
    typename block::template per_warp<state> states;
    threads_.each([&](std::uint32_t thread) { stage(thread, from_, 0); });
    threads_.each_warp([&](std::uint32_t warp) { begin(states[warp], warp); });
    std::uint32_t half = 0;
    for (auto key = from_; key < to_; key += Shape::keys, half ^= 1) {
      threads_.each([&](std::uint32_t thread) {
        stage(thread, key + Shape::keys, half ^ 1);
        threads_.template wait_for_all_but<1>(thread);
      });
      threads_.each_warp([&](std::uint32_t warp) { attend(states[warp], warp, key, half); });
    }
    threads_.each_warp([&](std::uint32_t warp) { end(states[warp], warp); });
  }

 private:
  static constexpr std::uint32_t chunks = Shape::dim / 16, columns = Shape::dim / 8, key_columns = Shape::keys / 8;

  // What a warp has of its 16 rows: the queries, the highest score so far, sums of weights (each lane its own columns')
  // and results, both relative to it.
  struct state {
    lanes<std::uint32_t> q[chunks][4];
    lanes<float> result[columns][4];
    lanes<float> top[2], sum[2];
  };

  // Of the row that lane / 4, or eight more, stands for.
  COKV_ON_DEVICE std::uint32_t packed(std::uint32_t warp, std::uint32_t lane, std::uint32_t upper) const {
    return first_ + warp * 16 + lane / 4 + upper * 8;
  }
  COKV_ON_DEVICE bool has(std::uint32_t packed) const { return packed < of_.count * group_; }
  COKV_ON_DEVICE std::uint32_t head(std::uint32_t packed) const { return kv_head_ * group_ + packed % group_; }
  COKV_ON_DEVICE std::uint32_t position(std::uint32_t packed) const { return of_.start + packed / group_; }
  COKV_ON_DEVICE std::size_t offset(std::uint32_t packed) const {
    return (std::size_t{of_.row + packed / group_} * job_.heads + head(packed)) * job_.kv.dim;
  }

  // A tile of keys and values on its way. Zeros where the sequence or the head ends: never what the pool happens to hold
  // there, since zero times NaN is NaN.
  COKV_ON_DEVICE void stage(std::uint32_t thread, std::uint32_t key, std::uint32_t half) {
    constexpr std::uint32_t pieces = Shape::dim / 8, mine = Shape::keys * pieces / block::threads;
    static_assert(Shape::keys * pieces % block::threads == 0);
    if (key < to_) {
      const bf16* from[mine];  // all are looked up before the first is asked for: none waits for another's block
      COKV_UNROLL
      for (std::uint32_t n = 0; n < mine; ++n) {
        const auto i = thread + n * block::threads, nth = i / pieces, d = i % pieces * 8;
        const bool there = key + nth < to_ && d < job_.kv.dim;
        from[n] = there ? job_.kv.template at<bf16>(of_.table, key + nth, kv_head_, 0) + d : nullptr;
      }
      const auto* nowhere = reinterpret_cast<const bf16*>(job_.kv.base);
      const auto values = std::size_t{job_.kv.block_tokens} * job_.kv.dim;
      COKV_UNROLL
      for (std::uint32_t n = 0; n < mine; ++n) {
        const auto i = thread + n * block::threads, to = i / pieces * Shape::stride + i % pieces * 8;
        const bool there = from[n] != nullptr;
        threads_.copy(thread, shared_.keys[half] + to, there ? from[n] : nowhere, there);
        threads_.copy(thread, shared_.values[half] + to, there ? from[n] + values : nowhere, there);
      }
    }
    threads_.end_group(thread);
  }

  COKV_ON_DEVICE void begin(state& s, std::uint32_t warp) {
    each_lane([&](std::uint32_t lane) {
      COKV_UNROLL
      for (std::uint32_t c = 0; c < chunks; ++c) COKV_UNROLL
      for (std::uint32_t i = 0; i < 4; ++i) {
        const auto row = packed(warp, lane, i % 2), d = c * 16 + i / 2 * 8 + lane % 4 * 2;
        s.q[c][i][lane] = has(row) && d < job_.kv.dim
                              ? load_as<std::uint32_t>(static_cast<const bf16*>(job_.q) + offset(row) + d)
                              : 0;
      }
      COKV_UNROLL
      for (std::uint32_t c = 0; c < columns; ++c) COKV_UNROLL
      for (std::uint32_t i = 0; i < 4; ++i) s.result[c][i][lane] = 0;
      COKV_UNROLL
      for (std::uint32_t upper = 0; upper < 2; ++upper) {
        s.top[upper][lane] = no_score;
        s.sum[upper][lane] = 0;
      }
    });
  }

  COKV_ON_DEVICE void attend(state& s, std::uint32_t warp, std::uint32_t key, std::uint32_t half) {
    if (!has(first_ + warp * 16)) return;
    lanes<float> score[key_columns][4];
    multiply_by_keys(s, score, half);
    mask(score, warp, key);
    lanes<float> fade[2];
    COKV_UNROLL
    for (std::uint32_t upper = 0; upper < 2; ++upper) weigh(s, score, fade[upper], upper);
    lanes<bool> higher;
    each_lane([&](std::uint32_t lane) { higher[lane] = fade[0][lane] != 1 || fade[1][lane] != 1; });
    if (any_lane(higher))  // seldom, once a row has seen many keys
      each_lane([&](std::uint32_t lane) {
        COKV_UNROLL
        for (std::uint32_t c = 0; c < columns; ++c) COKV_UNROLL
        for (std::uint32_t i = 0; i < 4; ++i) s.result[c][i][lane] *= fade[i / 2][lane];
      });
    add_values(s, score, half);
  }

  COKV_ON_DEVICE void multiply_by_keys(state& s, lanes<float> (&score)[key_columns][4], std::uint32_t half) {
    lanes<const bf16*> rows;
    lanes<std::uint32_t> k[4];
    COKV_UNROLL
    for (std::uint32_t j = 0; j < key_columns; ++j) {
      each_lane([&](std::uint32_t lane) {
        COKV_UNROLL
        for (std::uint32_t i = 0; i < 4; ++i) score[j][i][lane] = 0;
      });
      COKV_UNROLL
      for (std::uint32_t c = 0; c < chunks; c += 2) {
        each_lane([&](std::uint32_t lane) {
          rows[lane] = shared_.keys[half] + (j * 8 + lane % 8) * Shape::stride + c * 16 + lane / 8 * 8;
        });
        load_matrices<false>(k, rows);
        multiply(score[j], s.q[c], k[0], k[1]);
        multiply(score[j], s.q[c + 1], k[2], k[3]);
      }
    }
  }

  // No score for what a row must not see: nobody sees the zeros behind the last key. Times scale_ they are powers of two.
  COKV_ON_DEVICE void mask(lanes<float> (&score)[key_columns][4], std::uint32_t warp, std::uint32_t key) {
    if (!job_.slopes && key + Shape::keys <= position(first_ + warp * 16) + 1) return;  // all are seen
    each_lane([&](std::uint32_t lane) {
      COKV_UNROLL
      for (std::uint32_t upper = 0; upper < 2; ++upper) {
        const auto row = packed(warp, lane, upper);
        const auto at = position(row);
        const bool real = has(row);
        const float slope = job_.slopes && real ? job_.slopes[head(row)] * (log2_e / scale_) : 0.0f;
        COKV_UNROLL
        for (std::uint32_t j = 0; j < key_columns; ++j) COKV_UNROLL
        for (std::uint32_t i = 0; i < 2; ++i) {
          auto& v = score[j][upper * 2 + i][lane];
          const auto k = key + j * 8 + lane % 4 * 2 + i;
          v -= slope * (static_cast<float>(at) - static_cast<float>(k));
          if (k > at || !real) v = no_score;
        }
      }
    });
  }

  // Scores become weights, relative to the highest so far.
  COKV_ON_DEVICE void weigh(state& s, lanes<float> (&score)[key_columns][4], lanes<float>& fade, std::uint32_t upper) {
    lanes<float> top;
    each_lane([&](std::uint32_t lane) {
      top[lane] = s.top[upper][lane];
      COKV_UNROLL
      for (std::uint32_t j = 0; j < key_columns; ++j)
        top[lane] = fmaxf(top[lane], fmaxf(score[j][upper * 2][lane], score[j][upper * 2 + 1][lane]));
    });
    over_row(top, [](float a, float b) { return fmaxf(a, b); });
    each_lane([&](std::uint32_t lane) {
      const float base = top[lane] == no_score ? 0.0f : top[lane];  // a row that has seen nothing yet
      fade[lane] = power_of_two((s.top[upper][lane] - base) * scale_);
      float sum = 0;
      COKV_UNROLL
      for (std::uint32_t j = 0; j < key_columns; ++j) COKV_UNROLL
      for (std::uint32_t i = 0; i < 2; ++i) {
        auto& v = score[j][upper * 2 + i][lane];
        v = power_of_two(v * scale_ - base * scale_);
        sum += v;
      }
      s.sum[upper][lane] = s.sum[upper][lane] * fade[lane] + sum;
      s.top[upper][lane] = top[lane];
    });
  }

  COKV_ON_DEVICE void add_values(state& s, lanes<float> (&score)[key_columns][4], std::uint32_t half) {
    lanes<const bf16*> rows;
    lanes<std::uint32_t> weights[4], v[4];
    COKV_UNROLL
    for (std::uint32_t c = 0; c < Shape::keys / 16; ++c) {
      each_lane([&](std::uint32_t lane) {
        COKV_UNROLL
        for (std::uint32_t i = 0; i < 4; ++i)
          weights[i][lane] =
              pack_bf16(score[2 * c + i / 2][i % 2 * 2][lane], score[2 * c + i / 2][i % 2 * 2 + 1][lane]);
      });
      COKV_UNROLL
      for (std::uint32_t n = 0; n < columns; n += 2) {
        each_lane([&](std::uint32_t lane) {
          rows[lane] =
              shared_.values[half] + (c * 16 + lane / 8 % 2 * 8 + lane % 8) * Shape::stride + (n + lane / 16) * 8;
        });
        load_matrices<true>(v, rows);
        multiply(s.result[n], weights, v[0], v[1]);
        multiply(s.result[n + 1], weights, v[2], v[3]);
      }
    }
  }

  COKV_ON_DEVICE void end(state& s, std::uint32_t warp) {
    COKV_UNROLL
    for (std::uint32_t upper = 0; upper < 2; ++upper) over_row(s.sum[upper], [](float a, float b) { return a + b; });
    each_lane([&](std::uint32_t lane) {
      COKV_UNROLL
      for (std::uint32_t upper = 0; upper < 2; ++upper) {
        const auto row = packed(warp, lane, upper);
        if (!has(row)) continue;
        const float sum = s.sum[upper][lane], part_of_sum = 1.0f / sum;
        const auto slot = slots_ + lane / 4 + upper * 8;
        if (Shape::parts && lane % 4 == 0) job_.tops[slot] = s.top[upper][lane] * scale_, job_.sums[slot] = sum;
        COKV_UNROLL
        for (std::uint32_t c = 0; c < columns; ++c) {
          const auto d = c * 8 + lane % 4 * 2;
          if (d >= job_.kv.dim) continue;
          const float_pair v{s.result[c][upper * 2][lane], s.result[c][upper * 2 + 1][lane]};
          if (Shape::parts)
            store_pair(job_.results + slot * job_.kv.dim + d, v);
          else
            store_pair(static_cast<bf16*>(job_.out) + offset(row) + d, {v.a * part_of_sum, v.b * part_of_sum});
        }
      }
    });
  }

  const attention_job& job_;
  attention_shared<Shape>& shared_;
  block& threads_;
  attention_sequence of_;
  std::uint32_t kv_head_, part_, first_, group_;
  std::uint32_t from_ = 0, to_;  // positions of keys
  std::size_t slots_ = 0;        // of its first row
  float scale_;
};

// What the parts of a row came to, as one: a block of threads for each (tile, KV head, row of 16).
constexpr std::uint32_t merge_threads = 128;
template <class Each>
COKV_ON_DEVICE void merge_parts(const attention_job& job, std::uint32_t nth, Each each) {
  const auto row = nth % decode_rows, pair = nth / decode_rows, kv_head = pair % job.kv.heads;
  const auto tile = job.tiles[pair / job.kv.heads];
  const auto of = job.sequences[tile.sequence];
  const auto group = job.heads / job.kv.heads, packed = tile.first + row, dim = job.kv.dim;
  if (packed >= of.count * group) return;
  // Those that begin behind the tile's last row were not computed.
  const auto rows = rows_of(of, group, tile.first), last = tile.first + rows - 1;
  const auto keys = part_keys(of.start + of.count), parts = (of.start + last / group + keys) / keys;
  const auto slot = tile.slots + std::size_t{kv_head * parts_of(of.start + of.count)} * rows + row;
  each([&](std::uint32_t thread) {
    float top = no_score, sum = 0;
    for (std::uint32_t p = 0; p < parts; ++p) top = fmaxf(top, job.tops[slot + p * rows]);
    for (std::uint32_t p = 0; p < parts; ++p) sum += job.sums[slot + p * rows] * exp2f(job.tops[slot + p * rows] - top);
    auto* out = static_cast<bf16*>(job.out) +
                (std::size_t{of.row + packed / group} * job.heads + kv_head * group + packed % group) * dim;
    for (auto d = thread * 2; d < dim; d += merge_threads * 2) {
      float_pair v{0, 0};
      for (std::uint32_t p = 0; p < parts; ++p) {
        const auto at = slot + p * rows;
        const auto some = load_pair(job.results + at * dim + d);
        const float weight = exp2f(job.tops[at] - top);
        v.a += some.a * weight, v.b += some.b * weight;
      }
      store_pair(out + d, {v.a / sum, v.b / sum});
    }
  });
}

}  // namespace cokv::kernel::gpu
