#include "cokv/kvstream/kv_layout.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "cokv/runtime/error.hpp"
#include "detail/lattice.hpp"
#include "kvstream/layouts.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

std::vector<byte_place> bytes_of(const std::vector<extent>& extents) {
  std::vector<byte_place> out;
  for (const auto& e : extents)
    for (std::uint64_t i = 0; i < e.size; ++i) out.push_back({e.buffer, e.offset + i});
  return out;
}

std::vector<extent> fragments(const slice& s, const kv_layout& in) {
  std::vector<extent> out;
  s.for_each_fragment(in, [&](std::uint32_t, std::size_t, extent e) { out.push_back(e); });
  return out;
}

geometry two_heads() { return geometry(4, {{0, 3, 2, {{"k", dtype::f16, true, 8}, {"v", dtype::f16, true, 8}}}}); }

std::string refusal(const geometry& g, page_table pages, std::vector<std::vector<plane_strides>> groups) {
  try {
    kv_layout::strided(g, pages, std::move(groups));
  } catch (const config_error& e) {
    return e.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("kv layout: a selection is the same bytes in the same order, whatever the layout") {
  shapes random(11);
  int compared = 0;
  for (int round = 0; round < 60; ++round) {
    const bool keys_and_values = round % 2 == 0;
    const auto g = random.make(keys_and_values);
    const std::uint32_t blocks = 3 + random.below(3);
    for (const auto& known : random.layouts(g, blocks, keys_and_values)) {
      const auto n = 1 + random.below(3);
      const auto table = random.table(known.layout, n);
      for (int i = 0; i < 4; ++i) {
        const auto what = narrowing::of(random, g, n);
        const auto s = what.select(g, table);
        CAPTURE(known.name);
        CAPTURE(g.canonical());
        const auto expected = by_definition(g, known, what, table);
        const auto extents = s.extents(known.layout);
        CHECK(bytes_of(extents) == expected);
        CHECK(s.bytes() == expected.size());
        for (std::size_t e = 1; e < extents.size(); ++e)  // merged
          CHECK((extents[e].buffer != extents[e - 1].buffer ||
                 extents[e].offset != extents[e - 1].offset + extents[e - 1].size));

        const auto parts = fragments(s, known.layout);
        CHECK(bytes_of(parts) == expected);
        CHECK(parts.size() >= extents.size());

        // Runs say the same, and each belongs to one layer and block.
        std::vector<extent> by_run;
        std::size_t runs = 0;
        const auto covered = s.covered();
        s.for_each_run(known.layout, [&](std::uint32_t layer, std::size_t place, const kv_run& r) {
          CHECK((layer >= what.layers.first && layer < what.layers.end()));
          CHECK((place >= covered.first && place < covered.end()));
          for (std::uint64_t row = 0; row < r.rows; ++row)
            for (std::uint64_t c = 0; c < r.chunks; ++c)
              by_run.push_back({r.offset + row * r.row_stride + c * r.chunk_stride, r.chunk_bytes, r.buffer});
          ++runs;
        });
        CHECK(bytes_of(by_run) == expected);
        CHECK(runs <= std::size_t{what.layers.count} * n * (3 * 4 + 4));  // heads and planes at most, not tokens
        ++compared;
      }
    }
  }
  CHECK(compared > 1000);
}

TEST_CASE("kv layout: no byte beyond what a layout says that it needs, and none less") {
  shapes random(3);
  for (int round = 0; round < 40; ++round) {
    const auto g = random.make(round % 2 == 0);
    for (const auto& known : random.layouts(g, 3, round % 2 == 0)) {
      std::vector<std::uint64_t> ends(known.layout.buffers());
      for (std::uint32_t page = 0; page < known.layout.blocks() / known.layout.blocks_per_page(); ++page)
        for (std::uint32_t layer = 0; layer < g.layers(); ++layer)
          for (std::size_t p = 0; p < g.group(layer).planes.size(); ++p) {
            element e{layer, page, known.layout.page_tokens() - 1, 0, p, 0};
            e.head = static_cast<std::uint32_t>(heads(g, e)) - 1;
            e.dim = static_cast<std::uint32_t>(dims(g, e)) - 1;
            const auto at = known.at(e);
            ends.at(at.buffer) = std::max(ends.at(at.buffer), at.offset + width(g, e));
          }
      CAPTURE(known.name);
      for (std::uint32_t b = 0; b < known.layout.buffers(); ++b) CHECK(known.layout.bytes(b) == ends[b]);
    }
  }
}

TEST_CASE("kv layout: one token in FasterTransformer's caches is as many fragments as were counted there") {
  struct row {
    std::uint32_t layers, heads, head_size;
    std::size_t fragments;
  };
  for (auto r : {row{12, 12, 64, 1'296}, row{32, 8, 128, 4'352}}) {
    const auto g = geometry::attention(r.layers, r.heads, r.head_size, dtype::f16);
    const auto in = kv_layout::faster_transformer(g, 2, 1024);
    slice token(g, {0, r.layers}, {0, 1, 2});
    token.tokens({37, 1});
    CHECK(fragments(token, in).size() == r.fragments);
    CHECK(token.extents(in).size() == r.fragments);
    // Ours are as many rows, and a block's are one extent.
    const auto ours = kv_layout::paged(g, 8);
    CHECK(fragments(token, ours).size() == std::size_t{2} * r.layers * r.heads);
    slice block(g, {0, 1}, {5});
    CHECK(fragments(block, ours).size() == std::size_t{2} * r.heads * 16);
    CHECK(block.extents(ours).size() == 1);
  }
}

TEST_CASE("kv layout: a request's slot is a page of several blocks, the last of which may be short") {
  const auto g = two_heads();
  const auto in = kv_layout::faster_transformer(g, 3, 10);  // 4 + 4 + 2 tokens
  CHECK(in.blocks() == 9);
  CHECK(in.blocks_per_page() == 3);
  CHECK(in.tokens_of(3) == 4);
  CHECK(in.tokens_of(5) == 2);
  slice second(g, {0, 3}, {3, 4, 5});
  CHECK(!second.fits(in));
  CHECK_THROWS_AS(second.extents(in), std::out_of_range);
  second.tokens({0, 11});
  CHECK(!second.fits(in));
  second.tokens({0, 10});
  CHECK(second.fits(in));
  slice v(g, {1, 1}, {3, 4, 5});
  v.tokens({0, 10}).heads({1, 1});
  const std::uint64_t row = 16, head = 10 * row, page = 2 * head, layer = 3 * page;
  const auto e = v.extents(in);
  CHECK(e.back() == extent{layer + page + head + 8 * row, 2 * row, 1});
  slice apart(g, {0, 1}, {0, 8});  // a short block that is no sequence's end
  apart.tokens({0, 6});
  CHECK(apart.fits(in));
  slice beyond(g, {0, 1}, {9});
  CHECK_THROWS_AS(beyond.extents(in), std::out_of_range);
  CHECK_THROWS_AS(beyond.extents(kv_layout::paged(geometry::attention(1, 1, 1, dtype::f32), 10)),
                  std::invalid_argument);
}

TEST_CASE("kv layout: the example: vLLM's tensors, one a layer, and a page of theirs as two blocks of ours") {
  const auto g = geometry::attention(4, 8, 128, dtype::bf16);
  const std::uint64_t row = 256, token = 8 * row, block = 16 * token;
  plane_strides k{.page = block, .head = row, .token = token, .next_buffer = 1}, v = k;
  v.offset = 1024 * block;
  const auto theirs = kv_layout::strided(g, {.pages = 1024, .page_tokens = 16}, {{k, v}});
  CHECK(theirs.buffers() == 4);
  for (std::uint32_t layer = 0; layer < 4; ++layer) CHECK(theirs.bytes(layer) == 2 * 1024 * block);
  slice s(g, {2, 1}, {7});
  s.tokens({3, 1}).heads({1, 1});
  CHECK(s.extents(theirs) ==
        std::vector<extent>{{7 * block + 3 * token + row, row, 2}, {v.offset + 7 * block + 3 * token + row, row, 2}});

  // Their blocks of 32 tokens.
  k.page = v.page = 2 * block;
  const auto wide = kv_layout::strided(g, {.pages = 512, .page_tokens = 32}, {{k, v}});
  CHECK(wide.blocks() == 1024);
  CHECK(s.extents(wide) == s.extents(theirs));
}

TEST_CASE("kv layout: what can't be is refused by the plane's name") {
  const auto g = two_heads();  // rows of 16 bytes
  const plane_strides k{.offset = 0, .layer = 1024, .page = 512, .head = 128, .token = 16};
  plane_strides v = k;
  v.offset = 64;
  CHECK(refusal(g, {2, 4}, {{k, v}}) == "accepted");
  auto with = [&](auto change) {
    auto changed = v;
    change(changed);
    return refusal(g, {2, 4}, {{k, changed}});
  };
  CHECK(refusal(g, {0, 4}, {{k, v}}) == "kv layout: no pages, or none with tokens");
  CHECK(refusal(g, {2, 0}, {{k, v}}) == "kv layout: no pages, or none with tokens");
  CHECK(refusal(g, {4294967295u, 4294967295u}, {{k, v}}) == "kv layout: more than 2^32 blocks");
  CHECK(refusal(g, {2, 4}, {}) == "kv layout: strides for 0 layer groups, the geometry has 1");
  CHECK(refusal(g, {2, 4}, {{k}}) == "kv layout: layer 0: strides for 1 planes, the geometry has 2");
  // Overlaps: of a plane with itself, with the other, and where it can't be told.
  CHECK(with([](auto& s) { s.token = 8; }) == "kv layout: layer 0: plane 'v' overlaps itself");
  CHECK(with([](auto& s) { s.token = 0; }) == "kv layout: layer 0: plane 'v' overlaps itself");
  CHECK(with([](auto& s) { s.page = 128; }) == "kv layout: layer 0: plane 'v' overlaps itself");
  CHECK(with([](auto& s) { s.offset = 0; }).find("overlaps layer 0: plane") != std::string::npos);
  CHECK(with([](auto& s) { s.offset = 48; }) == "kv layout: layer 0: plane 'v' overlaps layer 0: plane 'k'");
  CHECK(with([](auto& s) { s.offset = 1024; }).find("overlaps") != std::string::npos);  // another layer's
  CHECK(with([](auto& s) { s.offset = 3072 + 64; }) == "accepted");                     // behind them all
  CHECK(with([](auto& s) { s.buffer = 1, s.offset = 0; }) == "accepted");
  // Alignment.
  CHECK(with([](auto& s) { s.offset = 65; }) == "kv layout: layer 0: plane 'v' is not aligned to its dtype");
  CHECK(with([](auto& s) { s.head = 129; }) == "kv layout: layer 0: plane 'v' is not aligned to its dtype");
  CHECK(with([](auto& s) { s.chunk_bytes = 1; }) == "kv layout: layer 0: plane 'v' is not aligned to its dtype");
  CHECK(with([](auto& s) { s.chunk_bytes = 6; }) ==
        "kv layout: layer 0: plane 'v' has rows of 16 bytes, no multiple of its chunks'");
  CHECK(with([](auto& s) { s.chunk_bytes = 1ull << 63; }).find("no multiple") != std::string::npos);
  // Sizes that wrap.
  for (auto huge : {std::uint64_t{1} << 62, std::uint64_t{1} << 63, ~std::uint64_t{1}}) {
    CHECK(with([&](auto& s) { s.offset = huge; }) == "kv layout: layer 0: plane 'v' reaches beyond 2^62 bytes");
    CHECK(with([&](auto& s) { s.layer = huge; }) == "kv layout: layer 0: plane 'v' reaches beyond 2^62 bytes");
    CHECK(with([&](auto& s) { s.page = huge; }) == "kv layout: layer 0: plane 'v' reaches beyond 2^62 bytes");
    CHECK(with([&](auto& s) { s.token = huge; }) == "kv layout: layer 0: plane 'v' reaches beyond 2^62 bytes");
  }
  CHECK(with([](auto& s) { s.next_buffer = 1; }) ==
        "kv layout: layer 0: plane 'v' has both a stride and a buffer for its next layer");
  CHECK(with([](auto& s) { s.layer = 0, s.next_buffer = 4294967295u; }) ==
        "kv layout: layer 0: plane 'v' needs more than 65536 buffers");
  CHECK(with([](auto& s) { s.buffer = 65536; }) == "kv layout: layer 0: plane 'v' needs more than 65536 buffers");
  // The factories' own.
  CHECK_THROWS_AS(kv_layout::paged(geometry::attention(4096, 1, 1 << 20, dtype::f32), 4294967295u), config_error);
  CHECK_THROWS_AS(pool_bytes(geometry::attention(4096, 8, 1 << 18, dtype::f32), 4294967295u), config_error);
  CHECK_THROWS_AS(kv_layout::contiguous(geometry::attention(4096, 1, 1 << 20, dtype::f32), 4294967295u, 4294967295u),
                  config_error);
  CHECK_THROWS_AS(kv_layout::contiguous(g, 4294967295u, 4294967295u), config_error);
  CHECK_THROWS_AS(kv_layout::faster_transformer(geometry::attention(1, 1, 1 << 20, dtype::f32), 65536, 4294967295u),
                  config_error);
  CHECK_THROWS_AS(kv_layout::faster_transformer(geometry::attention(1, 1, 6, dtype::f16), 1, 8), config_error);
  CHECK_THROWS_AS(kv_layout::faster_transformer(geometry(4, {{0, 1, 0, {{"c", dtype::f16, false, 8}}}}), 1, 8),
                  config_error);
  // Odd bytes of one plane leave the next one unaligned.
  const geometry odd(2, {{0, 1, 1, {{"d", dtype::u8, true, 6}, {"s", dtype::f32, true, 1}}}});
  CHECK_THROWS_AS(kv_layout::contiguous(odd, 1, 3), config_error);
  CHECK_NOTHROW(kv_layout::contiguous(odd, 1, 4));
}

TEST_CASE("kv layout: whatever strides are taken, every element has bytes of its own inside what the layout needs") {
  shapes random(23);
  const geometry g(2, {{0, 2, 2, {{"k", dtype::bf16, true, 2}, {"c", dtype::u8, false, 4}}}});
  int taken = 0;
  for (int round = 0; round < 200'000; ++round) {
    // Products of what is there, and now and then something else.
    auto stride = [&] { return random.below(8) ? std::uint64_t{4} << random.below(6) : random.below(200); };
    auto make = [&] {
      plane_strides s{.offset = random.below(40) * 4};
      s.page = stride(), s.head = stride(), s.token = stride(), s.chunk = stride();
      s.chunk_bytes = random.below(3) * 2;
      s.buffer = random.below(8) == 0;
      if (random.below(4))
        s.layer = stride();
      else
        s.next_buffer = 1;
      return s;
    };
    const page_table pages{1 + random.below(3), 1 + random.below(4)};
    const std::vector<plane_strides> planes{make(), make()};
    std::optional<kv_layout> in;
    try {
      in = kv_layout::strided(g, pages, {planes});
    } catch (const config_error&) {
      continue;
    }
    ++taken;
    std::set<byte_place> seen;
    bool inside = true;
    std::uint64_t count = 0;
    for (std::uint32_t layer = 0; layer < 2; ++layer)
      for (std::size_t p = 0; p < 2; ++p)
        for (std::uint32_t page = 0; page < pages.pages; ++page)
          for (std::uint32_t head = 0; head < (p == 0 ? 2 : 1); ++head)
            for (std::uint32_t token = 0; token < pages.page_tokens; ++token)
              for (std::uint64_t byte = 0; byte < 4; ++byte, ++count) {
                const auto& s = planes[p];
                const auto chunk = s.chunk_bytes ? s.chunk_bytes : 4;
                const auto at = s.offset + layer * s.layer + page * s.page + (p == 0 ? head * s.head : 0) +
                                token * s.token + byte / chunk * s.chunk + byte % chunk;
                const auto buffer = s.buffer + layer * s.next_buffer;
                inside = inside && buffer < in->buffers() && at < in->bytes(buffer);
                seen.insert({buffer, at});
              }
    CHECK(inside);
    CHECK(seen.size() == count);
  }
  CHECK(taken > 1000);
}

TEST_CASE("kv layout: sizes that lie are refused, however large: what is taken reaches as far as it says") {
  shapes random(31);
  const geometry g(2, {{0, 2, 2, {{"k", dtype::u8, true, 4}}}, {2, 1, 0, {{"c", dtype::u8, false, 4}}}});
  using wide = unsigned __int128;
  int taken = 0;
  for (int round = 0; round < 20'000; ++round) {
    auto any = [&]() -> std::uint64_t {
      if (random.below(3) == 0) return random.below(100);
      return (std::uint64_t{1} << random.below(64)) + random.below(5) - 2;
    };
    auto few = [&] { return random.below(4) ? 1 + random.below(6) : static_cast<std::uint32_t>(any()); };
    auto make = [&] {
      plane_strides s{.offset = any(), .page = any(), .head = any(), .token = any(), .chunk = any()};
      s.chunk_bytes = random.below(2) ? random.below(5) : any();
      s.buffer = random.below(4) ? 0 : few(), s.next_buffer = random.below(2) ? 0 : few();
      s.layer = s.next_buffer ? 0 : any();
      return s;
    };
    const page_table pages{few(), few()};
    const auto k = make(), c = make();
    try {
      const auto in = kv_layout::strided(g, pages, {{k}, {c}});
      ++taken;
      auto end = [&](const plane_strides& s, std::uint32_t layers, std::uint32_t heads) {
        const std::uint64_t chunk = s.chunk_bytes ? s.chunk_bytes : 4, chunks = 4 / chunk;
        return wide{s.offset} + wide{s.layer} * (layers - 1) + wide{s.page} * (pages.pages - 1) +
               wide{s.head} * (heads - 1) + wide{s.token} * (pages.page_tokens - 1) + wide{s.chunk} * (chunks - 1) +
               chunk;
      };
      CHECK((end(k, 2, 2) <= kv_layout::max_bytes && end(c, 1, 1) <= kv_layout::max_bytes));
      CHECK(in.buffers() <= kv_layout::max_buffers);
      CHECK(in.bytes(k.buffer + k.next_buffer) >= end(k, 2, 2));
      CHECK(in.bytes(c.buffer) >= end(c, 1, 1));
      CHECK(in.tokens_of(in.blocks() - 1) > 0);
    } catch (const config_error&) {
    }
  }
  CHECK(taken > 100);
}

TEST_CASE("kv layout: strides that share a byte are never taken, and arrays in any order always are") {
  using detail::lattice;
  shapes random(5);
  auto bytes = [](const lattice& l) {
    std::vector<std::uint64_t> out{l.offset};
    for (const auto& d : l.dimensions) {
      const auto n = out.size();
      for (std::uint64_t i = 1; i < d.count; ++i)
        for (std::size_t j = 0; j < n; ++j) out.push_back(out[j] + i * d.stride);
    }
    const auto n = out.size();
    for (std::uint64_t b = 1; b < l.chunk; ++b)
      for (std::size_t j = 0; j < n; ++j) out.push_back(out[j] + b);
    std::ranges::sort(out);
    return out;
  };
  auto unique = [](const std::vector<std::uint64_t>& v) { return std::ranges::adjacent_find(v) == v.end(); };
  auto make = [&] {
    lattice l{.offset = random.below(40), .chunk = 1 + random.below(3), .dimensions = {}};
    for (auto n = random.below(4); n > 0; --n) l.dimensions.push_back({random.below(30), 2 + random.below(3)});
    std::ranges::sort(l.dimensions, std::greater{}, &lattice::dimension::stride);
    return l;
  };
  int nested = 0, apart = 0;
  for (int i = 0; i < 20'000; ++i) {
    const auto a = make(), b = make();
    const auto in_a = bytes(a), in_b = bytes(b);
    if (a.nested()) CHECK((unique(in_a) && ++nested));
    CHECK(in_a.back() + 1 == a.offset + a.span());
    std::vector<std::uint64_t> both;
    std::ranges::set_intersection(in_a, in_b, std::back_inserter(both));
    if (detail::apart(a, b)) CHECK((both.empty() && ++apart));
    CHECK(detail::apart(a, b) == detail::apart(b, a));
  }
  CHECK(nested > 1000);
  CHECK(apart > 1000);

  // Planes are one more dimension of a dense array: of the same strides, side by side.
  for (int i = 0; i < 500; ++i) {
    std::vector<std::uint64_t> counts{2 + random.below(3), 2 + random.below(3), 2 + random.below(2)};
    const auto planes_at = random.below(4);
    lattice a{.chunk = 1 + random.below(3), .dimensions = {}};
    std::uint64_t stride = a.chunk, plane = 0;
    for (std::uint32_t d = 0; d <= counts.size(); ++d) {
      if (d == planes_at) plane = stride, stride *= 2;
      if (d == counts.size()) break;
      a.dimensions.insert(a.dimensions.begin(), {stride, counts[d]});
      stride = stride * counts[d] + random.below(3);
    }
    auto b = a;
    b.offset += plane;
    CHECK(a.nested());
    CHECK(detail::apart(a, b));
    b.offset -= random.below(static_cast<std::uint32_t>(plane) + 1);
    std::vector<std::uint64_t> both;
    std::ranges::set_intersection(bytes(a), bytes(b), std::back_inserter(both));
    CHECK((both.empty() || !detail::apart(a, b)));
  }
}
