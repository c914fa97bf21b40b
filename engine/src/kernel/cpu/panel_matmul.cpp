#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernel/cpu/matmul.hpp"
#include "kernel/cpu/simd.hpp"

namespace cokv::kernel {
namespace {

constexpr int width = packed_matrix::width;

struct job {
  const void* x;
  const std::byte* panel;
  float* y;  // the panel's first column of the first row
  std::size_t m, k, stride, columns;
  bool accumulate;
};

// R rows times V vectors of columns: the sums stay in registers, each weight vector is loaded once for all rows.
template <int R, int V>
COKV_INLINE void finish(const vf (&sums)[R][V], const job& j, std::size_t row, std::size_t column) {
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) {
      float* out = j.y + (row + r) * j.stride + column + v * lanes;
      std::size_t from = column + v * lanes;
      if (from + lanes <= j.columns) {
        vf total = sums[r][v];
        if (j.accumulate) {
          vf old;
          load(old, out);
          total += old;
        }
        store(out, total);
      } else {
        float part[lanes];
        store(part, sums[r][v]);
        for (std::size_t i = 0; from + i < j.columns; ++i) out[i] = j.accumulate ? out[i] + part[i] : part[i];
      }
    }
}

template <int R, int V>
COKV_INLINE void tile(const job& j, const float*, std::size_t row, std::size_t column) {
  auto* x = static_cast<const float*>(j.x) + row * j.k;
  auto* w = reinterpret_cast<const float*>(j.panel) + column;
  vf sums[R][V] = {};
  for (std::size_t k = 0; k < j.k; ++k, w += width) {
    vf weights[V];
    for (int v = 0; v < V; ++v) load(weights[v], w + v * lanes);
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < V; ++v) sums[r][v] += x[r * j.k + k] * weights[v];
  }
  finish(sums, j, row, column);
}

template <int R, int V>
COKV_INLINE void tile(const job& j, const bf16*, std::size_t row, std::size_t column) {
  auto* x = static_cast<const bf16*>(j.x) + row * j.k;
  auto* w = reinterpret_cast<const std::uint32_t*>(j.panel) + column;
  vf sums[R][V] = {};
  for (std::size_t k = 0; k < j.k; k += 2, w += width) {
    vf low[V], high[V];
    for (int v = 0; v < V; ++v) {
      vu pairs;
      std::memcpy(&pairs, w + v * lanes, 64);
      vu even = pairs << 16, odd = pairs & 0xffff0000u;
      std::memcpy(&low[v], &even, 64);
      std::memcpy(&high[v], &odd, 64);
    }
    for (int r = 0; r < R; ++r) {
      float a = to_float(x[r * j.k + k]), b = to_float(x[r * j.k + k + 1]);
      for (int v = 0; v < V; ++v) {
        sums[r][v] += a * low[v];
        sums[r][v] += b * high[v];
      }
    }
  }
  finish(sums, j, row, column);
}

template <class T, int R, int V>
COKV_INLINE void rows_of(const job& j) {
  std::size_t row = 0;
  for (; row + R <= j.m; row += R)
    for (std::size_t c = 0; c < j.columns; c += V * lanes) tile<R, V>(j, static_cast<const T*>(nullptr), row, c);
  for (; row < j.m; ++row)
    for (std::size_t c = 0; c < j.columns; c += V * lanes) tile<1, V>(j, static_cast<const T*>(nullptr), row, c);
}

template <class T>
void run_plain(const job& j) {
  rows_of<T, 2, 1>(j);
}
template <class T>
COKV_AVX2 void run_avx2(const job& j) {
  j.m == 1 ? rows_of<T, 1, 2>(j) : rows_of<T, 4, 1>(j);
}
template <class T>
COKV_AVX512 void run_avx512(const job& j) {
  rows_of<T, 4, 4>(j);
}

#if COKV_X86
template <int R>
COKV_AVX512_BF16 [[gnu::always_inline]] inline void dot_tile(const job& j, std::size_t row) {
  constexpr int V = 4;
  auto* x = static_cast<const bf16*>(j.x) + row * j.k;
  auto* w = reinterpret_cast<const std::uint32_t*>(j.panel);
  __m512 sums[R][V];
  for (auto& r : sums)
    for (auto& v : r) v = _mm512_setzero_ps();
  for (std::size_t k = 0; k < j.k; k += 2, w += width) {
    __m512i weights[V];
    for (int v = 0; v < V; ++v) weights[v] = _mm512_loadu_si512(w + v * lanes);
    for (int r = 0; r < R; ++r) {
      std::int32_t pair;
      std::memcpy(&pair, x + r * j.k + k, 4);
      __m512i both = _mm512_set1_epi32(pair);
      for (int v = 0; v < V; ++v) sums[r][v] = _mm512_dpbf16_ps(sums[r][v], (__m512bh)both, (__m512bh)weights[v]);
    }
  }
  vf out[R][V];
  std::memcpy(&out, &sums, sizeof out);
  finish(out, j, row, 0);
}
COKV_AVX512_BF16 void run_dot(const job& j) {
  // Six rows of sums and a row of weights are what fits in registers. What is left goes in one tile as well: a pass over
  // the weights is what a step of few rows takes.
  std::size_t row = 0;
  for (; row + 6 <= j.m; row += 6) dot_tile<6>(j, row);
  switch (j.m - row) {
    case 1:
      return dot_tile<1>(j, row);
    case 2:
      return dot_tile<2>(j, row);
    case 3:
      return dot_tile<3>(j, row);
    case 4:
      return dot_tile<4>(j, row);
    case 5:
      return dot_tile<5>(j, row);
    default:
      break;
  }
}
#endif

}  // namespace

void panel_matmul(const void* x, const packed_matrix& w, float* y, std::size_t stride, std::size_t m, std::size_t first,
                  std::size_t last, bool accumulate) {
  for (auto p = first; p < last; ++p) {
    job j{x,
          w.panel(p),
          y + (p - first) * width,
          m,
          w.k(),
          stride,
          std::min<std::size_t>(width, w.n() - p * width),
          accumulate};
    bool half = w.type() == dtype::bf16;
    switch (best_isa()) {
      case isa::plain:
        half ? run_plain<bf16>(j) : run_plain<float>(j);
        break;
#if COKV_X86
      case isa::avx2:
        half ? run_avx2<bf16>(j) : run_avx2<float>(j);
        break;
      case isa::avx512:
        half ? run_avx512<bf16>(j) : run_avx512<float>(j);
        break;
      case isa::avx512_bf16:
        half ? run_dot(j) : run_avx512<float>(j);
        break;
#else
      default:
        half ? run_plain<bf16>(j) : run_plain<float>(j);
        break;
#endif
    }
  }
}

}  // namespace cokv::kernel
