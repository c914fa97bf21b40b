// The element types that KV and weights come in, with their sizes and the names used in namespaces and on command
// lines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace cokv {

enum class dtype : std::uint8_t { f32 = 1, f16 = 2, bf16 = 3, fp8_e4m3 = 4, fp8_e5m2 = 5, u8 = 6 };

// Bytes an element takes.
constexpr std::size_t size_of(dtype t) noexcept {
  switch (t) {
    case dtype::f32:
      return 4;
    case dtype::f16:
    case dtype::bf16:
      return 2;
    case dtype::fp8_e4m3:
    case dtype::fp8_e5m2:
    case dtype::u8:
      return 1;
  }
  return 0;
}

std::string_view to_string(dtype t) noexcept;
std::optional<dtype> parse_dtype(std::string_view name) noexcept;

}  // namespace cokv
