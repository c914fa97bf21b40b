#include "cokv/kvstream/block_key.hpp"

#include <doctest/doctest.h>

#include <numeric>
#include <random>

#include "cokv/runtime/error.hpp"

using namespace cokv;

TEST_CASE("block key: golden chain") {
  std::vector<std::int32_t> tokens(40);
  std::iota(tokens.begin(), tokens.end(), 0);
  auto keys = chain_keys(tokens, 16);
  REQUIRE(keys.size() == 2);
  CHECK(root_key().hex() == "f66a18d4939b404920f75615b13518646813b450cc2b8012968f3348e4446bcd");
  CHECK(keys[0].hex() == "8fa80ae246283ce9e4b938950150f376dee31954a3bb28ac4d5e8ac2fb92fdb4");
  CHECK(keys[1].hex() == "a26c516a494fee1cbfd652622fa716816cacd4fc2b6a1c910cb33fa05ebbf32e");
  CHECK(chain_keys(tokens, 16, "salt")[0].hex() == "220a9af00ceb6626c3025498adf41a79f154715e0f17b7e2336e1356ed25e8f1");
}

TEST_CASE("block key: a key stands for its whole prefix, its block size and its salt") {
  std::vector<std::int32_t> a(64, 7), b = a;
  b[3] = 8;
  auto ka = chain_keys(a, 16), kb = chain_keys(b, 16);
  for (std::size_t i = 0; i < 4; ++i) CHECK(ka[i] != kb[i]);
  b = a;
  b[50] = -1;
  kb = chain_keys(b, 16);
  CHECK(std::equal(ka.begin(), ka.begin() + 3, kb.begin()));
  CHECK(ka[3] != kb[3]);
  CHECK(chain_keys(a, 32)[0] != ka[1]);
  CHECK(chain_keys(a, 16, "x")[0] != ka[0]);
  CHECK(chain_keys(a, 16, std::string_view("\0", 1))[0] != ka[0]);
  CHECK(ka[0] != ka[1]);  // the same tokens further on are another block
}

TEST_CASE("block key: a growing sequence has the keys of the whole") {
  std::mt19937 random(1);
  std::vector<std::int32_t> tokens(257);
  for (auto& t : tokens) t = static_cast<std::int32_t>(random());
  for (std::uint32_t size : {1u, 3u, 16u, 300u})
    for (int round = 0; round < 20; ++round) {
      key_chain grown(size, "s");
      for (std::size_t at = 0; at < tokens.size();) {
        auto n = std::min<std::size_t>(random() % 40, tokens.size() - at);
        grown.append(std::span(tokens).subspan(at, n));
        at += n;
        CHECK(grown.tokens() == at);
      }
      CHECK(grown.keys() == chain_keys(tokens, size, "s"));
    }
}

TEST_CASE("block key: hex both ways, and a block size of zero is refused") {
  auto key = root_key("a");
  CHECK(block_key::parse(key.hex()) == key);
  CHECK(!block_key::parse("zz"));
  CHECK_THROWS_AS(key_chain(0), config_error);
}
