#include "cokv/kvstream/slice.hpp"

#include <doctest/doctest.h>

#include <random>
#include <set>

using namespace cokv;

namespace {

geometry mixed() {
  return geometry(4, {{0, 2, 3, {{"k", dtype::bf16, true, 6}, {"v", dtype::bf16, true, 4}}},
                      {2, 1, 0, {{"c", dtype::f32, false, 5}, {"r", dtype::bf16, false, 2}}},
                      {3, 1, 2, {{"k", dtype::u8, true, 8}, {"s", dtype::f32, false, 1}}}});
}

// Every byte of the selection, element by element, straight from the definition of the layout.
std::set<std::uint64_t> by_definition(const geometry& g, std::uint32_t pool, index_range layers,
                                      const std::vector<std::uint32_t>& blocks, index_range tokens, index_range heads) {
  std::set<std::uint64_t> out;
  std::uint64_t base = 0;
  for (std::uint32_t layer = 0; layer < g.layers(); ++layer) {
    auto& group = g.group(layer);
    for (std::uint32_t block = 0; block < pool; ++block) {
      auto at = base + block * g.segment_bytes(layer);
      auto visit = [&](bool selected_head, const plane& p) {
        for (std::uint32_t t = 0; t < g.block_tokens(); ++t)
          for (std::uint32_t b = 0; b < p.dim * size_of(p.type); ++b, ++at)
            for (std::size_t i = 0; i < blocks.size(); ++i) {
              auto position = i * g.block_tokens() + t;
              if (blocks[i] == block && position >= tokens.first && position < tokens.end() && selected_head &&
                  layer >= layers.first && layer < layers.end())
                out.insert(at);
            }
      };
      for (std::uint32_t h = 0; h < group.kv_heads; ++h)
        for (auto& p : group.planes)
          if (p.per_head) visit(h >= heads.first && h < heads.end(), p);
      for (auto& p : group.planes)
        if (!p.per_head) visit(true, p);
    }
    base += g.segment_bytes(layer) * pool;
  }
  return out;
}

}  // namespace

TEST_CASE("slice: whole neighbouring blocks are one extent") {
  auto g = geometry::attention(2, 4, 8, dtype::f32);
  slice s(g, {0, 1}, {3, 4, 5});
  CHECK(s.extents(8) == std::vector<extent>{{3 * g.segment_bytes(0), 3 * g.segment_bytes(0)}});
  slice all(g, {0, 2}, {0, 1, 2, 3});
  CHECK(all.extents(4) == std::vector<extent>{{0, pool_bytes(g, 4)}});
  slice apart(g, {0, 2}, {5, 3});
  CHECK(apart.extents(8).size() == 4);
  CHECK(apart.extents(8)[0].offset == 5 * g.segment_bytes(0));
}

TEST_CASE("slice: K and V of a range of heads are one extent") {
  auto g = geometry::attention(1, 4, 8, dtype::f32);
  slice s(g, {0, 1}, {2});
  s.heads({1, 2});
  CHECK(s.extents(4) == std::vector<extent>{{2 * g.segment_bytes(0) + g.head_bytes(0), 2 * g.head_bytes(0)}});
}

TEST_CASE("slice: one token is a row of every plane of every head") {
  auto g = geometry::attention(12, 12, 64, dtype::f16);
  slice s(g, {0, 12}, {0, 1});
  s.tokens({17, 1});
  CHECK(s.extents(2).size() == 12 * 12 * 2);
  CHECK(s.bytes() == 12 * 12 * 2 * 64 * 2);
}

TEST_CASE("slice: extents are the selection, byte for byte, in any shape") {
  auto g = mixed();
  std::mt19937 random(7);
  auto below = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); };
  for (int round = 0; round < 300; ++round) {
    std::uint32_t pool = 1 + below(5);
    std::vector<std::uint32_t> blocks;
    for (std::uint32_t b = 0; b < pool; ++b)
      if (below(3)) blocks.push_back(b);
    std::shuffle(blocks.begin(), blocks.end(), random);
    index_range layers{below(4), 0}, tokens{below(static_cast<std::uint32_t>(blocks.size()) * 4 + 1), 0},
        heads{below(2), 0};
    layers.count = below(5 - layers.first);
    tokens.count = below(static_cast<std::uint32_t>(blocks.size()) * 4 + 1 - tokens.first);
    heads.count = below(3 - heads.first);
    slice s(g, layers, blocks);
    s.tokens(tokens).heads(heads);
    std::set<std::uint64_t> covered;
    std::uint64_t bytes = 0, last_end = ~std::uint64_t{0};
    s.for_each_extent(pool, [&](extent e) {
      CHECK(e.size > 0);
      CHECK(e.offset != last_end);  // merged
      last_end = e.offset + e.size;
      bytes += e.size;
      for (std::uint64_t i = 0; i < e.size; ++i) covered.insert(e.offset + i);
    });
    CHECK(covered == by_definition(g, pool, layers, blocks, tokens, heads));
    CHECK(bytes == covered.size());
    CHECK(bytes == s.bytes());
  }
}

TEST_CASE("slice: beyond the geometry, the sequence or the pool is refused") {
  auto g = mixed();
  CHECK_THROWS_AS(slice(g, {3, 2}, {0}), std::out_of_range);
  CHECK_THROWS_AS(slice(g, {4294967295u, 2}, {0}), std::out_of_range);
  slice s(g, {0, 4}, {0, 9});
  CHECK_THROWS_AS(s.tokens({7, 2}), std::out_of_range);
  CHECK_THROWS_AS(s.heads({2, 1}), std::out_of_range);
  CHECK_THROWS_AS(s.extents(9), std::out_of_range);
  CHECK(segment_offset(g, 10, 0, 9) == 9 * g.segment_bytes(0));
  CHECK_THROWS_AS(segment_offset(g, 10, 4, 0), std::out_of_range);
}
