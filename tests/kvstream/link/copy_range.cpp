#include "link/copy_range.hpp"

#include <doctest/doctest.h>

#include <random>

using namespace cokv;
using namespace cokv::detail;

namespace {

buffer noise(std::size_t n, std::uint64_t seed) {
  auto out = buffer::host(n);
  std::mt19937_64 random(seed);
  for (auto& b : out.bytes()) b = static_cast<std::byte>(random());
  return out;
}

// All of it in pieces of which some are empty, some a few bytes and some larger than what is fetched ahead.
std::vector<buffer> cut(const buffer& whole, std::mt19937_64& random) {
  constexpr std::size_t sizes[] = {0, 1, 63, 64, 100, 2047, 2048, 4096, 5000, 65536, 65537, 70'000};
  std::vector<buffer> out;
  for (std::size_t at = 0; at < whole.size(); at += out.back().size())
    out.push_back(whole.slice(at, std::min(sizes[random() % std::size(sizes)], whole.size() - at)));
  return out;
}

}  // namespace

TEST_CASE("copy_range: bytes and digest are those of the whole, however both sides are cut and wherever it begins") {
  std::mt19937_64 random(1);
  const auto from = noise(300'000, 2);
  for (int round = 0; round < 60; ++round) {
    const std::size_t skip = random() % 70'000, n = round == 0 ? 0 : random() % (from.size() - skip);
    auto into = buffer::host(from.size());
    for (auto& b : into.bytes()) b = std::byte{0xee};
    const auto source = cut(from, random), target = cut(into, random);
    piece_cursor reads(source), writes(target);
    reads.advance(skip);
    writes.advance(skip);
    digest_state digest;
    copy_range(round % 2 ? &digest : nullptr, writes, reads, n);
    CHECK(std::equal(into.data() + skip, into.data() + skip + n, from.data() + skip));
    const auto untouched = [](std::byte b) { return b == std::byte{0xee}; };
    CHECK(std::all_of(into.data(), into.data() + skip, untouched));
    CHECK(std::all_of(into.data() + skip + n, into.data() + into.size(), untouched));
    const auto expected = digest_of(from.bytes().subspan(skip, n));
    if (round % 2) CHECK(digest.value() == expected);
    if (skip + n < from.size()) CHECK(reads.here().data() == from.data() + skip + n);

    piece_cursor again(target);
    again.advance(skip);
    digest_state read;
    digest_range(read, again, n);
    CHECK(read.value() == expected);
    if (skip + n < into.size()) CHECK(again.here().data() == into.data() + skip + n);
  }
}
