#include <doctest/doctest.h>

#include "engine/cuda/library.hpp"
#include "support/fake_cublaslt.hpp"
#include "support/fake_cuda.hpp"
#include "support/fake_engine_kernels.hpp"

namespace cokv::test {

bool with_products(const std::function<void(cuda_machine&)>& body) {
  fake_cublaslt::reset();
  const auto api = fake_cublaslt::table();
  kernel::cublaslt_api::stand_in(&api);
  on_cuda(body);
  CHECK(fake_cublaslt::live() == 0);
  return true;
}

namespace {
void know_kernels() { [[maybe_unused]] static const bool known = (fake_cuda::know_engine_kernels(), true); }
}  // namespace

void with_kernels(const kernel_test& body) {
  know_kernels();
  std::mt19937 random(std::random_device{}());
  on_cuda([&](cuda_machine& m) {
    const auto seed = random();
    CAPTURE(seed);
    std::mt19937 now(seed);
    auto s = m.device.make_stream().value();
    body(m, s, kernels_on(s).value(), now);
  });
}

bool with_decoders(const std::function<void(cuda_machine&, std::mt19937&, bool)>& body) {
  know_kernels();
  std::mt19937 random(std::random_device{}());
  return with_products([&](cuda_machine& m) {
    const auto seed = random();
    CAPTURE(seed);
    std::mt19937 now(seed);
    body(m, now, false);
  });
}

}  // namespace cokv::test
