#include "kernel/cpu/matmul.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstring>

#include "engine/kernel/random.hpp"
#include "kernel/cpu/activation.hpp"

using namespace cokv;
using namespace cokv::kernel;
using namespace cokv::test;

namespace {

struct weights_of {
  weights_of(dtype type, std::size_t n, std::size_t k, unsigned seed) : type(type), values(random_floats(n * k, seed)) {
    if (type == dtype::bf16)
      for (auto& v : values) v = to_float(to_bf16(v));
    // In two parts and two source types, as fused projections come.
    const std::size_t first = n / 2;
    halves = rounded({values.begin(), values.begin() + static_cast<std::ptrdiff_t>(first * k)});
    std::array<matrix_rows, 2> parts{
        {{values.data(), dtype::f32, first, k}, {values.data() + first * k, dtype::f32, n - first, k}}};
    if (type == dtype::bf16) parts[0] = {halves.data(), dtype::bf16, first, k};
    packed = packed_matrix(type, k, parts);
  }
  std::vector<float> input(std::size_t m, unsigned seed) const {
    auto x = random_floats(m * packed.k(), seed);
    if (type == dtype::bf16)
      for (auto& v : x) v = to_float(to_bf16(v));
    return x;
  }
  void run(const std::vector<float>& x, std::vector<float>& y, std::size_t m, bool accumulate, matmul_path path) const {
    const auto h = rounded(x);
    const void* input = type == dtype::f32 ? static_cast<const void*>(x.data()) : h.data();
    matmul({.x = input, .w = &packed, .m = m, .path = path}, y.data(), accumulate ? into::adds : into::replaces);
  }
  double exact(const std::vector<float>& x, std::size_t row, std::size_t column) const {
    double total = 0;
    for (std::size_t i = 0; i < packed.k(); ++i)
      total += double(x[row * packed.k() + i]) * double(values[column * packed.k() + i]);
    return total;
  }
  dtype type;
  std::vector<float> values;
  std::vector<bf16> halves;
  packed_matrix packed;
};

}  // namespace

TEST_CASE("matmul equals a product in double precision on every path, for every shape") {
  each_isa([](isa level) {
    INFO("isa ", to_string(level));
    for (auto type : {dtype::f32, dtype::bf16})
      for (auto [n, k] : {std::pair{64, 32}, {100, 64}, {320, 256}, {7, 20}, {130, 34}}) {
        weights_of p(type, n, k, 7);
        for (std::size_t m : {1, 2, 3, 5, 16, 70, 131})
          for (auto path : {matmul_path::automatic, matmul_path::invariant, matmul_path::own, matmul_path::onednn}) {
            auto x = p.input(m, static_cast<unsigned>(m));
            auto y = poisoned(m * n);
            p.run(x, y, m, false, path);
            double worst = 0;
            bool finite = true;
            for (std::size_t r = 0; r < m; ++r)
              for (std::size_t c = 0; c < std::size_t(n); ++c) {
                finite &= std::isfinite(y[r * n + c]);
                worst = std::max(worst, std::abs(y[r * n + c] - p.exact(x, r, c)));
              }
            INFO("n ", n, " k ", k, " m ", m, " path ", int(path), " type ", to_string(type));
            CHECK(finite);
            CHECK(worst < 1e-6 * k);
          }
      }
  });
}

TEST_CASE("matmul accumulates onto what is there") {
  for (auto type : {dtype::f32, dtype::bf16})
    for (auto path : {matmul_path::own, matmul_path::onednn}) {
      weights_of p(type, 192, 64, 3);
      auto x = p.input(9, 1), plain = poisoned(9 * 192), sum = random_floats(9 * 192, 5), before = sum;
      p.run(x, plain, 9, false, path);
      p.run(x, sum, 9, true, path);
      bool same = true;
      for (std::size_t i = 0; i < sum.size(); ++i) same &= sum[i] == before[i] + plain[i];
      CHECK(same);
    }
}

