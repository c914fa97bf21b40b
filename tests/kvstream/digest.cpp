#include "cokv/kvstream/digest.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

using namespace cokv;

namespace {

std::vector<std::byte> noise(std::size_t n, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::vector<std::byte> out(n);
  for (auto& b : out) b = static_cast<std::byte>(random());
  return out;
}

constexpr copy_path all_paths[] = {copy_path::automatic, copy_path::memcpy, copy_path::stream_sse2,
                                   copy_path::stream_avx2, copy_path::stream_avx512};

}  // namespace

TEST_CASE("digest: XXH3-64 as published") {
  CHECK(digest_of(std::span<const std::byte>()) == 0x2d06800538d394c2u);
  CHECK(digest_of(std::as_bytes(std::span("a", 1))) == 0xe6c632b61e964e1fu);
  CHECK(digest_of(std::as_bytes(std::span("abc", 3))) == 0x78af5f94892f3950u);
}

TEST_CASE("digest: the copy is exact and the digest the same, for every length and misalignment") {
  auto from = noise(4096 + 64);
  auto check = [&](std::size_t n, std::size_t skew_from, std::size_t skew_into, copy_path path) {
    std::vector<std::byte> storage(n + 256, std::byte{0xee});
    auto* base = storage.data() + (-reinterpret_cast<std::uintptr_t>(storage.data()) & 63) + 64;
    auto source = std::span(from).subspan(skew_from, n);
    std::span<std::byte> target(base + skew_into, n);
    auto value = copy_digest(target, source, path);
    bool same = std::equal(source.begin(), source.end(), target.begin());
    auto outside = [&](const std::byte* a, const std::byte* b) {
      return std::all_of(a, b, [](std::byte x) { return x == std::byte{0xee}; });
    };
    bool inside = outside(storage.data(), target.data()) && outside(target.data() + n, storage.data() + storage.size());
    if (!(same && inside && value == digest_of(source))) {
      CAPTURE(n);
      CAPTURE(skew_from);
      CAPTURE(skew_into);
      CAPTURE(static_cast<int>(path));
      CHECK(false);
    }
  };
  for (auto path : all_paths) {
    for (std::size_t n = 0; n <= 260; ++n)
      for (std::size_t skew = 0; skew < 64; skew += 7) check(n, skew, (skew * 3) % 64, path);
    for (std::size_t skew = 0; skew < 64; ++skew) check(1000 + skew, skew % 5, skew, path);
  }
}

TEST_CASE("digest: long copies are streamed, across piece boundaries") {
  auto from = noise(300'000);
  for (auto path : all_paths)
    for (std::size_t n : {16'383u, 16'384u, 16'385u, 32'768u + 17u, 299'000u}) {
      std::vector<std::byte> into(n);
      auto source = std::span(from).subspan(3, n);
      CHECK(copy_digest(into, source, path) == digest_of(source));
      CHECK(std::equal(into.begin(), into.end(), source.begin()));
      std::fill(into.begin(), into.end(), std::byte{});
      copy_bytes(into, source, path);
      CHECK(std::equal(into.begin(), into.end(), source.begin()));
    }
}

TEST_CASE("digest: pieces digest as their concatenation, however it is cut") {
  auto all = noise(50'000, 2);
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::span<const std::byte>> pieces;
    std::vector<std::span<std::byte>> targets;
    std::vector<std::byte> packed(all.size()), unpacked(all.size());
    for (std::size_t at = 0; at < all.size();) {
      auto n = std::min<std::size_t>(random() % (round % 2 ? 20'000 : 900), all.size() - at);
      pieces.push_back(std::span(all).subspan(at, n));
      targets.push_back(std::span(unpacked).subspan(at, n));
      at += n;
    }
    CHECK(digest_of(pieces) == digest_of(all));
    CHECK(gather_digest(packed, pieces) == digest_of(all));
    CHECK(packed == all);
    CHECK(scatter_digest(targets, packed) == digest_of(all));
    CHECK(unpacked == all);
  }
}

TEST_CASE("digest: a state can be copied, read and gone on with") {
  auto all = noise(3000, 4);
  digest_state d;
  d.update(std::span(all).first(1000));
  auto middle = d;
  CHECK(middle.value() == digest_of(std::span(all).first(1000)));
  middle.update(std::span(all).subspan(1000));
  CHECK(middle.value() == digest_of(all));
  CHECK(d.value() == digest_of(std::span(all).first(1000)));
  d.reset();
  CHECK(d.value() == digest_of(std::span<const std::byte>()));
}

TEST_CASE("digest: a state works at any address, and copies between addresses") {
  auto all = noise(5000, 6);
  std::vector<std::byte> storage(3 * sizeof(digest_state) + 256);
  for (std::size_t skew = 0; skew < 64; skew += alignof(digest_state)) {
    auto* a = ::new (storage.data() + skew) digest_state;
    a->update(std::span(all).first(1234));
    auto* b = ::new (storage.data() + sizeof(digest_state) + 64 + (skew * 3) % 64) digest_state(*a);
    digest_state c;
    c = *b;
    a->update(std::span(all).subspan(1234));
    c.update(std::span(all).subspan(1234));
    CHECK(a->value() == digest_of(all));
    CHECK(c.value() == digest_of(all));
    CHECK(b->value() == digest_of(std::span(all).first(1234)));
  }
}

TEST_CASE("digest: every flipped bit shows") {
  auto bytes = noise(700, 5);
  auto good = digest_of(bytes);
  for (std::size_t i = 0; i < bytes.size() * 8; ++i) {
    bytes[i / 8] ^= static_cast<std::byte>(1 << (i % 8));
    if (digest_of(bytes) == good) CHECK(i == ~std::size_t{0});
    bytes[i / 8] ^= static_cast<std::byte>(1 << (i % 8));
  }
  CHECK(digest_of(bytes) == good);
}
