// Numbers as kernels on a device read and write them: bf16 as its bits, two at a time. For devices and the host, in C++17.
#pragma once

#include <cmath>
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

// 2^x. On a device by its own instruction, to whose error a weight's is nothing (2 ulp; PTX manual, ex2.approx.ftz).
COKV_ON_DEVICE float power_of_two(float x) {
#if defined(__CUDA_ARCH__)
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
#else
  return exp2f(x);
#endif
}

// Divides numbers below 2^31 by one that is not known before, with a product instead (Granlund and Montgomery, "Division
// by invariant integers using multiplication", 1994).
class divisor {
 public:
  divisor() = default;
  divisor(std::uint32_t by) : by_(by) {
    while (std::uint64_t{1} << shift_ < by) ++shift_;
    multiplier_ = static_cast<std::uint32_t>((std::uint64_t{1} << (31 + shift_)) / by + 1);
  }
  COKV_ON_DEVICE operator std::uint32_t() const { return by_; }
  COKV_ON_DEVICE std::uint32_t of(std::uint32_t n) const {
    return static_cast<std::uint32_t>(std::uint64_t{n} * multiplier_ >> (31 + shift_));
  }

 private:
  std::uint32_t by_, multiplier_, shift_ = 0;
};

COKV_ON_DEVICE void put(float& to, float f) { to = f; }
COKV_ON_DEVICE void put(bf16& to, float f) { to = static_cast<bf16>(pack_bf16(f, 0)); }

}  // namespace cokv::kernel::gpu
