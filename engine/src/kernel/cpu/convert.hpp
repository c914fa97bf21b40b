// Rows of f32, f16 or bf16 as floats, for weights that are looked at and converted once when a model is loaded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cokv/kvstream/dtype.hpp"
#include "kernel/cpu/simd.hpp"

namespace cokv::kernel {

// Exponent and mantissa moved to a float's places are the value times 2^-112, subnormals included.
inline float half_to_float(std::uint16_t h) noexcept {
  std::uint32_t bits = (h & 0x7fffu) << 13;
  float f;
  std::memcpy(&f, &bits, 4);
  f *= 0x1p112f;
  std::memcpy(&bits, &f, 4);
  if ((h & 0x7c00u) == 0x7c00u) bits |= 0x7f800000u;  // infinity and what is not a number
  bits |= (h & 0x8000u) << 16;
  std::memcpy(&f, &bits, 4);
  return f;
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

// Whether none of n elements is infinite or not a number: an exponent of ones.
inline bool all_finite(const void* from, dtype type, std::size_t n) noexcept {
  auto* bytes = static_cast<const unsigned char*>(from);
  unsigned found = 0;
  if (type == dtype::f32) {
    for (std::size_t i = 0; i < n; ++i) {
      std::uint32_t bits;
      std::memcpy(&bits, bytes + i * 4, 4);
      found |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return found == 0;
  }
  const unsigned ones = type == dtype::bf16 ? 0x7f80 : 0x7c00;
  for (std::size_t i = 0; i < n; ++i) {
    std::uint16_t bits;
    std::memcpy(&bits, bytes + i * 2, 2);
    found |= (bits & ones) == ones;
  }
  return found == 0;
}

}  // namespace cokv::kernel
