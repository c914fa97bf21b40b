// Bytes that tell their place, and whether bytes are the same: optimised, though the tests that use them are not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cokv/runtime/buffer.hpp"

namespace cokv::test {

std::byte byte_at(std::uint64_t i, std::uint64_t seed = 0);
buffer patterned(std::size_t n, std::uint64_t seed = 0);  // byte_at() every place
buffer blank(std::size_t n, int value = 0xdd);

bool same(std::span<const std::byte> a, std::span<const std::byte> b);
bool same(const buffer& a, const buffer& b);

}  // namespace cokv::test
