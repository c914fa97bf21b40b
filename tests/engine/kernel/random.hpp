// Random inputs and poisoned outputs for the kernels' tests.
#pragma once

#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernel/cpu/simd.hpp"

namespace cokv::test {

inline std::vector<float> random_floats(std::size_t n, unsigned seed, float scale = 1) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> value(-scale, scale);
  std::vector<float> out(n);
  for (auto& f : out) f = value(random);
  return out;
}

inline std::vector<float> poisoned(std::size_t n) {
  return std::vector<float>(n, std::numeric_limits<float>::quiet_NaN());
}

inline std::vector<kernel::bf16> rounded(const std::vector<float>& from) {
  std::vector<kernel::bf16> out(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) out[i] = kernel::to_bf16(from[i]);
  return out;
}

// Every level that this processor has, the best one again at the end.
struct each_isa {
  template <class F>
  explicit each_isa(F f) {
    for (auto level : {kernel::isa::plain, kernel::isa::avx2, kernel::isa::avx512, kernel::isa::avx512_bf16}) {
      if (level > kernel::detected_isa()) break;
      kernel::limit_isa(level);
      f(level);
    }
    kernel::limit_isa(kernel::detected_isa());
  }
};

}  // namespace cokv::test
