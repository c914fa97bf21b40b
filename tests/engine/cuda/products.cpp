// Products on a CUDA device against sums in double: on stand-ins for CUDA and cuBLASLt in every build, and unchanged on a
// device with the library (label gpu).
#include "kernel/cuda/device_products.hpp"

#include <cmath>

#include "engine/cuda/library.hpp"
#include "engine/kernel/random.hpp"
#include "support/cuda_machine.hpp"

using namespace cokv;
using namespace cokv::kernel;
using namespace cokv::test;

namespace {

// Floats, or what they are rounded to, in memory of the device.
buffer on_device(cuda_machine& m, stream s, dtype type, const std::vector<float>& values) {
  return type == dtype::f32 ? test::on_device(m, s, values) : test::on_device(m, s, rounded(values));
}

std::vector<float> values_of(dtype type, std::size_t n, unsigned seed) {
  auto out = random_floats(n, seed);
  if (type == dtype::bf16)
    for (auto& v : out) v = to_float(to_bf16(v));
  return out;
}

}  // namespace

TEST_CASE("cuda products: y = x W^T, overwritten or added to, in both types and any shape") {
  unsigned seed = 0;
  if (!with_products([&](cuda_machine& m) {
        auto s = m.device.make_stream().value();
        auto products = products_on(s).value();
        const auto workspace = m.device.allocate(device_products::workspace_bytes).value();
        for (auto type : {dtype::bf16, dtype::f32})
          for (auto [rows, n, k] : {std::tuple{1, 64, 64}, {3, 40, 96}, {17, 130, 34}, {1, 7, 20}})
            for (bool accumulate : {false, true}) {
              CAPTURE(rows);
              CAPTURE(n);
              CAPTURE(k);
              const auto x = values_of(type, std::size_t(rows * k), ++seed),
                         w = values_of(type, std::size_t(n * k), ++seed),
                         y = values_of(dtype::f32, std::size_t(rows * n), ++seed);
              const auto far_x = on_device(m, s, type, x), far_w = on_device(m, s, type, w),
                         far_y = on_device(m, s, dtype::f32, y);
              const device_product p{type,
                                     std::size_t(rows),
                                     std::size_t(n),
                                     std::size_t(k),
                                     far_x.data(),
                                     far_w.data(),
                                     reinterpret_cast<float*>(far_y.data()),
                                     accumulate};
              const buffer uses[] = {far_x, far_w, far_y, workspace};
              REQUIRE(!s.launch_native("product", uses,
                                       [&](void* native) { return products.multiply(p, workspace, native); }));
              const auto got = back_from<float>(m, s, far_y);
              double worst = 0;
              for (int r = 0; r < rows; ++r)
                for (int c = 0; c < n; ++c) {
                  double sum = accumulate ? double(y[std::size_t(r * n + c)]) : 0;
                  for (int i = 0; i < k; ++i)
                    sum += double(x[std::size_t(r * k + i)]) * double(w[std::size_t(c * k + i)]);
                  worst = std::max(worst, std::abs(sum - double(got[std::size_t(r * n + c)])));
                }
              CHECK(worst < 1e-4);
            }
        CHECK(products.shapes() == 8);  // adding is no other shape
      }))
    MESSAGE("skipped: no cuBLASLt");
}

TEST_CASE("cuda products: what is no product is refused, and one of no rows is nothing") {
  with_products([](cuda_machine& m) {
    auto s = m.device.make_stream().value();
    auto products = products_on(s).value();
    const auto workspace = m.device.allocate(device_products::workspace_bytes).value();
    const auto memory = m.device.allocate(4096).value();
    auto* at = memory.data();
    const device_product good{dtype::bf16, 1, 16, 16, at, at + 1024, reinterpret_cast<float*>(at + 2048), false};
    auto refused = [&](auto change, const buffer& room) {
      auto p = good;
      change(p);
      error_code got;
      REQUIRE(!s.launch_native("product", {}, [&](void* native) { got = products.multiply(p, room, native); }));
      return got;
    };
    CHECK(refused([](device_product& p) { p.type = dtype::f16; }, workspace) == errc::invalid_argument);
    CHECK(refused([](device_product& p) { p.n = 0; }, workspace) == errc::invalid_argument);
    CHECK(refused([](device_product& p) { p.k = 0; }, workspace) == errc::invalid_argument);
    CHECK(refused([](device_product& p) { p.x = nullptr; }, workspace) == errc::invalid_argument);
    CHECK(refused([&](device_product& p) { p.w = at + 16; }, workspace) == errc::invalid_argument);
    CHECK(refused([](device_product& p) { p.y += 1; }, workspace) == errc::invalid_argument);
    CHECK(refused([](device_product&) {}, memory) == errc::invalid_argument);
    CHECK(!refused([](device_product& p) { p.rows = 0; }, workspace));
    CHECK(products.shapes() == 0);
    CHECK(!m.wait(s.record()));
  });
}

TEST_CASE("cuda products: taken one way for any number of rows, a row has the same bits") {
  with_products([](cuda_machine& m) { CHECK(same_however_many_rows(m, true)); });
}
