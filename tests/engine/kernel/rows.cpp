#include "kernel/cpu/rows.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cmath>

#include "engine/kernel/random.hpp"
#include "kernel/cpu/convert.hpp"

using namespace cokv;
using namespace cokv::kernel;
using namespace cokv::test;

TEST_CASE("a vector exponential is within 3e-7 of the real one and zero far below") {
  for (float from : {-120.0f, -88.0f, -1.0f, 0.0f, 60.0f, 80.0f}) {
    float x[lanes], y[lanes];
    for (int i = 0; i < lanes; ++i) x[i] = from + 0.37f * static_cast<float>(i);
    vf in, out;
    load(in, x), kernel::exp(out, in), store(y, out);
    for (int i = 0; i < lanes; ++i) {
      if (x[i] < -87)
        CHECK(y[i] == 0);
      else
        CHECK(std::abs(y[i] / std::exp(double(x[i])) - 1) < 3e-7);
    }
  }
}

TEST_CASE("bf16 rounds to nearest even and keeps NaN and infinity") {
  CHECK(to_float(to_bf16(1.0f)) == 1.0f);
  CHECK(to_bf16(to_float(bf16{0x3f80}) + 0.00390625f) == 0x3f80);  // a tie goes to the even one
  CHECK(to_bf16(to_float(bf16{0x3f81}) + 0.00390625f) == 0x3f82);
  CHECK(std::isnan(to_float(to_bf16(std::nanf("")))));
  CHECK(to_float(to_bf16(INFINITY)) == INFINITY);
  CHECK(half_to_float(0x3c00) == 1.0f);
  CHECK(half_to_float(0x8001) == -std::ldexp(1.0f, -24));
  CHECK(half_to_float(0x7bff) == 65504.0f);
  CHECK(std::isinf(half_to_float(0x7c00)));
}

TEST_CASE("rms_norm and silu_gate equal their formulas in both output types") {
  each_isa([](isa level) {
    INFO("isa ", to_string(level));
    for (std::size_t n : {256, 40, 7}) {
      auto x = random_floats(3 * n, 1, 3), w = random_floats(n, 2), out = poisoned(3 * n);
      std::vector<bf16> half(3 * n, 0xffff);
      rms_norm(x.data(), w.data(), 1e-5f, out.data(), dtype::f32, 3, n);
      rms_norm(x.data(), w.data(), 1e-5f, half.data(), dtype::bf16, 3, n);
      for (std::size_t r = 0; r < 3; ++r) {
        double squares = 0;
        for (std::size_t i = 0; i < n; ++i) squares += double(x[r * n + i]) * x[r * n + i];
        for (std::size_t i = 0; i < n; ++i) {
          auto want = x[r * n + i] / std::sqrt(squares / double(n) + 1e-5) * w[i];
          CHECK(out[r * n + i] == doctest::Approx(want).epsilon(1e-6));
          CHECK(half[r * n + i] == to_bf16(out[r * n + i]));
        }
      }
      auto pair = random_floats(2 * 2 * n, 3, 20);
      pair[0] = -200, pair[1] = 200;
      auto gated = poisoned(2 * n);
      silu_gate(pair.data(), gated.data(), dtype::f32, 2, n);
      for (std::size_t r = 0; r < 2; ++r)
        for (std::size_t i = 0; i < n; ++i) {
          double g = pair[r * 2 * n + i], u = pair[r * 2 * n + n + i];
          CHECK(gated[r * n + i] == doctest::Approx(g / (1 + std::exp(-g)) * u).epsilon(1e-5));
        }
    }
  });
}

TEST_CASE("rotate_half turns pairs half a head apart by position times frequency") {
  const std::array<float, 3> frequencies{1.0f, 0.1f, 0.01f};
  std::array<float, 3> c, s;
  rotary_angles(frequencies, 17, c.data(), s.data());
  auto head = random_floats(6, 4), before = head;
  rotate_half(head.data(), c.data(), s.data(), 3);
  for (int i = 0; i < 3; ++i) {
    double angle = 17.0 * double(frequencies[i]);
    CHECK(head[i] == doctest::Approx(before[i] * std::cos(angle) - before[i + 3] * std::sin(angle)).epsilon(1e-5));
    CHECK(head[i + 3] == doctest::Approx(before[i + 3] * std::cos(angle) + before[i] * std::sin(angle)).epsilon(1e-5));
  }
}

TEST_CASE("embed reads one row of a table of any type") {
  std::vector<float> table{1, 2, 3, 4, 5, 6};
  auto half = rounded(table);
  std::array<float, 2> row;
  embed(table.data(), dtype::f32, 1, row.data(), 2);
  CHECK(row == std::array<float, 2>{3, 4});
  embed(half.data(), dtype::bf16, 2, row.data(), 2);
  CHECK(row == std::array<float, 2>{5, 6});
}
