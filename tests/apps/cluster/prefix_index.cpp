#include "cluster/prefix_index.hpp"

#include <doctest/doctest.h>

#include <map>
#include <random>
#include <set>

using namespace cokv;
using cluster::prefix_index;

namespace {

std::vector<block_key> keys_of(std::uint32_t blocks, std::int32_t first = 0) {
  std::vector<std::int32_t> tokens(std::size_t{4} * blocks, first);
  return chain_keys(tokens, 4);
}

}  // namespace

TEST_CASE("prefix_index: a prompt's beginning is known as far as all of it is there") {
  prefix_index known;
  const auto keys = keys_of(4);
  CHECK(known.leading(1, keys) == 0);
  known.stored(1, "device", std::span(keys).subspan(1, 2));
  CHECK(known.leading(1, keys) == 0);  // what is behind a gap is of no use
  known.stored(1, "device", std::span(keys).first(1));
  CHECK(known.leading(1, keys) == 3);
  CHECK(known.leading(2, keys) == 0);
  known.removed(1, "device", std::span(keys).subspan(2, 1));
  CHECK(known.leading(1, keys) == 2);
  known.clear(1);
  CHECK(known.leading(1, keys) == 0);
  CHECK(known.size(1) == 0);
}

TEST_CASE("prefix_index: a block is there until the last of its worker's own tiers has given it up") {
  prefix_index known;
  const auto keys = keys_of(1);
  known.stored(1, "device", keys);
  known.stored(1, "host", keys);
  known.removed(1, "device", keys);
  CHECK(known.leading(1, keys) == 1);
  known.removed(1, "device", keys);
  CHECK(known.leading(1, keys) == 1);
  known.removed(1, "host", keys);
  CHECK(known.leading(1, keys) == 0);
  known.stored(1, "remote", keys);  // everybody's
  CHECK(known.leading(1, keys) == 0);
  known.removed(1, "remote", keys);
  CHECK(known.size(1) == 0);
}

TEST_CASE("prefix_index: what was ordered counts until it is told or given up") {
  prefix_index known;
  const auto keys = keys_of(2);
  known.expect(1, keys);
  known.expect(1, keys);
  known.unexpect(1, keys);
  CHECK(known.leading(1, keys) == 2);
  known.clear(1);  // what was heard is worth nothing; the order stands
  CHECK(known.leading(1, keys) == 2);
  known.stored(1, "device", std::span(keys).first(1));
  known.unexpect(1, keys);
  CHECK(known.leading(1, keys) == 1);
  known.unexpect(1, keys);  // one too many changes nothing
  CHECK(known.leading(1, keys) == 1);
}

TEST_CASE("prefix_index: a worker that tells of more than is kept is known in part") {
  prefix_index known(3);
  const auto keys = keys_of(8);
  known.stored(1, "device", keys);
  CHECK(known.size(1) == 3);
  CHECK(known.leading(1, keys) == 3);
  known.stored(2, "device", keys);
  CHECK(known.size(2) == 3);  // each has room of its own
  known.removed(1, "device", std::span(keys).first(1));
  known.stored(1, "device", std::span(keys).subspan(5, 2));
  CHECK(known.size(1) == 3);
}

TEST_CASE("prefix_index: any order of events gives what sets would") {
  for (unsigned seed = 0; seed < 30; ++seed) {
    std::mt19937 random(seed);
    prefix_index known;
    std::map<block_key, std::set<std::string>> want;
    std::map<block_key, int> expected;
    const auto keys = keys_of(6);
    const char* tiers[] = {"device", "host", "disk"};
    for (int i = 0; i < 300; ++i) {
      const auto first = random() % 6, count = 1 + random() % (6 - first);
      const auto some = std::span(keys).subspan(first, count);
      const std::string tier = tiers[random() % 3];
      switch (random() % 4) {
        case 0:
          known.stored(5, tier, some);
          for (auto& k : some) want[k].insert(tier);
          break;
        case 1:
          known.removed(5, tier, some);
          for (auto& k : some) want[k].erase(tier);
          break;
        case 2:
          known.expect(5, some);
          for (auto& k : some) ++expected[k];
          break;
        default:
          known.unexpect(5, some);
          for (auto& k : some) expected[k] = std::max(0, expected[k] - 1);
      }
      std::size_t n = 0, all = 0;
      while (n < 6 && (!want[keys[n]].empty() || expected[keys[n]] > 0)) ++n;
      for (auto& k : keys) all += !want[k].empty() || expected[k] > 0;
      CHECK(known.leading(5, keys) == n);
      CHECK(known.size(5) == all);
    }
  }
}
