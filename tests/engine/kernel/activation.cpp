#include "kernel/cpu/activation.hpp"

#include <doctest/doctest.h>

#include <cmath>

#include "engine/kernel/random.hpp"

using namespace cokv;
using namespace cokv::kernel;
using namespace cokv::test;

namespace {

double exact(activation act, double x) {
  switch (act) {
    case activation::silu:
      return x / (1 + std::exp(-x));
    case activation::relu:
      return x > 0 ? x : 0;
    case activation::gelu:
      return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case activation::gelu_tanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
  }
  return NAN;
}

}  // namespace

TEST_CASE("activations equal their formulas in both output types") {
  each_isa([](isa level) {
    INFO("isa ", to_string(level));
    for (auto act : {activation::silu, activation::relu, activation::gelu, activation::gelu_tanh})
      for (std::size_t n : {256, 40, 7}) {
        INFO("activation ", int(act), " of ", n);
        auto x = random_floats(n, 3, 6);
        x[0] = -200, x[1] = 200, x[2] = 0, x[n - 1] = -9;
        auto out = poisoned(n);
        std::vector<bf16> half(n, 0xffff);
        activate(act, x.data(), out.data(), dtype::f32, n);
        activate(act, x.data(), half.data(), dtype::bf16, n);
        for (std::size_t i = 0; i < n; ++i) {
          CHECK(std::abs(out[i] - exact(act, x[i])) <= 2e-6 * std::max(1.0, std::abs(exact(act, x[i]))));
          CHECK(half[i] == to_bf16(out[i]));
        }
      }
  });
}

TEST_CASE("silu_gate multiplies by what silu makes of the gate") {
  each_isa([](isa level) {
    INFO("isa ", to_string(level));
    for (std::size_t n : {256, 40, 7}) {
      auto gate = random_floats(n, 3, 20);
      const auto up = random_floats(n, 4, 20);
      gate[0] = -200, gate[1] = 200;
      auto gated = poisoned(n);
      std::vector<bf16> half(n, 0xffff);
      silu_gate(gate.data(), up.data(), gated.data(), dtype::f32, n);
      silu_gate(gate.data(), up.data(), half.data(), dtype::bf16, n);
      for (std::size_t i = 0; i < n; ++i) {
        CHECK(gated[i] == doctest::Approx(exact(activation::silu, gate[i]) * double(up[i])).epsilon(1e-5));
        const auto rounded = exact(activation::silu, gate[i]) * double(up[i]);
        CHECK(to_float(half[i]) == doctest::Approx(rounded).epsilon(1.0 / 256));
      }
    }
  });
}
