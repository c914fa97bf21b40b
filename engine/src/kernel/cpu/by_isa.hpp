// Defines NAME<T>(...) which runs body_NAME<T>(...), an inlined template, compiled for the best instructions there are.
//
//     template <class T> COKV_INLINE void body_scale(const float* x, T* out, std::size_t n) { ... }
//     COKV_BY_ISA(scale, (const float* x, T* out, std::size_t n), (x, out, n))
#pragma once

#include "kernel/cpu/isa.hpp"

#define COKV_BY_ISA(name, parameters, arguments) \
  template <class T>                             \
  void name##_plain parameters {                 \
    body_##name arguments;                       \
  }                                              \
  template <class T>                             \
  COKV_AVX2 void name##_avx2 parameters {        \
    body_##name arguments;                       \
  }                                              \
  template <class T>                             \
  COKV_AVX512 void name##_avx512 parameters {    \
    body_##name arguments;                       \
  }                                              \
  template <class T>                             \
  void name parameters {                         \
    switch (best_isa()) {                        \
      case isa::plain:                           \
        return name##_plain arguments;           \
      case isa::avx2:                            \
        return name##_avx2 arguments;            \
      default:                                   \
        return name##_avx512 arguments;          \
    }                                            \
  }
