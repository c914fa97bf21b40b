#include "kernel/cpu/rows.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernel/cpu/convert.hpp"
#include "kernel/cpu/simd.hpp"

namespace cokv::kernel {

void add_bias(float* y, const float* bias, std::size_t rows, std::size_t n) {
  for (std::size_t r = 0; r < rows; ++r, y += n)
    for (std::size_t i = 0; i < n; ++i) y[i] += bias[i];
}

void embed(const void* table, dtype type, std::size_t index, float* out, std::size_t n) {
  to_floats(static_cast<const std::byte*>(table) + index * n * size_of(type), type, out, n);
}

void rotary_angles(std::span<const float> frequencies, std::uint32_t position, float* cosines, float* sines) {
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const float angle = static_cast<float>(position) * frequencies[i];
    cosines[i] = std::cos(angle), sines[i] = std::sin(angle);
  }
}

void rotate_half(float* head, const float* cosines, const float* sines, std::size_t half) {
  for (std::size_t i = 0; i < half; ++i) {
    const float a = head[i], b = head[half + i];
    head[i] = a * cosines[i] - b * sines[i];
    head[half + i] = b * cosines[i] + a * sines[i];
  }
}

void rotate_pairs(float* head, const float* cosines, const float* sines, std::size_t half) {
  for (std::size_t i = 0; i < half; ++i) {
    const float a = head[2 * i], b = head[2 * i + 1];
    head[2 * i] = a * cosines[i] - b * sines[i];
    head[2 * i + 1] = b * cosines[i] + a * sines[i];
  }
}

void convert(const float* from, void* to, dtype type, std::size_t n) {
  if (type == dtype::f32) return (void)std::copy_n(from, n, static_cast<float*>(to));
  for (std::size_t i = 0; i < n; ++i) {
    const bf16 h = to_bf16(from[i]);
    std::memcpy(static_cast<std::byte*>(to) + i * 2, &h, 2);
  }
}

}  // namespace cokv::kernel
