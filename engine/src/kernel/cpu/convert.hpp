// Rows of f32, f16 or bf16 as floats, for weights that are converted once when a model is loaded.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "cokv/kvstream/dtype.hpp"
#include "kernel/cpu/simd.hpp"

namespace cokv::kernel {

inline float half_to_float(std::uint16_t h) noexcept {
  int exponent = (h >> 10) & 31, mantissa = h & 1023;
  float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                    : exponent == 31
                        ? (mantissa ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity())
                        : std::ldexp(static_cast<float>(mantissa | 1024), exponent - 25);
  return (h & 0x8000) ? -magnitude : magnitude;
}

inline void to_floats(const void* from, dtype type, float* to, std::size_t n) noexcept {
  auto* halves = static_cast<const unsigned char*>(from);  // a mapped file promises no alignment
  for (std::size_t i = 0; i < n; ++i) {
    if (type == dtype::f32) {
      std::memcpy(to + i, halves + i * 4, 4);
      continue;
    }
    std::uint16_t h;
    std::memcpy(&h, halves + i * 2, 2);
    to[i] = type == dtype::bf16 ? to_float(bf16{h}) : half_to_float(h);
  }
}

}  // namespace cokv::kernel
