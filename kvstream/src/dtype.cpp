#include "cokv/kvstream/dtype.hpp"

#include <array>
#include <utility>

namespace cokv {
namespace {

constexpr std::array<std::pair<dtype, std::string_view>, 6> names{{{dtype::f32, "f32"},
                                                                   {dtype::f16, "f16"},
                                                                   {dtype::bf16, "bf16"},
                                                                   {dtype::fp8_e4m3, "fp8_e4m3"},
                                                                   {dtype::fp8_e5m2, "fp8_e5m2"},
                                                                   {dtype::u8, "u8"}}};

}  // namespace

std::string_view to_string(dtype t) noexcept {
  for (auto& [type, name] : names)
    if (type == t) return name;
  return "unknown";
}

std::optional<dtype> parse_dtype(std::string_view name) noexcept {
  for (auto& [type, text] : names)
    if (text == name) return type;
  return std::nullopt;
}

}  // namespace cokv
