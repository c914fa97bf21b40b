#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "cokv/kvstream/digest.hpp"
#include "kvstream/hex.hpp"

using namespace cokv;

namespace {

std::vector<std::byte> pattern(std::size_t n) {
  std::vector<std::byte> out(n);
  for (std::size_t i = 0; i < n; ++i) out[i] = static_cast<std::byte>(i * 31 + (i >> 8) * 7);
  return out;
}

void append(std::vector<std::byte>& out, std::uint64_t value) {
  for (int i = 0; i < 8; ++i) out.push_back(static_cast<std::byte>(value >> (8 * i)));
}

// What is digested in the end, as the definition says it.
std::vector<std::byte> leaves_and_length(std::span<const std::byte> bytes) {
  std::vector<std::byte> out;
  for (std::size_t at = 0; at < bytes.size(); at += 4096) {
    std::vector<std::byte> leaf(4096);
    std::ranges::copy(bytes.subspan(at, std::min<std::size_t>(4096, bytes.size() - at)), leaf.begin());
    append(out, digest_of(leaf));
  }
  append(out, bytes.size());
  return out;
}

}  // namespace

TEST_CASE("tree digest: golden values, made with another implementation of XXH3") {
  const std::pair<std::size_t, std::uint64_t> golden[] = {{0, 0xc77b3abb6f87acd9},     {1, 0x1c68fec74f074377},
                                                          {4095, 0x88cb7f267a93b7bd},  {4096, 0x2b8fc8a81711ef3e},
                                                          {4097, 0x879054b3e3bdd772},  {8192, 0x978e987bd0f2e9b},
                                                          {10000, 0xcc9ebbd7b7b7ea66}, {1 << 20, 0x8423f4119747587d}};
  for (const auto& [n, value] : golden) {
    CAPTURE(n);
    CHECK(tree_digest_of(pattern(n)) == value);
  }
  const auto bytes = pattern(5000);
  auto all = leaves_and_length(bytes);
  append(all, tree_digest_of(bytes));
  CHECK(to_hex(all) == golden_hex("tree digest"));
}

TEST_CASE("tree digest: it is what its definition says, for every length, and however the bytes are cut and copied") {
  std::mt19937 random(1);
  for (int round = 0; round < 400; ++round) {
    static constexpr std::size_t lengths[] = {0, 1, 4095, 4096, 4097, 8191, 8192, 8193, 12288};
    const auto n = round < 9 ? lengths[round] : random() % 40'000;
    CAPTURE(n);
    std::vector<std::byte> bytes(n), copy(n);
    for (auto& b : bytes) b = static_cast<std::byte>(random());
    const auto right = digest_of(leaves_and_length(bytes));
    CHECK(tree_digest_of(bytes) == right);

    tree_digest_state updated, copied;
    for (std::size_t at = 0; at < n;) {
      const auto some = std::min<std::size_t>(n - at, random() % (round % 2 ? 9000 : 300));
      updated.update(std::span(bytes).subspan(at, some));
      copied.copy(std::span(copy).subspan(at, some), std::span(bytes).subspan(at, some));
      at += some;
      if (random() % 16 == 0) CHECK(updated.value() == tree_digest_of(std::span(bytes).first(at)));
    }
    CHECK(updated.value() == right);
    CHECK(copied.value() == right);
    CHECK(copy == bytes);
    updated.reset();
    CHECK(updated.value() == tree_digest_of(std::span<const std::byte>()));

    std::vector<std::uint64_t> leaves;
    for (std::size_t at = 0; at < n; at += tree_leaf_bytes)
      leaves.push_back(tree_leaf_of(std::span(bytes).subspan(at, std::min(tree_leaf_bytes, n - at))));
    CHECK(tree_digest_of(leaves, n) == right);
  }
}

TEST_CASE(
    "tree digest: zeros that are there and zeros that fill up are told apart, and so are leaves in another order") {
  const std::vector<std::byte> zeros(8192);
  CHECK(tree_digest_of(std::span(zeros).first(4095)) != tree_digest_of(std::span(zeros).first(4096)));
  CHECK(tree_digest_of(std::span(zeros).first(4096)) != tree_digest_of(zeros));
  auto bytes = pattern(8192);
  const auto right = tree_digest_of(bytes);
  std::rotate(bytes.begin(), bytes.begin() + 4096, bytes.end());
  CHECK(tree_digest_of(bytes) != right);
}
