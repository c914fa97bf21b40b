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
  CHECK(s.extents(kv_layout::paged(g, 8)) == std::vector<extent>{{3 * g.segment_bytes(0), 3 * g.segment_bytes(0)}});
  slice all(g, {0, 2}, {0, 1, 2, 3});
  CHECK(all.extents(kv_layout::paged(g, 4)) == std::vector<extent>{{0, pool_bytes(g, 4)}});
  slice apart(g, {0, 2}, {5, 3});
  CHECK(apart.extents(kv_layout::paged(g, 8)).size() == 4);
  CHECK(apart.extents(kv_layout::paged(g, 8))[0].offset == 5 * g.segment_bytes(0));
}

TEST_CASE("slice: K and V of a range of heads are one extent") {
  auto g = geometry::attention(1, 4, 8, dtype::f32);
  slice s(g, {0, 1}, {2});
  s.heads({1, 2});
  CHECK(s.extents(kv_layout::paged(g, 4)) ==
        std::vector<extent>{{2 * g.segment_bytes(0) + g.head_bytes(0), 2 * g.head_bytes(0)}});
}

TEST_CASE("slice: one token is a row of every plane of every head") {
  auto g = geometry::attention(12, 12, 64, dtype::f16);
  slice s(g, {0, 12}, {0, 1});
  s.tokens({17, 1});
  CHECK(s.extents(kv_layout::paged(g, 2)).size() == 12 * 12 * 2);
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
    s.for_each_extent(kv_layout::paged(g, pool), [&](extent e) {
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

TEST_CASE("slice: planes with heads and planes without can be selected apart, as re-sharding needs") {
  auto g = mixed();
  const auto in = kv_layout::paged(g, 4);
  auto both = slice(g, {0, 4}, {2, 1});
  both.tokens({1, 6}).heads({1, 1});
  auto per_head = both, shared = both;
  per_head.planes(plane_set::per_head);
  shared.planes(plane_set::shared);
  CHECK(both.bytes() == per_head.bytes() + shared.bytes());
  CHECK(per_head.bytes() == 6 * (2 * (6 + 4) * 2 + 8));
  CHECK(shared.bytes() == 6 * (5 * 4 + 2 * 2 + 4));
  CHECK(shared.heads({0, 0}).bytes() == 6 * (5 * 4 + 2 * 2 + 4));
  CHECK(slice(g, {2, 1}, {2, 1}).planes(plane_set::per_head).extents(in).empty());
  CHECK(slice(g, {0, 2}, {2, 1}).planes(plane_set::shared).extents(in).empty());
  CHECK(slice(g, {2, 1}, {1, 2}).planes(plane_set::shared).extents(in) == slice(g, {2, 1}, {1, 2}).extents(in));
}

TEST_CASE("slice: a compressed latent is the same on every worker, whatever heads are asked for") {
  // Latent and position parts, 512 + 64 elements a token, beside an indexer's keys.
  geometry g(16, {{0, 61, 0, {{"latent", dtype::bf16, false, 512}, {"rope", dtype::bf16, false, 64}}}});
  const auto in = kv_layout::paged(g, 8);
  slice all(g, {0, 61}, {3, 5});
  CHECK(all.bytes() == 2 * g.block_bytes());
  CHECK(slice(g, {0, 61}, {3, 5}).heads({7, 1}).extents(in) == all.extents(in));
  CHECK(slice(g, {4, 1}, {3}).extents(in) ==
        std::vector<extent>{{segment_offset(g, 8, 4, 3), std::uint64_t{16} * 576 * 2}});
  slice token(g, {4, 1}, {3});
  token.tokens({2, 1});
  CHECK(token.extents(in) == std::vector<extent>{{segment_offset(g, 8, 4, 3) + 2 * 1024, 1024},
                                                 {segment_offset(g, 8, 4, 3) + 16 * 1024 + 2 * 128, 128}});
}

TEST_CASE("slice: fp8 data and its scales go together, head by head") {
  geometry g(16, {{0,
                   2,
                   4,
                   {{"k", dtype::fp8_e4m3, true, 128},
                    {"v", dtype::fp8_e4m3, true, 128},
                    {"k_scale", dtype::f32, true, 1},
                    {"v_scale", dtype::f32, true, 1}}}});
  const auto in = kv_layout::paged(g, 4);
  slice head(g, {1, 1}, {2});
  head.heads({3, 1});
  const auto at = segment_offset(g, 4, 1, 2) + 3 * g.head_bytes(1);
  CHECK(head.extents(in) == std::vector<extent>{{at, std::uint64_t{16} * 264}});
  head.tokens({5, 2});
  CHECK(head.extents(in) == std::vector<extent>{{at + 5 * 128, 256},
                                                {at + 16 * 128 + 5 * 128, 256},
                                                {at + 32 * 128 + 5 * 4, 8},
                                                {at + 32 * 128 + 16 * 4 + 5 * 4, 8}});
}

TEST_CASE("slice: layers with a window cover the last tokens of the sequence, the others all") {
  plane k{"k", dtype::f32, true, 4};
  geometry g(4, {{0, 1, 1, {k}}, {1, 2, 1, {k}, 6}, {3, 1, 1, {k}, 100}});
  const std::uint64_t row = 16;
  slice s(g, {0, 4}, {0, 1, 2, 3, 4});
  // Nobody has said how far the last block is filled: nothing may be left out.
  CHECK(s.tokens(1) == index_range{0, 20});
  CHECK(s.bytes() == 4 * 20 * row);

  s.tokens({0, 18});
  CHECK(s.tokens(0) == index_range{0, 18});
  CHECK(s.tokens(1) == index_range{12, 6});
  CHECK(s.tokens(3) == index_range{0, 18});
  CHECK(s.bytes() == (18 + 6 + 6 + 18) * row);
  CHECK(s.covered() == index_range{0, 5});
  CHECK(slice(g, {1, 2}, {0, 1, 2, 3, 4}).tokens({0, 18}).covered() == index_range{3, 2});

  // A part of the sequence: its own end counts, unless it is told where the sequence ends.
  s.tokens({2, 12});
  CHECK(s.tokens(1) == index_range{8, 6});
  s.ends_at(18);
  CHECK(s.tokens(1) == index_range{12, 2});
  s.ends_at(20);
  CHECK(s.tokens(1).count == 0);
  CHECK(slice(s).tokens({0, 0}).covered() == index_range{});
  slice whole(g, {0, 4}, {0, 1, 2, 3, 4});
  CHECK(whole.ends_at(19).tokens(2) == index_range{13, 7});
}

TEST_CASE("slice: ranges that follow each other cover at least what the whole sequence's windows need") {
  geometry g(4, {{0, 1, 1, {{"k", dtype::f32, true, 4}}, 6}});
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    const std::uint32_t length = 1 + random() % 40;
    std::vector<std::uint32_t> table(10);
    std::set<std::uint32_t> covered, needed;
    for (std::uint32_t at = 0; at < length;) {
      const std::uint32_t n = 1 + random() % (length - at);
      const auto part = slice(g, {0, 1}, table).tokens({at, n}).tokens(0);
      for (auto t = part.first; t < part.end(); ++t) covered.insert(t);
      at += n;
    }
    const auto whole = slice(g, {0, 1}, table).tokens({0, length}).tokens(0);
    for (auto t = whole.first; t < whole.end(); ++t) CHECK(covered.contains(t));
    CHECK(whole.count == std::min(length, 6u));
  }
}

TEST_CASE("slice: blocks before every window hold nothing, and the table may say anything there") {
  geometry g(4, {{0, 2, 1, {{"k", dtype::f32, true, 4}}, 6}});
  const auto in = kv_layout::paged(g, 3);
  slice s(g, {0, 2}, {0xffffffffu, 0xffffffffu, 2, 0});
  CHECK(!s.fits(in));
  s.tokens({0, 15});
  CHECK(s.fits(in));
  CHECK(s.extents(in).size() == 4);
  s.tokens({0, 13});  // the window reaches into the block before
  CHECK(!s.fits(in));
}

TEST_CASE("slice: a block twice is known, where tokens of both places are covered") {
  auto g = mixed();
  slice s(g, {0, 4}, {2, 1, 2});
  CHECK(!s.distinct());
  CHECK(!s.tokens({3, 6}).distinct());
  CHECK(s.tokens({4, 8}).distinct());
  CHECK(s.tokens({0, 0}).distinct());
}

TEST_CASE("slice: beyond the geometry, the sequence or the pool is refused") {
  auto g = mixed();
  CHECK_THROWS_AS(slice(g, {3, 2}, {0}), std::out_of_range);
  CHECK_THROWS_AS(slice(g, {4294967295u, 2}, {0}), std::out_of_range);
  slice s(g, {0, 4}, {0, 9});
  CHECK_THROWS_AS(s.tokens({7, 2}), std::out_of_range);
  CHECK_THROWS_AS(s.heads({2, 1}), std::out_of_range);
  CHECK_NOTHROW(slice(g, {0, 3}, {0}).heads({2, 1}));  // of the layers selected, those with heads have this one
  CHECK_THROWS_AS(s.extents(kv_layout::paged(g, 9)), std::out_of_range);
  CHECK(segment_offset(g, 10, 0, 9) == 9 * g.segment_bytes(0));
  CHECK_THROWS_AS(segment_offset(g, 10, 4, 0), std::out_of_range);
}
