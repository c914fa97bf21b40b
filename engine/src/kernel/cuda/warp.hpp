// What a warp does together: matrices of 8 by 8 from shared memory, products of them on tensor cores, and copies that
// come in behind its back. The same names on the host, where 32 lanes take turns, for tests.
//
//     lanes<std::uint32_t> a[4], b[2];
//     lanes<float> sum[4];
//     multiply(sum, a, b);                   // [16][8] += [16][16] [16][8]; bf16, summed in f32
//
// Which lane has what of a matrix is the PTX manual's (mma.m16n8k16, ldmatrix): with group = lane / 4 and t = lane % 4, a
// sum's lanes have {group, 2 t}, {group, 2 t + 1}, {group + 8, 2 t} and {group + 8, 2 t + 1}.
#pragma once

#include <cstdint>

#include "kernel/cuda/numbers.hpp"

#if !defined(__CUDACC__)
#include <deque>
#include <vector>
#endif

namespace cokv::kernel::gpu {

constexpr std::uint32_t warp_lanes = 32;

// A value that each lane has one of.
template <class T>
struct lanes {
#if defined(__CUDACC__)
  T value;
  COKV_ON_DEVICE T& operator[](std::uint32_t) { return value; }
#else
  T value[warp_lanes];
  T& operator[](std::uint32_t lane) { return value[lane]; }
#endif
};

template <class F>
COKV_ON_DEVICE void each_lane(F f) {
#if defined(__CUDACC__)
  f(threadIdx.x % warp_lanes);
#else
  for (std::uint32_t lane = 0; lane < warp_lanes; ++lane) f(lane);
#endif
}

COKV_ON_DEVICE bool any_lane(const lanes<bool>& value) {
#if defined(__CUDACC__)
  return __any_sync(~0u, value.value);
#else
  for (auto each : value.value)
    if (each) return true;
  return false;
#endif
}

// Four matrices of 8 rows of 16 bytes; the address of row r of matrix m is lane 8 m + r's.
template <bool Transposed>
COKV_ON_DEVICE void load_matrices(lanes<std::uint32_t> (&to)[4], lanes<const bf16*>& rows) {
#if defined(__CUDACC__)
  const auto from = static_cast<std::uint32_t>(__cvta_generic_to_shared(rows.value));
  if (Transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0].value), "=r"(to[1].value), "=r"(to[2].value), "=r"(to[3].value)
                 : "r"(from)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0].value), "=r"(to[1].value), "=r"(to[2].value), "=r"(to[3].value)
                 : "r"(from)
                 : "memory");
#else
  for (std::uint32_t m = 0; m < 4; ++m)
    for (std::uint32_t lane = 0; lane < warp_lanes; ++lane) {
      const auto group = lane / 4, t = lane % 4 * 2;
      auto element = [&](std::uint32_t r, std::uint32_t c) { return std::uint32_t{rows[m * 8 + r][c]}; };
      to[m][lane] = Transposed ? element(t, group) | element(t + 1, group) << 16
                               : element(group, t) | element(group, t + 1) << 16;
    }
#endif
}

COKV_ON_DEVICE void multiply(lanes<float> (&sum)[4], lanes<std::uint32_t> (&a)[4], lanes<std::uint32_t>& b0,
                             lanes<std::uint32_t>& b1) {
#if defined(__CUDACC__)
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0].value), "+f"(sum[1].value), "+f"(sum[2].value), "+f"(sum[3].value)
      : "r"(a[0].value), "r"(a[1].value), "r"(a[2].value), "r"(a[3].value), "r"(b0.value), "r"(b1.value));
