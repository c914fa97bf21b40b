#include "kernel/cpu/isa.hpp"

#include <algorithm>
#include <atomic>

namespace cokv::kernel {
namespace {

isa probe() noexcept {
#if COKV_X86
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    return __builtin_cpu_supports("avx512bf16") ? isa::avx512_bf16 : isa::avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return isa::avx2;
#endif
  return isa::plain;
}

std::atomic<isa>& chosen() noexcept {
  static std::atomic<isa> level{probe()};
  return level;
}

}  // namespace

isa detected_isa() noexcept {
  static const isa level = probe();
  return level;
}

isa best_isa() noexcept { return chosen().load(std::memory_order_relaxed); }

void limit_isa(isa at_most) noexcept { chosen().store(std::min(at_most, detected_isa()), std::memory_order_relaxed); }

std::string_view to_string(isa level) noexcept {
  switch (level) {
    case isa::plain:
      return "plain";
    case isa::avx2:
      return "avx2";
    case isa::avx512:
      return "avx512";
    case isa::avx512_bf16:
      return "avx512_bf16";
  }
  return "unknown";
}

}  // namespace cokv::kernel
