#include "cokv/kvstream/frame.hpp"

#include <doctest/doctest.h>

#include <fstream>
#include <random>
#include <sstream>

#include "cokv/runtime/error.hpp"
#include "kvstream/hex.hpp"

using namespace cokv;

namespace {

frame_header sample(std::uint64_t length) {
  frame_header h;
  h.type = frame_type::segment;
  for (std::size_t i = 0; i < 32; ++i) {
    h.ns.bytes[i] = static_cast<std::byte>(i);
    h.key.bytes[i] = static_cast<std::byte>(0x80 + i);
  }
  h.layer = 3;
  h.block = 2;
  h.generation = 0x1122334455667788;
  h.sequence = 9;
  h.length = length;
  return h;
}

std::vector<std::byte> whole(const frame_header& h, std::span<const std::byte> payload) {
  auto head = encode(h);
  auto trailer = seal(head, payload);
  std::vector<std::byte> out(head.begin(), head.end());
  out.insert(out.end(), payload.begin(), payload.end());
  out.insert(out.end(), trailer.begin(), trailer.end());
  return out;
}

std::vector<std::byte> some(std::size_t n) {
  std::vector<std::byte> out(n);
  for (std::size_t i = 0; i < n; ++i) out[i] = static_cast<std::byte>(i * 7 + 1);
  return out;
}

}  // namespace

TEST_CASE("frame: the bytes are golden, and those of the protocol's document") {
  auto bytes = to_hex(whole(sample(4), some(4)));
  CHECK(bytes == golden_hex("segment"));
  CHECK(bytes.substr(0, 16) == "636f6b7601000201");
}

TEST_CASE("frame: a header is read back") {
  auto h = sample(123456789);
  h.offset = 77;
  auto bytes = encode(h);
  REQUIRE(decode(bytes).has_value());
  CHECK(*decode(bytes) == h);
}

TEST_CASE("frame: any split of the bytes gives the same frame") {
  auto payload = some(300);
  auto bytes = whole(sample(300), payload);
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    frame_parser parser;
    std::vector<std::byte> into(300);
    std::span<const std::byte> in(bytes);
    std::size_t available = 0;
    while (parser.at() != frame_parser::state::frame) {
      available = std::min(in.size(), available + 1 + random() % (round < 100 ? 3 : 200));
      if (auto room = parser.room(); !room.empty() && round % 3 == 0) {
        auto n = std::min(room.size(), available);
        std::copy_n(in.begin(), n, room.begin());
        parser.filled(n);
        in = in.subspan(n);
        available -= n;
      } else {
        auto n = parser.feed(in.first(available));
        in = in.subspan(n);
        available -= n;
      }
      if (parser.at() == frame_parser::state::place) {
        CHECK(parser.header() == sample(300));
        parser.into(into);
      }
    }
    CHECK(in.empty());
    CHECK(parser.intact());
    CHECK(into == payload);
    CHECK(!parser.between_frames());
    parser.next();
    CHECK(parser.between_frames());
  }
}

TEST_CASE("frame: every flipped bit of header, payload and trailer is detected") {
  auto bytes = whole(sample(64), some(64));
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    auto damaged = bytes;
    damaged[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    frame_parser parser;
    std::vector<std::byte> into(64);
    std::span<const std::byte> in(damaged);
    in = in.subspan(parser.feed(in));
    if (bit / 8 < frame_header_bytes) {
      REQUIRE(parser.at() == frame_parser::state::failed);
      REQUIRE(parser.error() == errc::digest_mismatch);
      continue;
    }
    REQUIRE(parser.at() == frame_parser::state::place);
    parser.into(into);
    in = in.subspan(parser.feed(in));
    REQUIRE(parser.at() == frame_parser::state::frame);
    REQUIRE(!parser.intact());
  }
}

TEST_CASE("frame: lengths are bounded before anything is allocated") {
  frame_limits limits;
  limits.max_segment = 1000;
  for (auto type : {frame_type::segment, frame_type::missing, frame_type::begin, frame_type::end, frame_type::error}) {
    for (std::uint64_t length : {limits.payload(type) + 1, ~std::uint64_t{0}, std::uint64_t{1} << 40}) {
      auto h = sample(length);
      h.type = type;
      frame_parser parser(limits);
      parser.feed(encode(h));
      CHECK(parser.at() == frame_parser::state::failed);
      CHECK(parser.error() == errc::too_large);
      CHECK(parser.memory() < 1000);
    }
  }
}

TEST_CASE("frame: what is sound but not ours is refused") {
  auto reject = [](std::size_t at, std::uint8_t value) {
    auto head = encode(sample(0));
    head[at] = static_cast<std::byte>(value);
    auto digest = digest_of(std::span(head).first(120));
    for (std::size_t i = 0; i < 8; ++i) head[120 + i] = static_cast<std::byte>(digest >> (8 * i));
    return decode(head).error();
  };
  CHECK(reject(0, 'x') == errc::protocol);
  CHECK(reject(4, 2) == errc::unsupported);
  CHECK(reject(6, 0) == errc::protocol);
  CHECK(reject(6, 7) == errc::protocol);
  CHECK(reject(7, 2) == errc::unsupported);
  CHECK(reject(112, 1) == errc::protocol);
}

TEST_CASE("frame: a payload without a digest says so in its header") {
  auto h = sample(4);
  h.algorithm = digest_algorithm::none;
  auto bytes = whole(h, some(4));
  CHECK(std::all_of(bytes.end() - 8, bytes.end(), [](std::byte b) { return b == std::byte{}; }));
  frame_parser parser;
  std::span<const std::byte> in(bytes);
  in = in.subspan(parser.feed(in));
  parser.keep();
  parser.feed(in);
  CHECK(parser.intact());
  CHECK(std::ranges::equal(parser.payload(), some(4)));
}

TEST_CASE("frame: sealing while copying is sealing") {
  auto payload = some(100'000);
  auto head = encode(sample(payload.size()));
  std::vector<std::byte> into(payload.size());
  CHECK(seal_copy(head, into, payload) == seal(head, payload));
  CHECK(into == payload);
}

TEST_CASE("frame: errors keep their meaning on the wire") {
  for (auto code :
       {errc::not_found, errc::digest_mismatch, errc::namespace_mismatch, errc::store_full, errc::too_large,
        errc::invalid_argument, errc::protocol, errc::unavailable, errc::permission_denied, errc::unsupported,
        errc::wrong_device})
    CHECK(from_wire(to_wire(code)) == code);
  CHECK(to_wire({}) == 0);
  CHECK(!from_wire(0));
  CHECK(from_wire(to_wire(asio::error::connection_reset)) == errc::unavailable);
  CHECK(from_wire(12345) == errc::unavailable);
}

TEST_CASE("frame: a parser is used in order") {
  frame_parser parser;
  CHECK_THROWS_AS(parser.next(), std::logic_error);
  CHECK_THROWS_AS(parser.keep(), std::logic_error);
  parser.feed(encode(sample(4)));
  std::vector<std::byte> wrong(5);
  CHECK_THROWS_AS(parser.into(wrong), std::logic_error);
  parser.discard();
  CHECK(parser.room().empty());
  CHECK_THROWS_AS(parser.filled(1), std::logic_error);
}
