#include "kernel/cpu/norm.hpp"

#include <cmath>

#include "kernel/cpu/by_isa.hpp"
#include "kernel/cpu/simd.hpp"

namespace cokv::kernel {
namespace {

// The sum of f(x[i]) over a row, where f is of vectors as well as of floats.
template <class F>
COKV_INLINE float sum_of(const float* x, std::size_t n, const F& f) {
  vf sums[2] = {};
  std::size_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes)
    for (int u = 0; u < 2; ++u) {
      vf v;
      load(v, x + i + u * lanes);
      f(v);
      sums[u] += v;
    }
  sums[0] += sums[1];
  float total = sum(sums[0]);
  for (; i < n; ++i) {
    float v = x[i];
    f(v);
    total += v;
  }
  return total;
}

template <class T>
COKV_INLINE void body_rms(const float* x, const float* weight, float eps, T* out, std::size_t rows, std::size_t n) {
  for (std::size_t r = 0; r < rows; ++r, x += n, out += n) {
    const float squares = sum_of(x, n, [](auto& v) COKV_INLINE_LAMBDA { v *= v; });
    const float scale = 1.0f / std::sqrt(squares / static_cast<float>(n) + eps);
    std::size_t i = 0;
    for (; i + lanes <= n; i += lanes) {
      vf v, w;
      load(v, x + i), load(w, weight + i);
      v = v * scale * w;
      store(out + i, v);
    }
    for (; i < n; ++i) put(out[i], x[i] * scale * weight[i]);
  }
}

template <class T>
COKV_INLINE void body_layer(const float* x, const float* weight, const float* bias, float eps, T* out, std::size_t rows,
                            std::size_t n) {
  for (std::size_t r = 0; r < rows; ++r, x += n, out += n) {
    const float mean = sum_of(x, n, [](auto&) COKV_INLINE_LAMBDA {}) / static_cast<float>(n);
    // A second pass over a row that is in the cache: the difference of two sums would lose the digits that matter.
    const float squares = sum_of(x, n, [mean](auto& v) COKV_INLINE_LAMBDA { v = (v - mean) * (v - mean); });
    const float scale = 1.0f / std::sqrt(squares / static_cast<float>(n) + eps);
    std::size_t i = 0;
    for (; i + lanes <= n; i += lanes) {
      vf v, w, b;
      load(v, x + i), load(w, weight + i), load(b, bias + i);
      v = (v - mean) * scale * w + b;
      store(out + i, v);
    }
    for (; i < n; ++i) put(out[i], (x[i] - mean) * scale * weight[i] + bias[i]);
  }
}

COKV_BY_ISA(rms, (const float* x, const float* w, float eps, T* out, std::size_t rows, std::size_t n),
            (x, w, eps, out, rows, n))
COKV_BY_ISA(layer, (const float* x, const float* w, const float* b, float eps, T* out, std::size_t rows, std::size_t n),
            (x, w, b, eps, out, rows, n))

}  // namespace

void rms_norm(const float* x, const float* weight, float eps, void* out, dtype out_type, std::size_t rows,
              std::size_t n) {
  if (out_type == dtype::bf16)
    rms(x, weight, eps, static_cast<bf16*>(out), rows, n);
  else
    rms(x, weight, eps, static_cast<float*>(out), rows, n);
}

void layer_norm(const float* x, const float* weight, const float* bias, float eps, void* out, dtype out_type,
                std::size_t rows, std::size_t n) {
  if (out_type == dtype::bf16)
    layer(x, weight, bias, eps, static_cast<bf16*>(out), rows, n);
  else
    layer(x, weight, bias, eps, static_cast<float*>(out), rows, n);
}

}  // namespace cokv::kernel
