// Which instructions the kernels may use. Every kernel is written once, compiled for each level by a target attribute,
// and chosen when it is called, so that one binary runs on any x86-64 and on other processors in its plain form.
//
//     COKV_AVX2 void run_avx2(job& j) { run(j); }       // run is always inlined
//     switch (best_isa()) { case isa::avx2: return run_avx2(j); ... }
#pragma once

#include <cstdint>
#include <string_view>

namespace cokv::kernel {

enum class isa : std::uint8_t { plain, avx2, avx512, avx512_bf16 };

isa detected_isa() noexcept;           // what this processor and its operating system offer
isa best_isa() noexcept;               // detected, or what limit_isa() lowered it to
void limit_isa(isa at_most) noexcept;  // for tests and measurements; not above what was detected
std::string_view to_string(isa) noexcept;

}  // namespace cokv::kernel

#if defined(__x86_64__)
#define COKV_X86 1
#define COKV_AVX2 __attribute__((target("avx2,fma,f16c")))
#define COKV_AVX512 __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")))
#define COKV_AVX512_BF16 __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))
#else
#define COKV_X86 0
#define COKV_AVX2
#define COKV_AVX512
#define COKV_AVX512_BF16
#endif
