// Functions of kernels that are compiled for devices and, for tests, for the host. Loops marked COKV_UNROLL have arrays in
// registers of a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#if defined(__CUDACC__)
#define COKV_ON_DEVICE __device__ __forceinline__
#define COKV_PRAGMA(text) _Pragma(#text)
#define COKV_UNROLL COKV_PRAGMA(unroll)
#define COKV_UNROLL_BY(n) COKV_PRAGMA(unroll n)
#else
#define COKV_ON_DEVICE inline
#define COKV_UNROLL
#define COKV_UNROLL_BY(n)
#endif

namespace cokv::detail {

struct alignas(16) device_word {
  std::uint64_t low, high;
};

// One access as wide as T.
template <class T>
COKV_ON_DEVICE void move_as(std::byte* to, const std::byte* from) {
#if defined(__CUDA_ARCH__)
  *reinterpret_cast<T*>(to) = *reinterpret_cast<const T*>(from);
#else
  // On a device that would be its loss.
  if ((reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from)) % sizeof(T) != 0) std::abort();
  std::memcpy(to, from, sizeof(T));
#endif
}

}  // namespace cokv::detail
