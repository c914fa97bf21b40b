#include "cokv/engine/block_cache.hpp"

#include <doctest/doctest.h>

#include <numeric>
#include <optional>
#include <random>
#include <set>

using namespace cokv;

namespace {

geometry small() { return geometry::attention(2, 1, 4, dtype::f32, 4); }

std::vector<token_id> tokens(std::size_t n, token_id from = 0) {
  std::vector<token_id> t(n);
  std::iota(t.begin(), t.end(), from);
  return t;
}

std::vector<block_index> take(block_cache& cache, std::size_t n) {
  std::vector<block_index> blocks;
  CHECK(cache.allocate(n, blocks));
  return blocks;
}

void publish_all(block_cache& cache, request_id id, const std::vector<block_index>& blocks) {
  for (std::size_t i = 0; i < cache.keys(id).size() && i < blocks.size(); ++i)
    cache.publish(cache.keys(id)[i], blocks[i]);
}

}  // namespace

TEST_CASE("computed blocks are found again after their request has gone, under its salt alone") {
  kv_pool pool(small(), 8);
  block_cache cache(pool);
  cache.open(1, tokens(10));
  auto blocks = take(cache, 3);
  publish_all(cache, 1, blocks);
  cache.release(blocks);
  cache.close(1);
  CHECK(cache.available() == 8);

  cache.open(2, tokens(12));
  auto found = cache.match(2, tokens(12));
  CHECK(found == std::vector<block_index>{blocks[0], blocks[1]});
  CHECK(cache.available() == 6);
  cache.open(3, tokens(12), "salt");
  CHECK(cache.match(3, tokens(12)).empty());
  CHECK(cache.match(4, tokens(12)).empty());  // not open: no keys
  cache.open(5, tokens(8));
  auto shared = cache.match(5, tokens(7));  // one whole block of seven tokens
  CHECK(shared == std::vector<block_index>{blocks[0]});
  cache.release(found);
  CHECK(cache.available() == 7);
  cache.release(shared);
  CHECK(cache.available() == 8);
}

TEST_CASE("what was cleared is not shared later either, by whoever computed it before and says so behind it") {
  kv_pool pool(small(), 8);
  block_cache cache(pool);
  cache.open(1, tokens(12));
  auto blocks = take(cache, 3);
  cache.publish(cache.keys(1)[0], blocks[0]);
  auto hold = std::optional(cache.hold(blocks[1]));
  cache.clear();
  publish_all(cache, 1, blocks);
  cache.open(2, tokens(12));
  CHECK(cache.match(2, tokens(12)).empty());
  cache.release(blocks);
  cache.publish(cache.keys(1)[1], blocks[1]);  // still held by a step
  CHECK(cache.match(2, tokens(12)).empty());
  hold.reset();
  CHECK(cache.available() == 8);

  blocks = take(cache, 3);
  publish_all(cache, 1, blocks);
  auto found = cache.match(2, tokens(12));
  CHECK(found == blocks);
  CHECK(cache.uses(found[0]) == 2);
  cache.release(found);
  cache.release(blocks);
}

TEST_CASE("room is made of the least recently used, from the end of a sequence") {
  kv_pool pool(small(), 4);
  block_cache cache(pool);
  cache.open(1, tokens(16));
  auto blocks = take(cache, 4);
  publish_all(cache, 1, blocks);
  CHECK(cache.available() == 0);
  std::vector<block_index> none;
  CHECK(!cache.allocate(1, none));
  cache.release(blocks);
  auto other = take(cache, 2);
  CHECK(cache.stats().evicted == 2);
  CHECK(cache.matching(cache.keys(1)) == 2);
  CHECK(!cache.allocate(3, none));
  CHECK(none.empty());
  CHECK(cache.matching(cache.keys(1)) == 2);  // a refusal evicts nothing
  cache.release(other);
}

TEST_CASE("who makes room takes none of what others still read, but for what else there isn't") {
  kv_pool pool(small(), 8);
  block_cache cache(pool);
  cache.open(1, tokens(32));
  auto blocks = take(cache, 8);
  publish_all(cache, 1, blocks);
  // The oldest, which are the last, are read.
  std::vector<buffer> read{cache.segment(0, blocks[7]), cache.segment(1, blocks[6])};
  buffer more = cache.segment(0, blocks[5]);
  cache.release(blocks);
  CHECK(cache.available() == 8);
  auto two = take(cache, 2);
  CHECK(cache.stats().evicted == 2);
  CHECK(cache.matching(cache.keys(1)) == 3);  // 3 and 4 were the oldest that gave room
  cache.release(two);                         // not published: free again
  std::vector<block_index> none;
  // Of eight only five have room: the three that are read are to come later, and nothing else goes for them.
  CHECK(!cache.allocate(8, none));
  CHECK(none.empty());
  CHECK(cache.stats().evicted == 5);
  CHECK(cache.coming() == 3);
  CHECK(!cache.allocate(8, none));
  CHECK(cache.stats().evicted == 5);
  CHECK(cache.matching(cache.keys(1)) == 3);
  bool told = false;
  CHECK(pool.on_return(pool.returned(), [&] { told = true; }));
  read.clear();
  CHECK(told);
  CHECK(!cache.allocate(8, none));
  more = {};
  auto all = take(cache, 8);
  CHECK(cache.stats().evicted == 8);
  cache.release(all);
}

