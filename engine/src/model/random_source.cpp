#include "model/random_source.hpp"

#include <algorithm>
#include <cstring>
#include <functional>

namespace cokv {
namespace {

constexpr std::size_t shifts = 64;  // places where a tensor may begin, in elements: equal matrices lie apart

std::uint64_t mixed(std::uint64_t x) noexcept {  // SplitMix64's finalizer
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

template <class Bits>
void fill(std::vector<std::byte>& out, std::uint64_t seed, unsigned mantissa, Bits exponent) {
  constexpr std::size_t sign = sizeof(Bits) * 8 - 1;
  for (std::size_t at = 0; at + sizeof(Bits) <= out.size(); at += sizeof(Bits)) {
    const auto r = mixed(seed += 0x9e3779b97f4a7c15u);
    const Bits bits =
        static_cast<Bits>((r >> 63) << sign | Bits(exponent << mantissa) | (r & ((Bits{1} << mantissa) - 1)));
    std::memcpy(out.data() + at, &bits, sizeof bits);
  }
}

// One, in each type.
std::uint32_t one(dtype type) noexcept {
  return type == dtype::f32 ? 0x3f800000u : type == dtype::bf16 ? 0x3f80u : 0x3c00u;
}

}  // namespace

std::uint64_t random_source::bytes_for(const model_config& c, dtype type) noexcept {
  const std::uint64_t h = c.hidden, q = std::uint64_t{c.heads} * c.head_dim;
  const std::uint64_t embedding = std::uint64_t{c.vocab} * c.embedding_dim,
                      positions = (std::uint64_t{c.max_positions} + c.position_offset) * h,
                      layer = h * std::max({3 * q, std::uint64_t{2} * c.intermediate, h});
  return size_of(type) * (embedding + (c.positions == position_type::learned ? positions : 0) + layer);
}

const std::byte* random_source::numbers(std::size_t bytes) {
  if (!largest_ || largest_->size() < bytes) {
    auto& fresh = memory_->emplace_back(std::make_unique<block>(bytes));
    if (type_ == dtype::f32)
      fill<std::uint32_t>(*fresh, seed_, 23, 121);
    else if (type_ == dtype::bf16)
      fill<std::uint16_t>(*fresh, seed_, 7, 121);
    else
      fill<std::uint16_t>(*fresh, seed_, 10, 9);
    largest_ = fresh.get();
  }
  return largest_->data();
}

tensor_view random_source::tensor(const std::string& name, std::initializer_list<std::uint64_t> shape) {
  tensor_view out{.type = type_, .shape = shape};
  std::size_t n = 1;
  for (auto d : shape) n *= static_cast<std::size_t>(d);
  const auto size = size_of(type_);
  if (shape.size() > 1) {
    const auto shift = std::hash<std::string>()(name) % shifts * size;
    out.bytes = {numbers((n + shifts) * size) + shift, n * size};
    return out;
  }
  auto& own = *memory_->emplace_back(std::make_unique<block>(n * size));
  const std::uint32_t value = name.ends_with(".bias") ? 0 : one(type_);  // its low bytes
  for (std::size_t i = 0; i < n; ++i) std::memcpy(own.data() + i * size, &value, size);
  out.bytes = own;
  return out;
}

}  // namespace cokv
