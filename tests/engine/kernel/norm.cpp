#include "kernel/cpu/norm.hpp"

#include <doctest/doctest.h>

#include <cmath>

#include "engine/kernel/random.hpp"

using namespace cokv;
using namespace cokv::kernel;
using namespace cokv::test;

namespace {

// A row far from zero, where a variance out of two sums would have no digits left.
std::vector<float> rows_of(std::size_t n, float mean) {
  auto x = random_floats(3 * n, 1, 3);
  for (auto& v : x) v += mean;
  return x;
}

}  // namespace

TEST_CASE("rms_norm and layer_norm equal their formulas in both output types, also in place") {
  each_isa([](isa level) {
    INFO("isa ", to_string(level));
    for (std::size_t n : {256, 40, 7})
      for (float mean : {0.0f, 500.0f}) {
        auto x = rows_of(n, mean);
        auto w = random_floats(n, 2), b = random_floats(n, 3);
        auto rms = poisoned(3 * n), layer = poisoned(3 * n);
        std::vector<bf16> rms_half(3 * n, 0xffff), layer_half(3 * n, 0xffff);
        rms_norm(x.data(), w.data(), 1e-5f, rms.data(), dtype::f32, 3, n);
        rms_norm(x.data(), w.data(), 1e-5f, rms_half.data(), dtype::bf16, 3, n);
        layer_norm(x.data(), w.data(), b.data(), 1e-5f, layer.data(), dtype::f32, 3, n);
        layer_norm(x.data(), w.data(), b.data(), 1e-5f, layer_half.data(), dtype::bf16, 3, n);
        for (std::size_t r = 0; r < 3; ++r) {
          double total = 0, squares = 0, variance = 0;
          for (std::size_t i = 0; i < n; ++i) total += x[r * n + i], squares += double(x[r * n + i]) * x[r * n + i];
          total /= double(n);
          for (std::size_t i = 0; i < n; ++i) variance += (x[r * n + i] - total) * (x[r * n + i] - total);
          for (std::size_t i = 0; i < n; ++i) {
            const auto at = r * n + i;
            const double as_rms = x[at] / std::sqrt(squares / double(n) + 1e-5) * w[i];
            const double as_layer = (x[at] - total) / std::sqrt(variance / double(n) + 1e-5) * w[i] + b[i];
            CHECK(rms[at] == doctest::Approx(as_rms).epsilon(1e-6));
            CHECK(std::abs(layer[at] - as_layer) < (mean == 0 ? 2e-6 : 1e-4));
            CHECK(rms_half[at] == to_bf16(rms[at]));
            CHECK(layer_half[at] == to_bf16(layer[at]));
          }
        }
        auto in_place = x;
        layer_norm(in_place.data(), w.data(), b.data(), 1e-5f, in_place.data(), dtype::f32, 3, n);
        CHECK(in_place == layer);
      }
  });
}
