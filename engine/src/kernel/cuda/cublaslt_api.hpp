// cuBLASLt, found at run time: nothing of it is linked, so a program starts where there is none.
#pragma once

#include <cublasLt.h>

#include "cokv/runtime/asio.hpp"

namespace cokv::kernel {

struct cublaslt_api {
  // `name` as dlopen takes it. errc::unsupported when there is no such library, or it is older than what this was
  // compiled with.
  static result<cublaslt_api> load(const char* name);
  // What COKV_CUBLASLT_LIBRARY names, or libcublasLt.so of the version that this was compiled with.
  static result<cublaslt_api> load();
  // For tests: what load() gives from now on. Null: the library again.
  static void stand_in(const cublaslt_api* api);

#define COKV_CUBLASLT_FUNCTIONS(of)                                                                                   \
  of(Create) of(Destroy) of(GetStatusString) of(GetVersion) of(Matmul) of(MatmulAlgoCheck) of(MatmulAlgoGetHeuristic) \
      of(MatmulDescCreate) of(MatmulDescDestroy) of(MatmulDescSetAttribute) of(MatmulPreferenceCreate)                \
          of(MatmulPreferenceDestroy) of(MatmulPreferenceSetAttribute) of(MatrixLayoutCreate) of(MatrixLayoutDestroy)
#define COKV_CUBLASLT_MEMBER(name) decltype(&::cublasLt##name) name = nullptr;
  COKV_CUBLASLT_FUNCTIONS(COKV_CUBLASLT_MEMBER)
#undef COKV_CUBLASLT_MEMBER
};

// errc::out_of_memory and errc::unsupported where it says so; else its own code and text, in a category "cublas".
error_code cublas_error(cublasStatus_t status);

}  // namespace cokv::kernel
