// What a decoder does to one row (token) at a time between its products: embeddings, norms, rotary positions and KV on
// its way to a block, the MLP's activation. Compiled for the host and for devices; all arithmetic is in f32, and every
// row's length is even. A block of threads takes a row, or a part of one.
//
// `Each` calls a function for all threads of a block, all of which are through with it when it returns.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernel/cuda/numbers.hpp"

namespace cokv::kernel::gpu {

constexpr std::uint32_t row_threads = 256;

// Sums of what the threads of a block have, in an order of its own: the same on every device.
struct row_sums {
  static constexpr std::uint32_t some = 32;
  float parts[row_threads], sums[some];

  COKV_ON_DEVICE float total() const {
    float all = 0;
    for (std::uint32_t i = 0; i < some; ++i) all += sums[i];
    return all;
  }
  template <class Each>
  COKV_ON_DEVICE void add_up(Each each) {
    each([&](std::uint32_t thread) {
      if (thread >= some) return;
      float sum = 0;
      for (std::uint32_t i = thread; i < row_threads; i += some) sum += parts[i];
      sums[thread] = sum;
    });
  }
};

// out[r] = table[index[r] + first], or added to it.
struct embed_job {
  const void* table;           // [..][n]
  const std::uint32_t* index;  // [rows]
  void* out;                   // [rows][n]
  std::uint32_t first, rows, n;
  bool add;
};
template <class Table, class Out, class Each>
COKV_ON_DEVICE void embed_row(const embed_job& job, std::uint32_t row, Each each) {
  const auto* from = static_cast<const Table*>(job.table) + std::size_t{job.index[row] + job.first} * job.n;
  auto* out = static_cast<Out*>(job.out) + std::size_t{row} * job.n;
  each([&](std::uint32_t thread) {
    for (auto i = thread * 2; i < job.n; i += row_threads * 2) {
      auto v = load_pair(from + i);
      if (job.add) {
        const auto old = load_pair(out + i);
        v.a += old.a, v.b += old.b;
      }
      store_pair(out + i, v);
    }
  });
}

// x[r] += add; out[r] = norm(x[r]), or x[r] in another type where there is no norm. out may be x.
enum class norm_kind : std::uint32_t { none, rms, layer };
struct norm_job {
  float* x;             // [rows][n]
  const float* add;     // [n], or null: the bias of the product before
  const float* weight;  // [n]
  const float* bias;    // [n]; a layer norm's
  void* out;            // [rows][n]
  norm_kind kind;
  float eps;
  std::uint32_t rows, n;
};
template <class Out, class Each>
COKV_ON_DEVICE void norm_row(const norm_job& job, row_sums& shared, std::uint32_t row, Each each) {
  auto* x = job.x + std::size_t{row} * job.n;
  auto* out = static_cast<Out*>(job.out) + std::size_t{row} * job.n;
  const bool rms = job.kind == norm_kind::rms, layer = job.kind == norm_kind::layer;
  each([&](std::uint32_t thread) {
    float sum = 0;
    for (auto i = thread * 2; i < job.n; i += row_threads * 2) {
      auto v = load_pair(x + i);
      if (job.add) {
        const auto more = load_pair(job.add + i);
        v.a += more.a, v.b += more.b;
        store_pair(x + i, v);
      }
      sum += rms ? v.a * v.a + v.b * v.b : v.a + v.b;
    }
    shared.parts[thread] = sum;
  });
  if (rms || layer) shared.add_up(each);
  const auto n = static_cast<float>(job.n);
  float mean = 0;
  if (layer) {
    // A second look at the row: the difference of two sums would lose the digits that matter.
    mean = shared.total() / n;
    each([&](std::uint32_t thread) {
      float sum = 0;
      for (auto i = thread * 2; i < job.n; i += row_threads * 2) {
        const auto v = load_pair(x + i);
        sum += (v.a - mean) * (v.a - mean) + (v.b - mean) * (v.b - mean);
      }
      shared.parts[thread] = sum;
    });
    shared.add_up(each);
  }
  const float scale = rms || layer ? 1.0f / sqrtf(shared.total() / n + job.eps) : 1.0f;
  each([&](std::uint32_t thread) {
    for (auto i = thread * 2; i < job.n; i += row_threads * 2) {
      auto v = load_pair(x + i);
      if (rms || layer) {
        const auto w = load_pair(job.weight + i);
        v = {(v.a - mean) * scale * w.a, (v.b - mean) * scale * w.b};
      }
      if (layer) {
        const auto b = load_pair(job.bias + i);
        v.a += b.a, v.b += b.b;
      }
      store_pair(out + i, v);
    }
  });
}

// Cosine and sine of position * frequency, for all layers of a step.
struct angles_job {
  const float* frequencies;       // [half]
  const std::uint32_t* position;  // [rows]
  float_pair* turns;              // [rows][half]
  std::uint32_t rows, half;
};
template <class Each>
COKV_ON_DEVICE void angles_row(const angles_job& job, std::uint32_t row, Each each) {
  each([&](std::uint32_t thread) {
    for (auto i = thread; i < job.half; i += row_threads) {
      const float angle = static_cast<float>(job.position[row]) * job.frequencies[i];
      job.turns[std::size_t{row} * job.half + i] = {cosf(angle), sinf(angle)};
    }
  });
}

// A layer's part of a pool, [block][head][K, V][token][dim], and the lists of blocks of a step's sequences.
struct paged_kv {
  std::byte* base;  // of block 0
  std::uint64_t block_bytes;
  const std::uint32_t* blocks;
  divisor block_tokens;
  std::uint32_t heads, dim;

