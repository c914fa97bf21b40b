#include "kernel/cpu/rows.hpp"

#include <cmath>

#include "kernel/cpu/convert.hpp"
#include "kernel/cpu/simd.hpp"

namespace cokv::kernel {
namespace {

template <class T>
COKV_INLINE void body_norm(const float* x, const float* weight, float eps, T* out, std::size_t rows, std::size_t n) {
  for (std::size_t r = 0; r < rows; ++r, x += n, out += n) {
    vf squares[2] = {};
    std::size_t i = 0;
    for (; i + 2 * lanes <= n; i += 2 * lanes)
      for (int u = 0; u < 2; ++u) {
        vf v;
        load(v, x + i + u * lanes);
        squares[u] += v * v;
      }
    squares[0] += squares[1];
    float total = sum(squares[0]);
    for (; i < n; ++i) total += x[i] * x[i];
    const float scale = 1.0f / std::sqrt(total / static_cast<float>(n) + eps);
    for (i = 0; i + lanes <= n; i += lanes) {
      vf v, w;
      load(v, x + i), load(w, weight + i);
      v = v * scale * w;
      store(out + i, v);
    }
    for (; i < n; ++i) put(out[i], x[i] * scale * weight[i]);
  }
}

template <class T>
COKV_INLINE void body_gate(const float* x, T* out, std::size_t rows, std::size_t n) {
  for (std::size_t r = 0; r < rows; ++r, x += 2 * n, out += n) {
    std::size_t i = 0;
    for (; i + lanes <= n; i += lanes) {
      vf gate, up, e;
      load(gate, x + i), load(up, x + n + i);
      vf minus = -gate;
      minus = minus > 88.0f ? vf{} + 88.0f : minus;  // beyond it silu is 0 in any case
      exp(e, minus);
      vf v = gate / (e + 1.0f) * up;
      store(out + i, v);
    }
    for (; i < n; ++i) put(out[i], x[i] / (1.0f + std::exp(-x[i])) * x[n + i]);
  }
}

// clang-format off
template <class T> void norm_plain(const float* x, const float* w, float eps, T* out, std::size_t rows, std::size_t n) { body_norm(x, w, eps, out, rows, n); }
template <class T> COKV_AVX2 void norm_avx2(const float* x, const float* w, float eps, T* out, std::size_t rows, std::size_t n) { body_norm(x, w, eps, out, rows, n); }
template <class T> COKV_AVX512 void norm_avx512(const float* x, const float* w, float eps, T* out, std::size_t rows, std::size_t n) { body_norm(x, w, eps, out, rows, n); }
template <class T> void gate_plain(const float* x, T* out, std::size_t rows, std::size_t n) { body_gate(x, out, rows, n); }
template <class T> COKV_AVX2 void gate_avx2(const float* x, T* out, std::size_t rows, std::size_t n) { body_gate(x, out, rows, n); }
template <class T> COKV_AVX512 void gate_avx512(const float* x, T* out, std::size_t rows, std::size_t n) { body_gate(x, out, rows, n); }
// clang-format on

template <class T>
void norm(const float* x, const float* weight, float eps, T* out, std::size_t rows, std::size_t n) {
  switch (best_isa()) {
    case isa::plain:
      return norm_plain(x, weight, eps, out, rows, n);
    case isa::avx2:
      return norm_avx2(x, weight, eps, out, rows, n);
    default:
      return norm_avx512(x, weight, eps, out, rows, n);
  }
}

template <class T>
void gate(const float* x, T* out, std::size_t rows, std::size_t n) {
  switch (best_isa()) {
    case isa::plain:
      return gate_plain(x, out, rows, n);
    case isa::avx2:
      return gate_avx2(x, out, rows, n);
    default:
      return gate_avx512(x, out, rows, n);
  }
}

}  // namespace

void rms_norm(const float* x, const float* weight, float eps, void* out, dtype out_type, std::size_t rows,
              std::size_t n) {
  if (out_type == dtype::bf16)
    norm(x, weight, eps, static_cast<bf16*>(out), rows, n);
  else
    norm(x, weight, eps, static_cast<float*>(out), rows, n);
}

void silu_gate(const float* x, void* out, dtype out_type, std::size_t rows, std::size_t n) {
  if (out_type == dtype::bf16)
    gate(x, static_cast<bf16*>(out), rows, n);
  else
    gate(x, static_cast<float*>(out), rows, n);
}

void embed(const void* table, dtype type, std::size_t index, float* out, std::size_t n) {
  to_floats(static_cast<const std::byte*>(table) + index * n * size_of(type), type, out, n);
}

void rotary_angles(std::span<const float> frequencies, std::uint32_t position, float* cosines, float* sines) {
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const float angle = static_cast<float>(position) * frequencies[i];
    cosines[i] = std::cos(angle), sines[i] = std::sin(angle);
  }
}

void rotate_half(float* head, const float* cosines, const float* sines, std::size_t half) {
  for (std::size_t i = 0; i < half; ++i) {
    const float a = head[i], b = head[half + i];
    head[i] = a * cosines[i] - b * sines[i];
    head[half + i] = b * cosines[i] + a * sines[i];
  }
}

void write_kv(const float* from, std::byte* to, dtype type, std::size_t n) {
  if (type == dtype::f32) return (void)std::memcpy(to, from, n * sizeof(float));
  for (std::size_t i = 0; i < n; ++i) {
    const bf16 h = to_bf16(from[i]);
    std::memcpy(to + i * 2, &h, 2);
  }
}

}  // namespace cokv::kernel
