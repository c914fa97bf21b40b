// Numbers as kernels on a device read and write them: bf16 as its bits, two at a time. For devices and the host, in C++17.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "cokv/runtime/detail/on_device.hpp"

namespace cokv::kernel::gpu {

using bf16 = std::uint16_t;  // the upper half of a float's bits

template <class To, class From>
COKV_ON_DEVICE To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

// One access as wide as T.
template <class T>
COKV_ON_DEVICE T load_as(const void* from) {
#if defined(__CUDA_ARCH__)
  return *static_cast<const T*>(from);
#else
  if (reinterpret_cast<std::uintptr_t>(from) % sizeof(T) != 0) std::abort();  // on a device that would be its loss
  T out;
  std::memcpy(&out, from, sizeof out);
  return out;
#endif
}
template <class T>
COKV_ON_DEVICE void store_as(void* to, const T& value) {
#if defined(__CUDA_ARCH__)
  *static_cast<T*>(to) = value;
#else
  if (reinterpret_cast<std::uintptr_t>(to) % sizeof(T) != 0) std::abort();
  std::memcpy(to, &value, sizeof value);
#endif
}

COKV_ON_DEVICE float to_float(float f) { return f; }
COKV_ON_DEVICE float to_float(bf16 h) { return bits_as<float>(std::uint32_t{h} << 16); }

// Rounded to nearest, ties to even; a NaN stays one. `low` is the first of the two in memory.
COKV_ON_DEVICE std::uint32_t pack_bf16(float low, float high) {
#if defined(__CUDA_ARCH__)
  std::uint32_t both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
#else
  auto round = [](float f) -> std::uint32_t {
    const auto bits = bits_as<std::uint32_t>(f);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
  };
  return round(low) | round(high) << 16;
#endif
}

struct alignas(8) float_pair {
  float a, b;
};
COKV_ON_DEVICE float_pair load_pair(const float* from) { return load_as<float_pair>(from); }
COKV_ON_DEVICE float_pair load_pair(const bf16* from) {
  const auto both = load_as<std::uint32_t>(from);
  return {bits_as<float>(both << 16), bits_as<float>(both & 0xffff0000u)};
}
COKV_ON_DEVICE void store_pair(float* to, float_pair v) { store_as(to, v); }
COKV_ON_DEVICE void store_pair(bf16* to, float_pair v) { store_as(to, pack_bf16(v.a, v.b)); }

COKV_ON_DEVICE void put(float& to, float f) { to = f; }
COKV_ON_DEVICE void put(bf16& to, float f) { to = static_cast<bf16>(pack_bf16(f, 0)); }

}  // namespace cokv::kernel::gpu
