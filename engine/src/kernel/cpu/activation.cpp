#include "kernel/cpu/activation.hpp"

#include <cmath>

#include "kernel/cpu/avx512_bf16.hpp"
#include "kernel/cpu/by_isa.hpp"
#include "kernel/cpu/simd.hpp"

namespace cokv::kernel {
namespace {

// x / (1 + e^-y)
COKV_INLINE void by_sigmoid(vf& out, const vf& x, const vf& y) {
  vf e, minus = -y;
  minus = minus > 88.0f ? vf{} + 88.0f : minus;  // beyond it the result is 0 in any case
  exp(e, minus);
  out = x / (e + 1.0f);
}

template <activation A>
COKV_INLINE void apply(vf& x) {
  if constexpr (A == activation::silu) {
    by_sigmoid(x, x, x);
  } else if constexpr (A == activation::relu) {
    x = x > 0.0f ? x : vf{};
  } else if constexpr (A == activation::gelu_tanh) {
    // (1 + tanh(y)) / 2 is 1 / (1 + e^-2y), y = sqrt(2 / pi) (x + 0.044715 x^3)
    by_sigmoid(x, x, x * 1.5957691216057308f * (x * x * 0.044715f + 1.0f));
  } else {
    for (int i = 0; i < lanes; ++i) x[i] = 0.5f * x[i] * (1.0f + std::erf(x[i] * 0.70710678118654752f));
  }
}

// Sixteen elements at a time; the last, fewer ones in a vector of their own.
template <class F>
COKV_INLINE void by_lanes(std::size_t n, const F& f) {
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) f(i, static_cast<std::size_t>(lanes));
  if (i < n) f(i, n - i);
}

COKV_INLINE void load_some(vf& v, const float* p, std::size_t count) {
  if (count == lanes) return load(v, p);
  v = vf{};
  std::memcpy(&v, p, count * sizeof(float));
}
template <class T>
COKV_INLINE void store_some(T* p, const vf& v, std::size_t count) {
  if (count == lanes) return store(p, v);
  T all[lanes];
  store(all, v);
  std::memcpy(p, all, count * sizeof(T));
}

template <class T>
COKV_INLINE void body_gate(const float* gates, const float* ups, T* out, std::size_t n) {
  by_lanes(n, [&](std::size_t i, std::size_t count) COKV_INLINE_LAMBDA {
    vf gate, up;
    load_some(gate, gates + i, count), load_some(up, ups + i, count);
    apply<activation::silu>(gate);
    gate *= up;
    store_some(out + i, gate, count);
  });
}

#if COKV_X86
COKV_AVX512_BF16 void gate_rounded(const float* gates, const float* ups, bf16* out, std::size_t n) {
  for (std::size_t i = 0; i < n; i += lanes) {
    const __m512 x = _mm512_loadu_ps(gates + i), up = _mm512_loadu_ps(ups + i);
    store_rounded(out + i, _mm512_mul_ps(_mm512_mul_ps(x, sigmoid(x)), up));
  }
}
#endif

template <activation A, class T>
COKV_INLINE void all_of(const float* x, T* out, std::size_t n) {
  by_lanes(n, [&](std::size_t i, std::size_t count) COKV_INLINE_LAMBDA {
    vf v;
    load_some(v, x + i, count);
    apply<A>(v);
    store_some(out + i, v, count);
  });
}

template <class T>
COKV_INLINE void body_elements(activation act, const float* x, T* out, std::size_t n) {
  switch (act) {
    case activation::silu:
      return all_of<activation::silu>(x, out, n);
    case activation::relu:
      return all_of<activation::relu>(x, out, n);
    case activation::gelu:
      return all_of<activation::gelu>(x, out, n);
    case activation::gelu_tanh:
      return all_of<activation::gelu_tanh>(x, out, n);
  }
}

COKV_BY_ISA(gate, (const float* gates, const float* ups, T* out, std::size_t n), (gates, ups, out, n))
COKV_BY_ISA(elements, (activation act, const float* x, T* out, std::size_t n), (act, x, out, n))

}  // namespace

void silu_gate(const float* gates, const float* ups, void* out, dtype out_type, std::size_t n) {
#if COKV_X86
  if (out_type == dtype::bf16 && best_isa() == isa::avx512_bf16 && n % lanes == 0)
    return gate_rounded(gates, ups, static_cast<bf16*>(out), n);
#endif
  if (out_type == dtype::bf16)
    gate(gates, ups, static_cast<bf16*>(out), n);
  else
    gate(gates, ups, static_cast<float*>(out), n);
}

void activate(activation act, const float* x, void* out, dtype out_type, std::size_t n) {
  if (out_type == dtype::bf16)
    elements(act, x, static_cast<bf16*>(out), n);
  else
    elements(act, x, static_cast<float*>(out), n);
}

}  // namespace cokv::kernel
