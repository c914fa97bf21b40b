#include "cokv/kvstream/block_places.hpp"

#include <doctest/doctest.h>

#include "cokv/runtime/error.hpp"
#include "hex.hpp"

using namespace cokv;

namespace {

block_key key_of(std::uint8_t i) {
  block_key k;
  k.bytes.fill(static_cast<std::byte>(0xa0 + i));
  return k;
}

stream_begin asked(std::size_t keys = 3) {
  stream_begin out{.ns = {}, .generation = 7, .layout = {{8, 4}}, .keys = {}};
  for (std::size_t i = 0; i < keys; ++i) out.keys.push_back(key_of(static_cast<std::uint8_t>(i)));
  return out;
}

block_places sample() {
  return {.memory = 0x1122334455667788,
          .generation = 7,
          .layers = 2,
          .lives = {5, 6},
          .places = {{0, 0xaa}, {64, 0xbb}, {8, 0xcc}, {72, 0xdd}}};
}

}  // namespace

TEST_CASE("block places: the bytes are golden, and those of the protocol's document") {
  const auto bytes = sample().encode();
  CHECK(to_hex(bytes) == golden_hex("places"));
  CHECK(bytes.size() == block_places::encoded_bytes(2, 2));
  const auto back = block_places::decode(bytes, asked(), 76);
  REQUIRE(back.has_value());
  CHECK(*back == sample());
  CHECK(back->at(1, 0) == block_places::place{8, 0xcc});
  CHECK(block_places::memory_of(bytes).value() == 0x1122334455667788);
}

TEST_CASE("block places: a write's are golden too, and say ahead how long they are") {
  const block_places layer{
      .memory = 0, .generation = 7, .layers = 1, .lives = {0, 0}, .places = {{0, 0xaa}, {64, 0xbb}}};
  const block_places end{.memory = 0, .generation = 7, .layers = 0, .lives = {}, .places = {}};
  CHECK(to_hex(layer.encode()) == golden_hex("written places"));
  CHECK(to_hex(end.encode()) == golden_hex("end of places"));
  auto about = asked();
  about.layout.segments.resize(1);
  CHECK(block_places::decode(layer.encode(), about, 72).value() == layer);
  CHECK(block_places::decode(layer.encode(), about, 71).error() == errc::protocol);

  const auto bytes = layer.encode();
  CHECK(block_places::announced_bytes(bytes, 1, 2).value() == bytes.size());
  CHECK(block_places::announced_bytes(end.encode(), 0, 0).value() == block_places::encoded_bytes(0, 0));
  CHECK(block_places::announced_bytes(bytes, 0, 2).error() == errc::protocol);
  CHECK(block_places::announced_bytes(bytes, 1, 1).error() == errc::protocol);
  CHECK(block_places::announced_bytes(std::span(bytes).first(31), 1, 2).error() == errc::protocol);
  CHECK(block_places::announced_bytes(std::span(bytes).subspan(1), 1, 2).error() == errc::protocol);
}

TEST_CASE("block places: nothing found") {
  block_places none{.memory = 1, .generation = 7, .layers = 2, .lives = {}, .places = {}};
  CHECK(block_places::decode(none.encode(), asked(), 0)->blocks() == 0);
}

TEST_CASE("block places: a place outside of the memory is refused") {
  const auto bytes = sample().encode();
  CHECK(block_places::decode(bytes, asked(), 75).error() == errc::protocol);
  CHECK(block_places::decode(bytes, asked(), 0).error() == errc::protocol);
  auto far = sample();
  far.places[3].offset = ~0ull;
  CHECK(block_places::decode(far.encode(), asked(), 1 << 20).error() == errc::protocol);
  far.places[3].offset = ~0ull - 3;  // its end would be 0
  CHECK(block_places::decode(far.encode(), asked(), ~0ull).error() == errc::protocol);
}

TEST_CASE("block places: what is no answer to the question is refused") {
  const auto bytes = sample().encode();
  CHECK(block_places::decode(bytes, asked(1), 100).error() == errc::protocol);  // more than was asked for
  auto other = asked();
  other.generation = 8;
  CHECK(block_places::decode(bytes, other, 100).error() == errc::protocol);
  other = asked();
  other.layout.segments = {8};
  CHECK(block_places::decode(bytes, other, 100).error() == errc::protocol);
  other.layout.segments = {8, 4, 4};
  CHECK(block_places::decode(bytes, other, 100).error() == errc::protocol);
}

TEST_CASE("block places: any bit that is another is noticed, and any byte less or more") {
  const auto bytes = sample().encode();
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    auto wrong = bytes;
    wrong[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    CHECK(!block_places::decode(wrong, asked(), 100).has_value());
    CHECK(!block_places::memory_of(wrong).has_value());
  }
  for (std::size_t n = 0; n < bytes.size(); ++n)
    CHECK(!block_places::decode(std::span(bytes).first(n), asked(), 100).has_value());
  auto more = bytes;
  more.push_back(std::byte{});
  CHECK(!block_places::decode(more, asked(), 100).has_value());
}
