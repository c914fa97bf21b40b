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
  const auto half_to_float = [](std::uint16_t h) {
    float f = 0;
    to_floats(&h, dtype::f16, &f, 1);
    return f;
  };
  CHECK(to_float(to_bf16(1.0f)) == 1.0f);
  CHECK(to_bf16(to_float(bf16{0x3f80}) + 0.00390625f) == 0x3f80);  // a tie goes to the even one
  CHECK(to_bf16(to_float(bf16{0x3f81}) + 0.00390625f) == 0x3f82);
  CHECK(std::isnan(to_float(to_bf16(std::nanf("")))));
  CHECK(to_float(to_bf16(INFINITY)) == INFINITY);
  CHECK(half_to_float(0x3c00) == 1.0f);
  CHECK(half_to_float(0x8001) == -std::ldexp(1.0f, -24));
  CHECK(half_to_float(0x7bff) == 65504.0f);
  CHECK(std::isinf(half_to_float(0x7c00)));
  CHECK(half_to_float(0xfc00) == -INFINITY);
  CHECK(std::isnan(half_to_float(0x7e00)));
  for (std::uint32_t h = 0; h < 0x7c00; ++h) {  // every number there is
    const auto exponent = h >> 10, mantissa = h & 1023;
    const auto want = exponent == 0 ? std::ldexp(double(mantissa), -24)
                                    : std::ldexp(double(mantissa | 1024), static_cast<int>(exponent) - 25);
    REQUIRE(half_to_float(static_cast<std::uint16_t>(h)) == float(want));
  }
}

TEST_CASE("what is not finite is found in every type, wherever it is") {
  for (std::size_t n : {1, 7, 64, 131}) {
    auto x = random_floats(n, 3, 3e4f);
    auto half = rounded(x);
    std::vector<std::uint16_t> f16(n, 0x7bff);  // the largest finite one
    CHECK(all_finite(x.data(), dtype::f32, n));
    CHECK(all_finite(half.data(), dtype::bf16, n));
    CHECK(all_finite(f16.data(), dtype::f16, n));
    for (std::size_t at : {std::size_t{0}, n / 2, n - 1}) {
      auto a = x;
      auto b = half;
      auto c = f16;
      a[at] = -INFINITY, b[at] = 0x7fc0, c[at] = 0xfc00;
      CHECK_FALSE(all_finite(a.data(), dtype::f32, n));
      CHECK_FALSE(all_finite(b.data(), dtype::bf16, n));
      CHECK_FALSE(all_finite(c.data(), dtype::f16, n));
    }
  }
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

TEST_CASE("rotate_pairs turns neighbours") {
  const std::array<float, 2> frequencies{1.0f, 0.1f};
  std::array<float, 2> c, s;
  rotary_angles(frequencies, 5, c.data(), s.data());
  auto head = random_floats(6, 4), before = head;
  rotate_pairs(head.data(), c.data(), s.data(), 2);
  for (int i = 0; i < 2; ++i) {
    const double angle = 5.0 * double(frequencies[i]), a = before[2 * i], b = before[2 * i + 1];
    CHECK(head[2 * i] == doctest::Approx(a * std::cos(angle) - b * std::sin(angle)).epsilon(1e-5));
    CHECK(head[2 * i + 1] == doctest::Approx(b * std::cos(angle) + a * std::sin(angle)).epsilon(1e-5));
  }
  CHECK(head[4] == before[4]);  // what is not turned stays
  CHECK(head[5] == before[5]);
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
