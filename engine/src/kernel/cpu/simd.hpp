// Sixteen floats at a time, in the compiler's vector types: one source for every instruction set. Everything here is
// inlined into a kernel that carries a target attribute; vectors go by reference, because passing them by value
// would tie the calling convention to one instruction set.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernel/cpu/isa.hpp"

#define COKV_INLINE [[gnu::always_inline]] inline
#define COKV_INLINE_LAMBDA __attribute__((always_inline))  // behind its parameters

namespace cokv::kernel {

using bf16 = std::uint16_t;  // the upper half of a float's bits

using vf = float __attribute__((vector_size(64)));
using vi = std::int32_t __attribute__((vector_size(64)));
using vu = std::uint32_t __attribute__((vector_size(64)));
using vh = std::uint16_t __attribute__((vector_size(32)));
inline constexpr int lanes = 16;

inline float to_float(bf16 h) noexcept {
  std::uint32_t bits = std::uint32_t{h} << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}
inline float to_float(float f) noexcept { return f; }

// Round to nearest, ties to even. A NaN stays a NaN.
inline bf16 to_bf16(float f) noexcept {
  std::uint32_t bits;
  std::memcpy(&bits, &f, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<bf16>((bits >> 16) | 0x40);
  return static_cast<bf16>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

COKV_INLINE void load(vf& v, const float* p) { std::memcpy(&v, p, 64); }
COKV_INLINE void load(vf& v, const bf16* p) {
  vh h;
  std::memcpy(&h, p, 32);
  vu bits = __builtin_convertvector(h, vu) << 16;
  std::memcpy(&v, &bits, 64);
}
COKV_INLINE void store(float* p, const vf& v) { std::memcpy(p, &v, 64); }
COKV_INLINE void store(bf16* p, const vf& v) {
  vu bits;
  std::memcpy(&bits, &v, 64);
  vu rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  vi nan = (bits & 0x7fffffffu) > 0x7f800000u;
  vu quiet = (bits >> 16) | 0x40u;
  rounded = (vu)nan ? quiet : rounded;
  vh h = __builtin_convertvector(rounded, vh);
  std::memcpy(p, &h, 32);
}
COKV_INLINE void put(float& to, float f) { to = f; }
COKV_INLINE void put(bf16& to, float f) { to = to_bf16(f); }

COKV_INLINE float sum(const vf& v) {  // a fixed tree, so that the result is the same at every level
  float a[lanes];
  std::memcpy(a, &v, 64);
  for (int half = lanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) a[i] += a[i + half];
  return a[0];
}

// e^x for x <= 88; below -87 the result is 0. Cody-Waite reduction and a degree 6 polynomial: within 2 ulp.
COKV_INLINE void exp(vf& out, const vf& x) {
  vf clamped = x < -87.0f ? vf{} - 87.0f : x;
  vf scaled = clamped * 1.44269504088896341f;
  vf shifted = scaled + 12582912.0f;  // 1.5 * 2^23: the integer nearest lands in the low bits
  vi n;
  std::memcpy(&n, &shifted, 64);
  n -= 0x4b400000;
  vf whole = shifted - 12582912.0f;
  vf r = clamped - whole * 0.693145751953125f;
  r = r - whole * 1.42860682030941723e-6f;
  vf p = r * 1.3981999507e-3f + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  vi scale = (n + 127) << 23;
  vf power;
  std::memcpy(&power, &scale, 64);
  out = x < -87.0f ? vf{} : p * power;
}

}  // namespace cokv::kernel
