#include "cokv/kvstream/block_key.hpp"

#include <doctest/doctest.h>

#include <numeric>
#include <random>

#include "cokv/runtime/error.hpp"
#include "kvstream/hex.hpp"

using namespace cokv;

TEST_CASE("block key: golden chain") {
  std::vector<std::int32_t> tokens(40);
  std::iota(tokens.begin(), tokens.end(), 0);
  auto keys = chain_keys(tokens, 16);
  REQUIRE(keys.size() == 2);
  CHECK(root_key().hex() == "2526e07db25bcfb19780bbf123fb72974f8f82ec85154db41b68cf079b582f00");
  CHECK(golden_hex("key chain") == keys[0].hex() + keys[1].hex());
  CHECK(keys[0].hex() == "f9740d031b10a8f229403fe48ab67fb2b2094fd8e1fe3373d8adb0416114ed49");
  CHECK(keys[1].hex() == "f9740d0373f85ce741974f7032cf53dfedcda62e817500862ffcfde6f0a38086");
  CHECK(chain_keys(tokens, 16, "salt")[0].hex() == "31907efa3f7e8d706b07a79ad2bb8f8f6153daa4f22df9a96ad5dee196d03e61");
}

TEST_CASE("block key: golden stretches") {
  const auto keys = chain_keys(std::vector<std::int32_t>(200), 1);
  std::vector<std::size_t> begins;
  for (std::size_t i = 0; i < keys.size(); ++i)
    if (i == 0 || keys[i].stretch() != keys[i - 1].stretch()) begins.push_back(i);
  CHECK(begins ==
        std::vector<std::size_t>{0, 31, 48, 65, 68, 78, 79, 81, 86, 91, 107, 110, 121, 123, 130, 156, 169, 175});
  CHECK(keys.back().hex() == "371fc5f947ee479a0b3b1f1e040b933e44ab66a477adb26d12cfcaf27fa1046f");
  CHECK(keys.back().stretch() == 0xf9c51f37);
  CHECK(block_key::parse("01020304" + std::string(56, 'f'))->stretch() == 0x04030201);
}

TEST_CASE("block key: stretches are as long as promised, and prompts that part soon lie in different ones") {
  std::mt19937 random(2);
  std::size_t begun = 0, shared_behind = 0;
  constexpr std::size_t prompts = 300, common = 50, own = 200;
  for (std::size_t prompt = 0; prompt < prompts; ++prompt) {
    std::vector<std::int32_t> a(common + own);
    for (auto& t : a) t = static_cast<std::int32_t>(random());
    auto b = a;
    b[common] ^= 1;
    const auto ka = chain_keys(a, 1), kb = chain_keys(b, 1);
    for (std::size_t i = 1; i < ka.size(); ++i) begun += ka[i].stretch() != ka[i - 1].stretch();
    for (std::size_t i = common; i < ka.size(); ++i) {
      CHECK(ka[i] != kb[i]);
      shared_behind += ka[i].stretch() == kb[i].stretch();
    }
  }
  const double length = static_cast<double>(prompts * (common + own - 1)) / static_cast<double>(begun);
  CHECK(length > 15);
  CHECK(length < 17);
  // Both go on in the stretch in which they part until the first of them leaves it: half a stretch, for there are two.
  CHECK(static_cast<double>(shared_behind) / prompts > 6);
  CHECK(static_cast<double>(shared_behind) / prompts < 11);
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
