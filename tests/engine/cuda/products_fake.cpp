// What cuBLASLt may answer, on its stand-in.
#include <doctest/doctest.h>

#include "engine/cuda/library.hpp"
#include "support/fake_cublaslt.hpp"
#include "support/fake_cuda_fixture.hpp"

using namespace cokv;
using namespace cokv::kernel;
using namespace cokv::test;

namespace {

struct bed : fake_cuda::fixture {
  explicit bed(fake_cublaslt::options how = {}) {
    fake_cublaslt::reset(how);
    cublaslt_api::stand_in(&api);
    s = dev.make_stream().value();
    memory = dev.allocate(4096).value();
    workspace = dev.allocate(device_products::workspace_bytes).value();
  }
  error_code multiply(device_products& by) {
    const device_product p{
        dtype::bf16, 1, 16, 16, memory.data(), memory.data() + 1024, reinterpret_cast<float*>(memory.data() + 2048),
        false};
    return s.launch_native("product", {}, [&](void* native) { got = by.multiply(p, workspace, native); }), got;
  }
  const cublaslt_api api = fake_cublaslt::table();
  stream s;
  buffer memory, workspace;
  error_code got;
};

}  // namespace

TEST_CASE("cublas: each of its calls may fail, and leaves nothing behind") {
  constexpr const char* opening[] = {"cublasLtCreate", "cublasLtMatmulDescCreate", "cublasLtMatmulDescSetAttribute"};
  constexpr const char* planning[] = {"cublasLtMatmulPreferenceCreate", "cublasLtMatmulPreferenceSetAttribute",
                                      "cublasLtMatmulAlgoGetHeuristic", "cublasLtMatmul"};
  for (auto* call : opening) {
    CAPTURE(std::string(call));
    bed b;
    fake_cuda::fail_call(call, 1, CUBLAS_STATUS_ALLOC_FAILED);
    CHECK(products_on(b.s).error() == errc::out_of_memory);
    CHECK(fake_cublaslt::live() == 0);
    CHECK(products_on(b.s).has_value());
  }
  auto fails = [](const char* call, std::size_t k) {
    CAPTURE(std::string(call));
    CAPTURE(k);
    bed b;
    {
      auto products = products_on(b.s).value();
      const auto before = fake_cublaslt::live();
      fake_cuda::fail_call(call, k, CUBLAS_STATUS_INTERNAL_ERROR);
      const auto ec = b.multiply(products);
      CHECK(ec.value() == CUBLAS_STATUS_INTERNAL_ERROR);
      CHECK(ec.message() == "an internal operation failed");
      if (products.shapes() == 0) CHECK(fake_cublaslt::live() == before);
      CHECK(!b.multiply(products));
    }
    fake_cuda::drain();
    CHECK(fake_cublaslt::live() == 0);
    CHECK(fake_cuda::first_violation() == "");
  };
  for (auto* call : planning) fails(call, 1);
  for (std::size_t k : {1, 2, 3}) fails("cublasLtMatrixLayoutCreate", k);
}

TEST_CASE("cublas: a shape that it has no algorithm for, or not with our workspace, is refused") {
  for (auto how : {fake_cublaslt::options{.finds = false},
                   fake_cublaslt::options{.workspace = device_products::workspace_bytes + 1}}) {
    bed b(how);
    auto products = products_on(b.s).value();
    CHECK(b.multiply(products) == errc::unsupported);
    CHECK(products.shapes() == 0);
  }
}

TEST_CASE("cublas: a shape is asked for once") {
  bed b;
  auto products = products_on(b.s).value();
  for (int i = 0; i < 5; ++i) CHECK(!b.multiply(products));
  fake_cuda::drain();
  CHECK(fake_cuda::calls("cublasLtMatmulAlgoGetHeuristic") == 1);
  CHECK(fake_cuda::calls("cublasLtMatmul") == 5);
  CHECK(fake_cuda::first_violation() == "");
}

TEST_CASE("cublas: where the library is not, or is another, products are unsupported") {
  cublaslt_api::stand_in(nullptr);
  CHECK(cublaslt_api::load("libno-such-library.so").error() == errc::unsupported);
  CHECK(cublaslt_api::load("libm.so.6").error() == errc::unsupported);
}

TEST_CASE("cublas: where it takes another way for other numbers of rows, one way for all is asked of it") {
  const auto api = fake_cublaslt::table();
  kernel::cublaslt_api::stand_in(&api);
  on_cuda([](cuda_machine& m) {
    fake_cublaslt::reset({.by_rows = true});
    CHECK(!same_however_many_rows(m, false));
    CHECK(same_however_many_rows(m, true));
  });
  fake_cublaslt::reset();
}