TEST_CASE("a row of an invariant product has the same bits alone, in any batch and at any place in it") {
  each_isa([](isa level) {
    INFO("isa ", to_string(level));
    for (auto [type, n, k] : {std::tuple{dtype::f32, 512, 256},
                              {dtype::f32, 256, 640},
                              {dtype::f32, 2048, 256},
                              {dtype::f32, 100, 48},
                              {dtype::f32, 64, 4096},
                              {dtype::bf16, 256, 640},
                              {dtype::bf16, 100, 48},
                              {dtype::bf16, 64, 4096}}) {
      weights_of p(type, n, k, 11);
      const std::size_t most = 200;
      auto x = p.input(most, 2);
      for (auto path : {matmul_path::invariant, matmul_path::automatic}) {
        if (path == matmul_path::automatic && type == dtype::bf16) continue;
        auto all = poisoned(most * n);
        p.run(x, all, most, false, path);
        for (std::size_t m : {1, 2, 3, 7, 16, 64, 65, 129}) {
          bool same = true;
          for (std::size_t first = 0; first + m <= most; first += 57) {
            std::vector<float> part(x.begin() + std::ptrdiff_t(first * k), x.begin() + std::ptrdiff_t((first + m) * k));
            auto y = poisoned(m * n);
            p.run(part, y, m, false, path);
            same &= std::memcmp(y.data(), all.data() + first * n, m * n * sizeof(float)) == 0;
          }
          INFO(to_string(type), " n ", n, " k ", k, " m ", m);
          CHECK(same);
        }
      }
    }
  });
}

TEST_CASE("a product has a bias, and what an activation makes of it is what it makes of the sums") {
  each_isa([](isa level) {
    INFO("isa ", to_string(level));
    for (auto type : {dtype::f32, dtype::bf16})
      // Halves that end with a panel, within one, and behind several tiles.
      for (auto [n, k] : {std::pair<std::size_t, std::size_t>{128, 64}, {640, 32}, {1664, 64}, {100, 34}, {200, 64}})
        for (std::size_t m : {1, 5, 16, 131})
          for (bool gated : {false, true}) {
            INFO(to_string(type), " n ", n, " k ", k, " m ", m, " gated ", gated);
            weights_of p(type, n, k, 3);
            const auto x = p.input(m, 1);
            const auto h = rounded(x);
            const void* input = type == dtype::f32 ? static_cast<const void*>(x.data()) : h.data();
            const auto bias = random_floats(n, 9);
            const product what{.x = input, .w = &p.packed, .m = m, .bias = bias, .path = matmul_path::invariant};
            auto sums = poisoned(m * n), plain = poisoned(m * n);
            matmul(what, sums.data());
            p.run(x, plain, m, false, matmul_path::invariant);
            bool biased = true;
            for (std::size_t i = 0; i < sums.size(); ++i) biased &= sums[i] == plain[i] + bias[i % n];
            CHECK(biased);

            const auto out = gated ? n / 2 : n;
            for (auto to : {dtype::f32, dtype::bf16}) {
              std::vector<std::byte> got(m * out * size_of(to), std::byte{0xff}), want(got.size());
              matmul_activated(what, {gated, activation::relu}, got.data(), to);
              for (std::size_t r = 0; r < m; ++r)
                if (gated)
                  silu_gate(&sums[r * n], &sums[r * n + out], &want[r * out * size_of(to)], to, out);
                else
                  activate(activation::relu, &sums[r * n], &want[r * out * size_of(to)], to, out);
              CHECK(got == want);
            }
          }
  });
}

TEST_CASE("a matrix that is stored transposed is packed as the same bytes") {
  for (auto type : {dtype::f32, dtype::bf16})
    for (auto [n, k] : {std::pair<std::size_t, std::size_t>{192, 64}, {100, 34}}) {
      auto values = random_floats(n * k, 5);
      std::vector<float> transposed(n * k);
      for (std::size_t r = 0; r < n; ++r)
        for (std::size_t c = 0; c < k; ++c) transposed[c * n + r] = values[r * k + c];
      auto half = rounded(transposed);
      auto rounded_values = values;
      for (auto& v : rounded_values) v = to_float(to_bf16(v));
      const matrix_rows as_rows{values.data(), dtype::f32, n, k}, as_columns{transposed.data(), dtype::f32, n, 1, n};
      const matrix_rows half_rows{rounded_values.data(), dtype::f32, n, k},
          half_columns{half.data(), dtype::bf16, n, 1, n};
      for (auto& [a, b] : {std::pair(as_rows, as_columns), std::pair(half_rows, half_columns)}) {
        packed_matrix x(type, k, {&a, 1}), y(type, k, {&b, 1});
        REQUIRE(x.bytes() == y.bytes());
        CHECK(std::memcmp(x.panel(0), y.panel(0), x.bytes()) == 0);
      }
    }
}
