// Little-endian numbers in byte arrays, for what is written to disk and sent.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

namespace cokv::detail {

template <std::unsigned_integral T>
void put(std::byte* at, T value) noexcept {
  for (std::size_t i = 0; i < sizeof(T); ++i) at[i] = static_cast<std::byte>(value >> (8 * i));
}

template <std::unsigned_integral T>
T get(const std::byte* at) noexcept {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) value |= static_cast<T>(static_cast<T>(at[i]) << (8 * i));
  return value;
}

template <std::unsigned_integral T>
void append(std::vector<std::byte>& out, T value) {
  out.resize(out.size() + sizeof(T));
  put(out.data() + out.size() - sizeof(T), value);
}

inline void append(std::vector<std::byte>& out, std::span<const std::byte> bytes) {
  out.insert(out.end(), bytes.begin(), bytes.end());
}

}  // namespace cokv::detail
