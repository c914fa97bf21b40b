#include "replicator/replica_message.hpp"

#include <doctest/doctest.h>

#include <random>

#include "cokv/kvstream/frame.hpp"
#include "cokv/runtime/error.hpp"
#include "kvstream/hex.hpp"

using namespace cokv;
using namespace cokv::detail;

namespace {

const replica_message room{.type = replica_type::room,
                           .steps = 3,
                           .epoch = 5,
                           .owner = 0x1122334455667788,
                           .microbatch = 7,
                           .bytes = 640,
                           .window = {2, 0x0102030405060708, 4096}};

}  // namespace

TEST_CASE("replica_message: 104 known bytes, that read back as they were") {
  const replica_message open{
      .type = replica_type::open, .steps = 3, .epoch = 5, .owner = 0x1122334455667788, .microbatch = 7, .bytes = 4096};
  CHECK(to_hex(encode(open)) == golden_hex("replica open"));
  CHECK(to_hex(encode(room)) == golden_hex("replica room"));
  CHECK(decode_replica(encode(open)).value() == open);
  CHECK(decode_replica(encode(room)).value() == room);
  replica_message tagged{.type = replica_type::stored, .steps = 1, .epoch = 2, .owner = 3, .bytes = 4};
  tagged.tag.bytes.fill(std::byte{0xab});
  CHECK(decode_replica(encode(tagged)).value() == tagged);
  tagged.type = replica_type::kept;
  CHECK(decode_replica(encode(tagged)).error() == errc::protocol);  // a tag in what names no step
  for (int type = 1; type <= 8; ++type) {
    replica_message m{.type = static_cast<replica_type>(type), .steps = 1, .epoch = 2, .owner = 3, .microbatch = 4};
    CHECK(decode_replica(encode(m)).value() == m);
  }
}

TEST_CASE("replica_message: what is cut, too long, of another version or kind is none") {
  const auto good = encode(room);
  for (std::size_t n = 0; n < good.size(); ++n)
    CHECK(decode_replica(std::span(good).first(n)).error() == errc::protocol);
  auto bad = good;
  bad.push_back({});
  CHECK(decode_replica(bad).error() == errc::protocol);
  const auto with = [&](std::size_t at, int value) {
    auto m = good;
    m[at] = static_cast<std::byte>(value);
    return decode_replica(m).error();
  };
  CHECK(with(0, 0) == errc::protocol);
  CHECK(with(4, 1) == errc::unsupported);
  CHECK(with(4, 3) == errc::unsupported);
  CHECK(with(5, 0) == errc::protocol);
  CHECK(with(5, 9) == errc::protocol);
  CHECK(with(6, 1) == errc::protocol);
  CHECK(with(7, 1) == errc::protocol);
  CHECK(with(8, to_wire(errc::store_full)) == errc::protocol);               // refused, and a window all the same
  CHECK(with(5, static_cast<int>(replica_type::stored)) == errc::protocol);  // a window in what gives none
  auto refused = room;
  refused.window = {};
  refused.code = to_wire(errc::store_full);
  CHECK(decode_replica(encode(refused)).value() == refused);
  refused.type = replica_type::open;
  CHECK(decode_replica(encode(refused)).error() == errc::protocol);  // a code in what asks
}

TEST_CASE("replica_message: any bytes are read without harm, and what is read is written the same") {
  std::mt19937_64 random(7);
  std::size_t read = 0;
  for (int i = 0; i < 200'000; ++i) {
    auto bytes = encode(room);
    for (auto n = random() % 3; n > 0; --n) bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    if (random() % 8 == 0) bytes.resize(random() % 140);
    if (auto m = decode_replica(bytes)) {
      CHECK(encode(*m) == bytes);
      ++read;
    }
  }
  CHECK(read > 1000);
}
