// What processors with AVX-512 and bf16 do in fewer instructions than simd.hpp's vectors come to. Inlined into kernels
// that carry COKV_AVX512_BF16.
#pragma once

#include "kernel/cpu/simd.hpp"

#if COKV_X86
#include <immintrin.h>

namespace cokv::kernel {

// e^x for x <= 0, relative error 2.4e-7 down to e^-1, 7e-7 to e^-10, 4e-6 to e^-87 (x log2 e is rounded once), which is
// for results that are rounded to bf16; 0 below 2^-126, as numbers beyond are slow. 2^n by the processor's scaling, 2^r by a
// polynomial on [-1/2, 1/2].
COKV_INLINE COKV_AVX512_BF16 __m512 exp_below_one(__m512 x) {
  const __m512 t = _mm512_mul_ps(x, _mm512_set1_ps(1.44269504088896341f));
  const __mmask16 normal = _mm512_cmp_ps_mask(t, _mm512_set1_ps(-126), _CMP_GE_OQ);
  const __m512 n = _mm512_roundscale_ps(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 r = _mm512_sub_ps(t, n);
  __m512 p = _mm512_set1_ps(1.5403530e-4f);  // ln(2)^k / k!
  for (const float c : {1.33335581e-3f, 9.6181291e-3f, 5.5504109e-2f, 2.40226507e-1f, 6.9314718e-1f, 1.0f})
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(c));
  return _mm512_maskz_scalef_ps(normal, p, n);
}

// 1 / (1 + e^-x), as near.
COKV_INLINE COKV_AVX512_BF16 __m512 sigmoid(__m512 x) {
  const __m512 one = _mm512_set1_ps(1), two = _mm512_set1_ps(2);
  const __m512 e = exp_below_one(_mm512_or_ps(x, _mm512_set1_ps(-0.0f)));  // of -|x|
  const __m512 below = _mm512_add_ps(one, e);
  __m512 inverse = _mm512_rcp14_ps(below);
  inverse = _mm512_mul_ps(inverse, _mm512_fnmadd_ps(below, inverse, two));
  const __mmask16 negative = _mm512_movepi32_mask(_mm512_castps_si512(x));
  return _mm512_mask_mul_ps(inverse, negative, inverse, e);
}

// Rounded to nearest, ties to even.
COKV_INLINE COKV_AVX512_BF16 void store_rounded(bf16* to, __m512 v) {
  const __m256bh rounded = _mm512_cvtneps_pbh(v);
  std::memcpy(to, &rounded, sizeof rounded);
}

}  // namespace cokv::kernel
#endif
