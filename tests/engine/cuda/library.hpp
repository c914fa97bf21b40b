// cuBLASLt and the engine's kernels for tests that hold with them and with their stand-ins.
#pragma once

#include <functional>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "engine/kernel/random.hpp"
#include "kernel/cuda/device_kernels.hpp"
#include "kernel/cuda/device_products.hpp"
#include "support/cuda_machine.hpp"

namespace cokv::test {

// As on_cuda; false where there is no library.
bool with_products(const std::function<void(cuda_machine&)>& body);

// Opened for the stream's device.
inline result<kernel::device_products> products_on(stream s, bool batch_invariant = false) {
  std::optional<result<kernel::device_products>> made;
  if (auto ec = s.launch_native("cublas", {}, [&](void*) { made = kernel::device_products::open(batch_invariant); }))
    return ec;
  return std::move(*made);
}

// Values in memory of the device, and back.
template <class T>
buffer on_device(cuda_machine& m, stream s, std::span<const T> values) {
  const auto bytes = std::max<std::size_t>(values.size_bytes(), 1);
  auto near = m.device.allocate(bytes, memory_kind::pinned).value(), far = m.device.allocate(bytes).value();
  std::copy(values.begin(), values.end(), reinterpret_cast<T*>(near.data()));
  REQUIRE(!s.copy(far, near));
  return far;
}
template <class T>
buffer on_device(cuda_machine& m, stream s, const std::vector<T>& values) {
  return on_device(m, s, std::span<const T>(values));
}
template <class T>
std::vector<T> back_from(cuda_machine& m, stream s, const buffer& far) {
  auto near = m.device.allocate(far.size(), memory_kind::pinned).value();
  REQUIRE(!s.copy(near, far));
  REQUIRE(!m.wait(s.record()));
  const auto* first = reinterpret_cast<const T*>(near.data());
  return {first, first + far.size() / sizeof(T)};
}
template <class T>
T* at(const buffer& b) {
  return reinterpret_cast<T*>(b.data());
}

// As on_cuda, with the kernels opened for the device of a stream, and other random numbers each time.
using kernel_test = std::function<void(cuda_machine&, stream, const kernel::device_kernels&, std::mt19937&)>;
void with_kernels(const kernel_test& body);

// The same for what needs products too: false where there is no library. all: worth
// trying everything at once; on a stand-in a machine is one of many, and slow.
bool with_decoders(const std::function<void(cuda_machine&, std::mt19937&, bool all)>& body);

// Whether the first rows of 130 have the same bits in products of fewer.
inline bool same_however_many_rows(cuda_machine& m, bool batch_invariant) {
  constexpr std::size_t n = 96, k = 64, most = 130;
  auto s = m.device.make_stream().value();
  auto products = products_on(s, batch_invariant).value();
  const auto workspace = m.device.allocate(kernel::device_products::workspace_bytes).value();
  const auto x = on_device(m, s, random_floats(most * k, 1)), w = on_device(m, s, random_floats(n * k, 2)),
             y = on_device(m, s, std::vector<float>(most * n));
  std::vector<float> all;
  for (auto rows : {most, most - 1, std::size_t{64}, std::size_t{3}, std::size_t{1}}) {
    const kernel::device_product p{dtype::f32, rows, n, k, x.data(), w.data(), at<float>(y), false};
    const buffer uses[] = {x, w, y, workspace};
    REQUIRE(!s.launch_native("product", uses, [&](void* native) { return products.multiply(p, workspace, native); }));
    const auto got = back_from<float>(m, s, y);
    if (all.empty()) all = got;
    if (!std::equal(got.begin(), got.begin() + std::ptrdiff_t(rows * n), all.begin())) return false;
  }
  return true;
}

inline result<kernel::device_kernels> kernels_on(stream s) {
  std::optional<result<kernel::device_kernels>> made;
  if (auto ec = s.launch_native("kernels", {}, [&](void*) { made = kernel::device_kernels::open(); })) return ec;
  return std::move(*made);
}

}  // namespace cokv::test