#else
  float left[16][16], right[16][8];
  auto low = [](std::uint32_t both) { return bits_as<float>(both << 16); };
  auto high = [](std::uint32_t both) { return bits_as<float>(both & 0xffff0000u); };
  for (std::uint32_t lane = 0; lane < warp_lanes; ++lane) {
    const auto group = lane / 4, t = lane % 4 * 2;
    for (std::uint32_t i = 0; i < 4; ++i) {
      const auto row = group + i % 2 * 8, column = t + i / 2 * 8;
      left[row][column] = low(a[i][lane]), left[row][column + 1] = high(a[i][lane]);
    }
    right[t][group] = low(b0[lane]), right[t + 1][group] = high(b0[lane]);
    right[t + 8][group] = low(b1[lane]), right[t + 9][group] = high(b1[lane]);
  }
  for (std::uint32_t lane = 0; lane < warp_lanes; ++lane)
    for (std::uint32_t i = 0; i < 4; ++i)
      for (std::uint32_t k = 0; k < 16; ++k)
        sum[i][lane] += left[lane / 4 + i / 2 * 8][k] * right[k][lane % 4 * 2 + i % 2];
#endif
}

// The four lanes that have a row of a sum come to agree.
template <class F>
COKV_ON_DEVICE void over_row(lanes<float>& value, F both) {
#if defined(__CUDACC__)
  value.value = both(value.value, __shfl_xor_sync(~0u, value.value, 1));
  value.value = both(value.value, __shfl_xor_sync(~0u, value.value, 2));
#else
  for (std::uint32_t lane = 0; lane < warp_lanes; lane += 4) {
    const auto all = both(both(value[lane], value[lane + 1]), both(value[lane + 2], value[lane + 3]));
    for (std::uint32_t i = 0; i < 4; ++i) value[lane + i] = all;
  }
#endif
}

// A block of `Warps` warps: its threads in phases, each ended when all are through with it, and copies of 16 bytes into
// shared memory, in groups of a thread's. On the host a copy is made when it is waited for, and not before.
template <std::uint32_t Warps>
class block_of {
 public:
  static constexpr std::uint32_t threads = Warps * warp_lanes;

  // A T for every warp.
  template <class T>
  struct per_warp {
#if defined(__CUDACC__)
    T value;
    COKV_ON_DEVICE T& operator[](std::uint32_t) { return value; }
#else
    T value[Warps];
    T& operator[](std::uint32_t warp) { return value[warp]; }
#endif
  };

#if defined(__CUDACC__)
  template <class F>
  COKV_ON_DEVICE void each(F f) {
    f(threadIdx.x);
    __syncthreads();
  }
  template <class F>
  COKV_ON_DEVICE void each_warp(F f) {
    f(threadIdx.x / warp_lanes);
    __syncthreads();
  }
  // Zeros where it is not `there`.
  COKV_ON_DEVICE void copy(std::uint32_t, bf16* to, const void* from, bool there) {
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(to))),
        "l"(from), "r"(there ? 16 : 0)
        : "memory");
  }
  COKV_ON_DEVICE void end_group(std::uint32_t) { asm volatile("cp.async.commit_group;" ::: "memory"); }
  template <int Newest>
  COKV_ON_DEVICE void wait_for_all_but(std::uint32_t) {
    asm volatile("cp.async.wait_group %0;" ::"n"(Newest) : "memory");
  }
#else
  explicit block_of(bool backwards = false) : backwards_(backwards) {}
  template <class F>
  void each(F f) {
    for (std::uint32_t i = 0; i < threads; ++i) f(backwards_ ? threads - 1 - i : i);
  }
  template <class F>
  void each_warp(F f) {
    for (std::uint32_t i = 0; i < Warps; ++i) f(backwards_ ? Warps - 1 - i : i);
  }
  void copy(std::uint32_t thread, bf16* to, const void* from, bool there) {
    if ((reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from)) % 16 != 0) std::abort();
    open_[thread].push_back({to, there ? from : nullptr});
  }
  void end_group(std::uint32_t thread) {
    ended_[thread].push_back(std::move(open_[thread]));
    open_[thread].clear();
  }
  template <int Newest>
  void wait_for_all_but(std::uint32_t thread) {
    for (; ended_[thread].size() > Newest; ended_[thread].pop_front())
      for (auto& c : ended_[thread].front()) c.from ? std::memcpy(c.to, c.from, 16) : std::memset(c.to, 0, 16);
  }

 private:
  struct late_copy {
    bf16* to;
    const void* from;  // null: zeros
  };
  std::vector<late_copy> open_[threads];
  std::deque<std::vector<late_copy>> ended_[threads];
  bool backwards_;
#endif
};

}  // namespace cokv::kernel::gpu
