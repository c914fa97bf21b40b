#include "engine/cuda/library.hpp"

namespace cokv::test {

bool with_products(const std::function<void(cuda_machine&)>& body) {
  if (!kernel::cublaslt_api::load()) return false;
  on_cuda(body);
  return true;
}

void with_kernels(const kernel_test& body) {
  std::mt19937 random(std::random_device{}());
  on_cuda([&](cuda_machine& m) {
    auto s = m.device.make_stream().value();
    const auto kernels = kernels_on(s).value();
    for (int i = 0; i < 50; ++i) body(m, s, kernels, random);
  });
}

bool with_decoders(const std::function<void(cuda_machine&, std::mt19937&, bool)>& body) {
  std::mt19937 random(std::random_device{}());
  return with_products([&](cuda_machine& m) { body(m, random, true); });
}

}  // namespace cokv::test
