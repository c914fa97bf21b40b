// Matrix products on a CUDA device, by cuBLASLt: y = x W^T, or added to y. All sums are in f32, of operands in bf16 or
// f32 (which are not rounded to TF32).
//
//     auto products = device_products::open();                       // the current device's
//     stream.launch_native("qkv", uses, [&](void* native) { return products->multiply(p, workspace, native); });
//
// How a shape is best computed is asked once and kept. Which rows stand beside a row may change the order in which it
// is summed, and so its last bits, unless one way is taken for any number of rows (batch_invariant): one that adds up no
// parts of sums. From one thread, with the device current that it was opened for.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <tuple>

#include "cokv/kvstream/dtype.hpp"
#include "cokv/runtime/buffer.hpp"
#include "kernel/cuda/cublaslt_api.hpp"

namespace cokv::kernel {

// Of device memory. All pointers are multiples of 256, as allocations are.
struct device_product {
  dtype type = dtype::bf16;  // of x and W: bf16 or f32
  std::size_t rows = 0, n = 0, k = 0;
  const void* x = nullptr;  // [rows][k]
  const void* w = nullptr;  // [n][k]
  float* y = nullptr;       // [rows][n]
  bool accumulate = false;
};

class device_products {
 public:
  // What NVIDIA recommends for Hopper (cuBLAS documentation, cublasSetWorkspace); products of a stream share it.
  static constexpr std::size_t workspace_bytes = 32 << 20;

  // errc::unsupported without cuBLASLt; its own error where it can't begin.
  static result<device_products> open(bool batch_invariant = false);

  // Enqueues a product on a cudaStream_t. A product of no rows is nothing. errc::invalid_argument: a type that is none
  // of the two, n or k of 0, a pointer that is null or not aligned, or too small a workspace; errc::unsupported: no
  // algorithm of the library's takes this shape; else its own error.
  error_code multiply(const device_product& p, const buffer& workspace, void* stream);

  std::size_t shapes() const noexcept { return known_.size(); }  // that were asked for and are kept

 private:
  template <class T>
  using owned = std::unique_ptr<std::remove_pointer_t<T>, cublasStatus_t (*)(T)>;
  struct plan {
    owned<cublasLtMatrixLayout_t> x, w, y;
    cublasLtMatmulAlgo_t algorithm;
    std::size_t workspace;
  };
  using shape = std::tuple<dtype, std::size_t, std::size_t, std::size_t>;

  device_products(const cublaslt_api& api, cublasLtHandle_t handle);
  template <class T, class... A>
  result<owned<T>> make(cublasStatus_t (*create)(T*, A...), cublasStatus_t (*destroy)(T), A... arguments) const;
  result<plan> plan_for(const device_product& p) const;
  result<cublasLtMatmulHeuristicResult_t> best(const plan& of) const;

  bool batch_invariant_ = false;
  cublaslt_api api_;
  owned<cublasLtHandle_t> handle_;
  owned<cublasLtMatmulDesc_t> turned_;  // W^T
  std::map<shape, plan> known_;
};

}  // namespace cokv::kernel
