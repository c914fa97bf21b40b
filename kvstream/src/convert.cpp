#include "cokv/kvstream/convert.hpp"

#include <bit>
#include <cstring>
#include <type_traits>

namespace cokv {
namespace {

struct bf16_bits {
  std::uint16_t bits;
};
struct f16_bits {
  std::uint16_t bits;
};

constexpr std::uint32_t magnitude = 0x7fffffffu, infinite = 0x7f800000u;

float value_of(float f) { return f; }
float value_of(bf16_bits h) { return std::bit_cast<float>(std::uint32_t{h.bits} << 16); }
// Exponent and mantissa at a float's places are the value times 2^-112, also where it is subnormal.
float value_of(f16_bits h) {
  const float scaled = std::bit_cast<float>((std::uint32_t{h.bits} & 0x7fffu) << 13) * 0x1p112f;
  const auto special = (h.bits & 0x7c00u) == 0x7c00u ? infinite : 0u;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) | special | (std::uint32_t{h.bits} & 0x8000u) << 16);
}

void put(float f, float& to) { to = f; }
void put(float f, bf16_bits& to) {
  const auto bits = std::bit_cast<std::uint32_t>(f);
  const auto rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  to.bits = static_cast<std::uint16_t>((bits & magnitude) > infinite ? (bits >> 16 | 0x40u) : rounded);
}
// Below 2^-14 the places of a half are those of a sum with 1/2 that is rounded by the adder; above, its exponent is 112
// less and thirteen places are rounded away. From 65520 on it is infinite.
void put(float f, f16_bits& to) {
  const auto bits = std::bit_cast<std::uint32_t>(f), sign = bits >> 16 & 0x8000u, size = bits & magnitude;
  const auto small =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(size) + 0.5f) - std::bit_cast<std::uint32_t>(0.5f);
  const auto normal = (size - (112u << 23) + 0xfffu + (size >> 13 & 1u)) >> 13;
  auto half = size < 113u << 23 ? small : normal;
  half = size >= 0x477ff000u ? 0x7c00u : half;
  half = size > infinite ? 0x7e00u : half;
  to.bits = static_cast<std::uint16_t>(sign | half);
}

bool is_infinite(float f) { return (std::bit_cast<std::uint32_t>(f) & magnitude) == infinite; }

template <class From, class To>
bool each(const std::byte* from, std::byte* to, std::size_t n) noexcept {
  unsigned lost = 0;
  for (std::size_t i = 0; i < n; ++i) {
    From one;
    std::memcpy(&one, from + i * sizeof(From), sizeof(From));
    To other;
    const float f = value_of(one);
    put(f, other);
    std::memcpy(to + i * sizeof(To), &other, sizeof(To));
    if constexpr (!std::is_same_v<To, float>)
      lost |= static_cast<unsigned>(is_infinite(value_of(other))) & static_cast<unsigned>(!is_infinite(f));
  }
  return lost == 0;
}

template <class From>
bool from_type(const std::byte* from, std::byte* to, std::size_t n, dtype type) noexcept {
  switch (type) {
    case dtype::f16:
      return each<From, f16_bits>(from, to, n);
    case dtype::bf16:
      return each<From, bf16_bits>(from, to, n);
    default:
      return each<From, float>(from, to, n);
  }
}

}  // namespace

bool convertible(dtype t) noexcept { return t == dtype::f32 || t == dtype::f16 || t == dtype::bf16; }

bool convert(std::span<const std::byte> from, dtype type, std::span<std::byte> to, dtype to_type) noexcept {
  const auto n = from.size() / size_of(type);
  switch (type) {
    case dtype::f16:
      return from_type<f16_bits>(from.data(), to.data(), n, to_type);
    case dtype::bf16:
      return from_type<bf16_bits>(from.data(), to.data(), n, to_type);
    default:
      return from_type<float>(from.data(), to.data(), n, to_type);
  }
}

}  // namespace cokv