TEST_CASE("who finds no room is told of whichever reader lets go of a block first") {
  for (const bool oldest_first : {false, true}) {
    kv_pool pool(small(), 3);
    block_cache cache(pool);
    cache.open(1, tokens(8));
    auto blocks = take(cache, 2), used = take(cache, 1);
    publish_all(cache, 1, blocks);
    buffer one = cache.segment(0, blocks[0]), other = cache.segment(0, blocks[1]);
    cache.release(blocks);
    std::vector<block_index> none;
    CHECK(!cache.allocate(1, none));
    bool told = false;
    CHECK(pool.on_return(pool.returned(), [&] { told = true; }));
    (oldest_first ? other : one) = {};
    CHECK(told);
    cache.release(take(cache, 1));
    cache.release(used);
  }
}

TEST_CASE("a held block is neither evicted nor handed out again") {
  kv_pool pool(small(), 2);
  block_cache cache(pool);
  int room = 0;
  cache.on_room([&] { ++room; });
  auto blocks = take(cache, 2);
  auto hold = cache.hold(blocks[0]);
  cache.release(blocks);
  CHECK(room == 1);
  CHECK(cache.available() == 1);
  auto again = take(cache, 1);
  CHECK(again[0] == blocks[1]);
  hold.reset();
  CHECK(room == 2);
  CHECK(cache.available() == 1);
  cache.release(again);
}

TEST_CASE("the first block of a key stays the one") {
  kv_pool pool(small(), 4);
  block_cache cache(pool);
  cache.open(1, tokens(4));
  auto a = take(cache, 1), b = take(cache, 1);
  cache.publish(cache.keys(1)[0], a[0]);
  cache.publish(cache.keys(1)[0], b[0]);
  cache.release(b);
  CHECK(cache.stats().cached == 1);
  CHECK(cache.match(1, tokens(4)) == a);
}

TEST_CASE("keys follow the answer, and nothing is kept where nothing is to be shared") {
  kv_pool pool(small(), 4);
  block_cache cache(pool, false);
  cache.open(1, tokens(5));
  CHECK(cache.keys(1).size() == 1);
  CHECK(cache.extend(1, tokens(9)).size() == 2);
  CHECK(cache.keys(1) == chain_keys(tokens(9), 4));
  auto blocks = take(cache, 2);
  publish_all(cache, 1, blocks);
  CHECK(cache.stats().cached == 0);
  cache.release(blocks);
}

TEST_CASE("holds outlive the cache") {
  kv_pool pool(small(), 2);
  block_hold hold;
  {
    block_cache cache(pool);
    auto blocks = take(cache, 2);
    hold = cache.hold(blocks[1]);
    cache.release(blocks);
    CHECK(pool.available() == 1);
  }
  CHECK(pool.available() == 1);
  hold.reset();
  CHECK(pool.available() == 2);
}

TEST_CASE("what becomes cached and what is evicted is told, each change once") {
  kv_pool pool(small(), 4);
  block_cache cache(pool);
  std::vector<std::pair<block_key, bool>> told;
  cache.on_change([&](const block_key& key, bool cached) { told.emplace_back(key, cached); });
  const auto prompt = tokens(8, 0), other = tokens(16, 100);
  cache.open(1, prompt);
  auto blocks = take(cache, 2);
  publish_all(cache, 1, blocks);
  const auto keys = cache.keys(1);
  CHECK(told == std::vector<std::pair<block_key, bool>>{{keys[0], true}, {keys[1], true}});
  publish_all(cache, 1, blocks);  // known already
  CHECK(told.size() == 2);
  cache.release(blocks);
  CHECK(told.size() == 2);  // still there for others
  blocks = take(cache, 3);
  CHECK(told.size() == 3);
  CHECK(told.back() == std::pair(keys[1], false));  // the last of a sequence goes first
  cache.release(blocks);
}

TEST_CASE("any sequence of uses keeps the books") {
  for (unsigned seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    kv_pool pool(small(), 16);
    block_cache cache(pool);
    std::set<block_key> known;
    cache.on_change([&](const block_key& key, bool cached) {
      CHECK(cached != known.contains(key));
      cached ? (void)known.insert(key) : (void)known.erase(key);
    });
    std::vector<std::vector<block_index>> held;
    std::vector<block_hold> holds;
    request_id id = 0;
    for (int step = 0; step < 300; ++step) {
      const auto dice = random() % 4;
      if (dice == 0 && !held.empty()) {
        auto at = random() % held.size();
        cache.release(held[at]);
        held.erase(held.begin() + at);
      } else if (dice == 1 && !held.empty()) {
        holds.push_back(cache.hold(held[random() % held.size()][0]));
        if (holds.size() > 4) holds.erase(holds.begin());
      } else {
        auto prompt = tokens(4 * (1 + random() % 5), static_cast<token_id>(random() % 4) * 100);
        cache.open(++id, prompt);
        auto blocks = cache.match(id, prompt);
        const auto need = prompt.size() / 4 - blocks.size();
        const auto available = cache.available();
        const bool fits = cache.allocate(need, blocks);
        CHECK(fits == (need <= available));
        if (fits) {
          publish_all(cache, id, blocks);
          held.push_back(blocks);
        } else {
          cache.release(blocks);
        }
        cache.close(id);
      }
      CHECK(known.size() == cache.stats().cached);
    }
    holds.clear();
    for (auto& blocks : held) cache.release(blocks);
    CHECK(cache.available() == 16);
    CHECK(cache.stats().in_use == 0);
  }
}
