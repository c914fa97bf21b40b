#include "support/bytes.hpp"

#include <cstring>

namespace cokv::test {

std::byte byte_at(std::uint64_t i, std::uint64_t seed) {
  return static_cast<std::byte>(((i + 1) * 0x9E3779B97F4A7C15ull + seed * 0xBF58476D1CE4E5B9ull) >> 56);
}

buffer patterned(std::size_t n, std::uint64_t seed) {
  buffer b = buffer::host(n);
  for (std::size_t i = 0; i < n; ++i) b.data()[i] = byte_at(i, seed);
  return b;
}

buffer blank(std::size_t n, int value) {
  buffer b = buffer::host(n);
  std::memset(b.data(), value, n);
  return b;
}

bool same(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}
bool same(const buffer& a, const buffer& b) { return same(a.bytes(), b.bytes()); }

}  // namespace cokv::test
