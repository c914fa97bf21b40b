// A stand-in for cuBLASLt on fake_cuda's devices: products are kernels of its streams, computed on the host in double.
//
//     fake_cuda::reset({.mode = fake_cuda::mode::threaded, .seed = 7});
//     fake_cublaslt::reset();
//     auto api = fake_cublaslt::table();
//     cublaslt_api::stand_in(&api);
//
// Calls are counted and failed by fake_cuda (fail_call("cublasLtMatmul", ...)). A product poisons its result and the
// workspace when it begins. What the library forbids is a violation there: handles that are gone, layouts that don't fit
// together, an algorithm of another shape, less workspace than it said, memory that the device doesn't have.
#pragma once

#include <cstddef>

#include "kernel/cuda/cublaslt_api.hpp"

namespace cokv::test::fake_cublaslt {

struct options {
  std::size_t workspace = 4096;  // that an algorithm needs
  bool finds = true;             // an algorithm; else it has none for any shape
  bool by_rows = false;          // for other numbers of rows it finds another, whose results are a little off
};

void reset(options o = {});
kernel::cublaslt_api table();
std::size_t live();  // handles, descriptors, layouts and preferences

}  // namespace cokv::test::fake_cublaslt
