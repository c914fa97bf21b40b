// Rows of f32, f16 or bf16 as floats, for weights that are looked at and converted once when a model is loaded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "cokv/kvstream/convert.hpp"

namespace cokv::kernel {

// A mapped file promises no alignment, and none is asked for.
inline void to_floats(const void* from, dtype type, float* to, std::size_t n) noexcept {
  (void)cokv::convert({static_cast<const std::byte*>(from), n * size_of(type)}, type,
                      std::as_writable_bytes(std::span(to, n)), dtype::f32);
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