  // The K (0) or V (1) of a token of the sequence whose list begins at `table`.
  template <class T>
  COKV_ON_DEVICE T* at(std::uint32_t table, std::uint32_t token, std::uint32_t head, std::uint32_t plane) const {
    const auto nth = block_tokens.of(token);
    auto* block = reinterpret_cast<T*>(base + blocks[table + nth] * block_bytes);
    return block + ((std::size_t{head} * 2 + plane) * block_tokens + (token - nth * block_tokens)) * dim;
  }
};

constexpr std::uint32_t not_kept = ~0u;

// Biases of queries, keys and values; queries and keys turned; queries to `q`, keys and values to their blocks.
struct rotary_job {
  const float* qkv;               // [rows][(heads + 2 * kv.heads) * dim]
  const float* bias;              // of a row, or null
  const std::uint32_t* position;  // [rows]
  const std::uint32_t* table;     // [rows]
  const std::uint32_t* kept;      // [rows]: its row of q, or not_kept; null: the same row
  const float_pair* turns;        // [rows][half]
  void* q;                        // [rows kept][heads * dim]
  paged_kv kv;
  std::uint32_t rows, heads, half;
  bool neighbours;  // turned together, not elements `half` apart
};
template <class T, class Each>
COKV_ON_DEVICE void rotary_row(const rotary_job& job, std::uint32_t row, Each each) {
  const auto dim = job.kv.dim, pairs = dim / 2, all = (job.heads + 2 * job.kv.heads) * pairs;
  const auto position = job.position[row], table = job.table[row];
  const auto to_row = job.kept ? job.kept[row] : row;
  const auto* from = job.qkv + std::size_t{row} * all * 2;
  each([&](std::uint32_t thread) {
    for (auto i = thread; i < all; i += row_threads) {
      const auto head = i / pairs, nth = i - head * pairs;
      const bool query = head < job.heads, turned = head < job.heads + job.kv.heads && nth < job.half;
      if (query && to_row == not_kept) continue;
      const bool apart = turned && !job.neighbours;
      const auto first = apart ? nth : nth * 2, second = apart ? nth + job.half : nth * 2 + 1;
      float a = from[head * dim + first], b = from[head * dim + second];
      if (job.bias) a += job.bias[head * dim + first], b += job.bias[head * dim + second];
      if (turned) {
        const auto t = job.turns[std::size_t{row} * job.half + nth];
        const float turned_a = a * t.a - b * t.b;
        b = b * t.a + a * t.b;
        a = turned_a;
      }
      const auto kv_head = head - job.heads;  // of a key, or a value behind the keys
      T* to = query ? static_cast<T*>(job.q) + (std::size_t{to_row} * job.heads + head) * dim
                    : job.kv.at<T>(table, position, kv_head % job.kv.heads, kv_head / job.kv.heads);
      put(to[first], a), put(to[second], b);
    }
  });
}

// out = act(x + bias), or act(gate + bias) * (up + bias) of rows [gate, up].
enum class device_activation : std::uint32_t { silu, relu, gelu, gelu_tanh };
struct activate_job {
  const float* x;     // [rows][n], gated [rows][2 n]
  const float* bias;  // of such a row, or null
  void* out;          // [rows][n]
  std::uint32_t rows, n;
  device_activation act;
  bool gated;
};
constexpr std::uint32_t activate_part = row_threads * 2 * 4;  // of a row, for a block
COKV_ON_DEVICE std::uint32_t activate_parts(const activate_job& job) {
  return (job.n + activate_part - 1) / activate_part;
}
COKV_ON_DEVICE float activated(device_activation act, float x) {
  switch (act) {
    case device_activation::silu:
      return x / (1.0f + expf(-x));
    case device_activation::relu:
      return x > 0 ? x : 0.0f;
    case device_activation::gelu:
      return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
    case device_activation::gelu_tanh:  // (1 + tanh(y)) / 2 is 1 / (1 + e^-2y)
      return x / (1.0f + expf(-1.5957691216057308f * x * (1.0f + 0.044715f * x * x)));
  }
  return x;
}
template <class Out, class Each>
COKV_ON_DEVICE void activate_rows(const activate_job& job, std::uint32_t block, Each each) {
  const auto row = block / activate_parts(job), begin = block % activate_parts(job) * activate_part;
  const auto end = begin + activate_part < job.n ? begin + activate_part : job.n;
  const auto* x = job.x + std::size_t{row} * job.n * (job.gated ? 2 : 1);
  auto biased = [&](std::uint32_t i) {
    auto v = load_pair(x + i);
    if (job.bias) {
      const auto b = load_pair(job.bias + i);
      v.a += b.a, v.b += b.b;
    }
    return v;
  };
  each([&](std::uint32_t thread) {
    for (auto i = begin + thread * 2; i < end; i += row_threads * 2) {
      auto v = biased(i);
      v = {activated(job.act, v.a), activated(job.act, v.b)};
      if (job.gated) {
        const auto up = biased(job.n + i);
        v.a *= up.a, v.b *= up.b;
      }
      store_pair(static_cast<Out*>(job.out) + std::size_t{row} * job.n + i, v);
    }
  });
}

// to[r] = from[rows[r]].
struct gather_job {
  const float* from;
  float* to;
  const std::uint32_t* rows;
  std::uint32_t count, n;
};
template <class Each>
COKV_ON_DEVICE void gather_row(const gather_job& job, std::uint32_t row, Each each) {
  const auto* from = job.from + std::size_t{job.rows[row]} * job.n;
  auto* to = job.to + std::size_t{row} * job.n;
  each([&](std::uint32_t thread) {
    for (auto i = thread * 2; i < job.n; i += row_threads * 2) store_pair(to + i, load_pair(from + i));
  });
}

}  // namespace cokv::kernel::gpu
