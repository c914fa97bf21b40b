// XXH3-64 of exactly 4096 bytes, a tree digest's leaf, cut so that eight threads make it: one for each of the eight
// accumulators that the long form has. Compiled for the host and for devices. The arithmetic is that of the XXH3 part of
// xxHash's specification (doc/xxhash_spec.md), with its default secret and seed 0.
#pragma once

#include <cstdint>

#include "cokv/runtime/detail/on_device.hpp"

namespace cokv::detail {

constexpr std::uint32_t leaf_bytes = 4096, leaf_words = leaf_bytes / 8, leaf_lanes = 8, secret_words = 24;

COKV_ON_DEVICE std::uint64_t secret_word(std::uint32_t i) {
  static constexpr std::uint64_t words[secret_words] = {
      0xbe4ba423396cfeb8u, 0x1cad21f72c81017cu, 0xdb979083e96dd4deu, 0x1f67b3b7a4a44072u, 0x78e5c0cc4ee679cbu,
      0x2172ffcc7dd05a82u, 0x8e2443f7744608b8u, 0x4c263a81e69035e0u, 0xcb00c391bb52283cu, 0xa32e531b8b65d088u,
      0x4ef90da297486471u, 0xd8acdea946ef1938u, 0x3f349ce33f76faa8u, 0x1d4f0bc7c7bbdcf9u, 0x3159b4cd4be0518au,
      0x647378d9c97e9fc8u, 0xc3ebd33483acc5eau, 0xeb6313faffa081c5u, 0x49daf0b751dd0d17u, 0x9e68d429265516d3u,
      0xfca1477d58be162bu, 0xce31d07ad1b8f88fu, 0x280416958f3acb45u, 0x7e404bbbcafbd7afu};
  return words[i];
}

// Of the secret's bytes, from one that need not begin a word.
COKV_ON_DEVICE std::uint64_t secret_at(const std::uint64_t* secret, std::uint32_t byte) {
  const std::uint32_t i = byte / 8, shift = byte % 8 * 8;
  return shift == 0 ? secret[i] : secret[i] >> shift | secret[i + 1] << (64 - shift);
}

COKV_ON_DEVICE std::uint64_t first_sum(std::uint32_t lane) {
  static constexpr std::uint64_t sums[leaf_lanes] = {0xc2b2ae3du,         0x9e3779b185ebca87u, 0xc2b2ae3d27d4eb4fu,
                                                     0x165667b19e3779f9u, 0x85ebca77c2b2ae63u, 0x85ebca77u,
                                                     0x27d4eb2f165667c5u, 0x9e3779b1u};
  return sums[lane];
}

// A lane's accumulator after the whole leaf: three blocks of 16 stripes with a scramble each, and 15 stripes and the
// last one, which has a place of its own in the secret.
COKV_ON_DEVICE std::uint64_t leaf_lane(const std::uint64_t* leaf, const std::uint64_t* secret, std::uint32_t lane) {
  std::uint64_t sum = first_sum(lane);
  auto take = [&](std::uint32_t stripe, std::uint64_t key) {
    const auto mixed = leaf[stripe * leaf_lanes + lane] ^ key;
    sum += leaf[stripe * leaf_lanes + (lane ^ 1)] + (mixed & 0xffffffffu) * (mixed >> 32);
  };
  for (std::uint32_t stripe = 0; stripe < 63; ++stripe) {
    take(stripe, secret[stripe % 16 + lane]);
    if (stripe % 16 == 15) sum = (sum ^ sum >> 47 ^ secret[16 + lane]) * 0x9e3779b1u;
  }
  take(63, secret_at(secret, 121 + 8 * lane));
  return sum;
}

COKV_ON_DEVICE std::uint64_t folded_product(std::uint64_t a, std::uint64_t b) {
#if defined(__CUDA_ARCH__)
  return a * b ^ __umul64hi(a, b);
#else
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
#endif
}

// The leaf's digest of its eight accumulators.
COKV_ON_DEVICE std::uint64_t leaf_digest(const std::uint64_t* sums, const std::uint64_t* secret) {
  std::uint64_t all = leaf_bytes * 0x9e3779b185ebca87u;
  for (std::uint32_t i = 0; i < leaf_lanes; i += 2)
    all += folded_product(sums[i] ^ secret_at(secret, 11 + 8 * i), sums[i + 1] ^ secret_at(secret, 19 + 8 * i));
  all = (all ^ all >> 37) * 0x165667919e3779f9u;
  return all ^ all >> 32;
}

}  // namespace cokv::detail
