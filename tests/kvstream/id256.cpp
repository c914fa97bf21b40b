#include "cokv/kvstream/id256.hpp"

#include <doctest/doctest.h>

#include <string>

using namespace cokv;

TEST_CASE("sha256: the published vectors") {
  sha256 h;
  h.update("abc");
  CHECK(h.finish().hex() == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(h.finish().hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  h.update("abcdbcdecdefdefgefghfghighijhijk");
  h.update("ijkljklmklmnlmnomnopnopq");
  CHECK(h.finish().hex() == "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

TEST_CASE("id256: hex is read back, and nothing but 64 hex digits is") {
  id256 id;
  for (std::size_t i = 0; i < 32; ++i) id.bytes[i] = static_cast<std::byte>(i * 37 + 5);
  CHECK(parse_id256(id.hex()) == id);
  std::string upper = id.hex();
  for (auto& c : upper) c = static_cast<char>(std::toupper(c));
  CHECK(parse_id256(upper) == id);
  CHECK(!parse_id256(""));
  CHECK(!parse_id256(id.hex().substr(1)));
  CHECK(!parse_id256(id.hex() + "0"));
  CHECK(!parse_id256("g" + id.hex().substr(1)));
  CHECK(!parse_id256(" " + id.hex().substr(1)));
}

TEST_CASE("id256_hash: every byte counts") {
  id256 zero;
  for (std::size_t i = 0; i < 32; ++i) {
    id256 other;
    other.bytes[i] = std::byte{1};
    CHECK(id256_hash{}(zero) != id256_hash{}(other));
  }
}
