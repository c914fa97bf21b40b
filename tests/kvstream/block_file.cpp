#include "store/block_file.hpp"

#include <doctest/doctest.h>

#include "cokv/kvstream/digest.hpp"
#include "kvstream/hex.hpp"

using namespace cokv;
using namespace cokv::detail;

namespace {

block_file sample(std::size_t layers) {
  block_file b;
  b.id.ns.bytes.fill(std::byte{0x11});
  b.id.key.bytes.fill(std::byte{0x22});
  for (std::size_t i = 0; i < layers; ++i) {
    b.layout.segments.push_back(100 + i);
    b.digests.push_back(i * 77);
  }
  return b;
}

}  // namespace

TEST_CASE("block file: the first bytes are golden, and what is written is read back") {
  auto bytes = encode_block_file(sample(2));
  CHECK(bytes.size() == 4096);
  CHECK(to_hex(std::span(bytes).first(16)) == "636f6b762e626c6b0200000001000000");
  CHECK(to_hex(std::span(bytes).subspan(80, 16)) == "0200000000100000c900000000000000");
  CHECK(to_hex(std::span(bytes).subspan(128, 32)) ==
        "640000000000000000000000000000006500000000000000"
        "4d00000000000000");
  for (std::size_t layers : {1u, 248u, 249u, 4096u}) {
    auto b = sample(layers);
    auto all = encode_block_file(b);
    CHECK(all.size() % 4096 == 0);
    CHECK(*block_file_data_offset(std::span(all).first(128)) == all.size());
    auto back = decode_block_file(all);
    REQUIRE(back.has_value());
    CHECK(back->id == b.id);
    CHECK(back->layout == b.layout);
    CHECK(back->digests == b.digests);
    CHECK(b.file_bytes() == all.size() + b.layout.bytes());
    CHECK(b.segment_offset(0) == all.size());
    CHECK(back->alignment == 1);
    CHECK(back->digest == digest_algorithm::xxh3_64);
  }
}

TEST_CASE("block file: aligned, every segment begins and the file ends at a page") {
  auto b = sample(3);
  b.layout.segments[1] = 4097;
  b.alignment = 4096;
  b.digest = digest_algorithm::none;
  auto back = decode_block_file(encode_block_file(b));
  REQUIRE(back.has_value());
  CHECK(back->alignment == 4096);
  CHECK(back->digest == digest_algorithm::none);
  CHECK(back->segment_offset(0) == 4096);
  CHECK(back->segment_offset(1) == 8192);
  CHECK(back->segment_offset(2) == 16384);
  CHECK(back->file_bytes() == 20480);
  CHECK(back->file_bytes() == block_file_bytes(b.layout, 4096));
  b.alignment = 512;  // none that is written
  CHECK(decode_block_file(encode_block_file(b)).error() == errc::protocol);
}

TEST_CASE("block file: every flipped bit before the data, and every cut, is found") {
  auto good = encode_block_file(sample(3));
  for (std::size_t bit = 0; bit < good.size() * 8; bit += bit < 3000 ? 1 : 61) {
    auto bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    REQUIRE(!decode_block_file(bad).has_value());
  }
  for (std::size_t n = 0; n < good.size(); n += n < 200 ? 1 : 500)
    REQUIRE(decode_block_file(std::span(good).first(n)).error() == errc::digest_mismatch);
}

TEST_CASE("block file: names are read back, and no other name is") {
  auto key = root_key("a");
  auto name = block_file_name(key, 42);
  CHECK(parse_block_file_name(name)->key == key);
  CHECK(parse_block_file_name(name)->serial == 42);
  for (auto bad : {std::string(""), key.hex(), key.hex() + ".kv", key.hex() + "-.kv", key.hex() + "-042.kv",
                   key.hex() + "-4x.kv", key.hex() + "-99999999999999999999.kv", key.hex() + "-1.kv~", "a" + name})
    CHECK(!parse_block_file_name(bad));
}
