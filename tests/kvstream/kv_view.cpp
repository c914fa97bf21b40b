#include "cokv/kvstream/kv_view.hpp"

#include <doctest/doctest.h>

#include "cokv/kvstream/gather.hpp"
#include "cokv/kvstream/local_window.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"
#include "kvstream/layouts.hpp"
#include "kvstream/transfers.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

struct stage {
  explicit stage(const asio::any_io_executor& ex)
      : dev(any_device(ex)),
        copies(dev.make_stream({.name = "copies"}).value()),
        kernels(dev.make_stream({.name = "pack"}).value()),
        staging(staging_pool::make(dev, 100, 3, memory_kind::host).value()),
        through{staging, kernels} {}
  device dev;
  stream copies, kernels;
  staging_pool staging;
  packing through;
};

std::vector<buffer> memory_of(const kv_layout& layout, bool pattern) {
  std::vector<buffer> out;
  for (std::uint32_t i = 0; i < layout.buffers(); ++i)
    out.push_back(pattern ? patterned(layout.bytes(i), i) : blank(layout.bytes(i)));
  return out;
}

std::string refusal(const kv_layout& layout, std::vector<buffer> memory) {
  try {
    kv_view view(layout, std::move(memory));
  } catch (const config_error& e) {
    return e.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("kv view: what is gathered from one layout and scattered into any other is the same KV there") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        stage s(ex);
        shapes random(17);
        int moved = 0;
        for (int round = 0; round < 6; ++round) {
          const bool keys_and_values = round % 2 == 0;
          const auto g = random.make(keys_and_values);
          const auto layouts = random.layouts(g, 4, keys_and_values);
          for (const auto& from : layouts)
            for (const auto& to : layouts) {
              const auto n = 1 + random.below(3);
              const auto what = narrowing::of(random, g, n);
              const auto from_table = random.table(from.layout, n), to_table = random.table(to.layout, n);
              const auto source = what.select(g, from_table), target = what.select(g, to_table);
              CAPTURE(from.name);
              CAPTURE(to.name);
              auto theirs = memory_of(from.layout, true), ours = memory_of(to.layout, false);
              auto expected = memory_of(to.layout, false);
              const auto at = by_definition(g, from, what, from_table), into = by_definition(g, to, what, to_table);
              REQUIRE(at.size() == into.size());
              for (std::size_t i = 0; i < at.size(); ++i)
                expected[into[i].buffer].bytes()[into[i].offset] = theirs[at[i].buffer].bytes()[at[i].offset];

              kv_view there(from.layout, theirs), here(to.layout, ours);
              local_window window(blank(at.size()), s.copies);
              const bool packs = random.below(2), unpacks = random.below(2);
              auto sent =
                  co_await async_gather(there, source, window.to(), 0, {.through = packs ? &s.through : nullptr});
              CHECK(sent.bytes == at.size());
              scatter_options back{.through = unpacks ? &s.through : nullptr};
              if (packs && unpacks) back.digest = sent.digest;
              co_await async_scatter(window.from(), 0, here, target, back);
              for (std::size_t b = 0; b < ours.size(); ++b) CHECK(same(ours[b].bytes(), expected[b].bytes()));
              ++moved;
            }
        }
        CHECK(moved == 3 * 8 * 8 + 3 * 6 * 6);
      },
      {.seeds = 2});
}

TEST_CASE("kv view: memory smaller than its layout, or in another number of buffers, is refused by its number") {
  const auto g = geometry::attention(2, 2, 8, dtype::f16, 4);
  const auto layout = kv_layout::faster_transformer(g, 3, 12);
  const std::uint64_t bytes = 2 * 3 * 2 * 12 * 16;
  CHECK(refusal(layout, {blank(bytes), blank(bytes)}) == "accepted");
  CHECK(refusal(layout, {blank(bytes), blank(bytes + 1)}) == "accepted");
  CHECK(refusal(layout, {blank(bytes), blank(bytes - 1)}) ==
        "KV memory: buffer 1 has 2303 bytes, its layout reaches to 2304");
  CHECK(refusal(layout, {blank(bytes)}) == "KV memory is 1 buffers, its layout has 2");
  CHECK(refusal(layout, {blank(bytes), blank(bytes), blank(bytes)}) == "KV memory is 3 buffers, its layout has 2");
  CHECK_THROWS_AS(kv_view(g, blank(pool_bytes(g, 3) - 1), 3), config_error);
  CHECK_THROWS_AS(kv_view(g, blank(16), 4294967295u), config_error);
  CHECK_THROWS_AS(kv_view(g, blank(16), 0), config_error);
}

TEST_CASE("kv view: a slice of another geometry or beyond the memory is refused, and touches nothing") {
  const auto g = geometry::attention(2, 2, 8, dtype::f16, 4);
  const auto layout = kv_layout::contiguous(g, 2, 10);
  kv_view view(layout, {blank(layout.bytes(0))});
  CHECK(view.blocks() == 6);
  CHECK(view.pieces(slice(geometry::attention(2, 2, 8, dtype::bf16, 4), {0, 2}, {0})).error() ==
        errc::invalid_argument);
  CHECK(view.pieces(slice(g, {0, 2}, {6})).error() == errc::out_of_range);
  CHECK(view.pieces(slice(g, {0, 2}, {2})).error() == errc::out_of_range);  // 2 tokens are left there
  CHECK(view.pieces(slice(g, {0, 2}, {2}).tokens({0, 2})).has_value());
  CHECK(!view.check(slice(g, {0, 2}, {2}).tokens({0, 2})));
}

TEST_CASE("kv view: pieces, runs and fragments of a pool are the same bytes, each of one block that it holds") {
  shapes random(5);
  for (int round = 0; round < 30; ++round) {
    const auto g = random.make(false);
    kv_pool pool(g, 4);
    auto leases = pool.allocate(4).value();
    std::ranges::copy(patterned(pool.memory().size()).bytes(), pool.memory().data());
    kv_view view(pool, leases);
    const auto n = 1 + random.below(4);
    const auto what = narrowing::of(random, g, n).select(g, random.table(view.layout(), n));
    std::vector<std::byte> expected, runs;
    what.for_each_extent(view.layout(), [&](extent e) {
      const auto bytes = pool.memory().bytes().subspan(e.offset, e.size);
      expected.insert(expected.end(), bytes.begin(), bytes.end());
    });
    auto joined = [](const std::vector<buffer>& pieces) {
      std::vector<std::byte> out;
      for (const auto& p : pieces) out.insert(out.end(), p.bytes().begin(), p.bytes().end());
      return out;
    };
    CHECK(joined(view.pieces(what).value()) == expected);
    CHECK(joined(view.fragments(what).value()) == expected);
    const auto all = view.runs(what).value();
    for (const auto& r : all.runs) {
      REQUIRE(r.together());
      const auto bytes = all.memory[r.buffer].bytes().subspan(r.offset, r.bytes());
      runs.insert(runs.end(), bytes.begin(), bytes.end());
    }
    CHECK(runs == expected);
  }

  const auto g = geometry::attention(2, 2, 8, dtype::f16, 4);
  kv_pool pool(g, 2);
  auto leases = pool.allocate(2).value();
  kv_view view(pool, leases);
  slice what(g, {0, 2}, {0, 1});
  CHECK(view.pieces(what).value().size() == 4);
  CHECK(view.fragments(what).value().size() == 2 * 8 * 2 * 2);
  auto held = view.runs(slice(g, {1, 1}, {1})).value();
  leases.clear();
  CHECK(pool.available() == 1);
  CHECK(view.fragments(what).error() == errc::stale_reference);
  CHECK(view.runs(what).error() == errc::stale_reference);
  held = {};
  CHECK(pool.available() == 2);
}

TEST_CASE("kv view: windows spare the blocks before them: freed ones are not looked at, and keep their bytes") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    stage s(ex);
    geometry g(4, {{0, 2, 1, {{"k", dtype::f32, true, 4}}, 6}});
    kv_pool pool(g, 4);
    auto leases = pool.allocate(4).value();
    std::ranges::copy(patterned(pool.memory().size()).bytes(), pool.memory().data());
    kv_view view(pool, leases);
    leases.erase(leases.begin());  // block 0 was slid over
    slice whole(g, {0, 2}, {0, 1, 2, 3});
    local_window window(blank(whole.bytes()), s.copies);
    CHECK((co_await async_gather(view, whole, window.to(), 0, {}, as_result)).error() == errc::stale_reference);
    auto what = whole;
    what.tokens({0, 15});
    auto sent = co_await async_gather(view, what, window.to(), 0);
    CHECK(sent.bytes == 2 * 6 * 16);

    auto memory = blank(pool_bytes(g, 4));
    kv_view into(g, memory, 4);
    co_await async_scatter(window.from(), 0, into, what);
    for (std::uint32_t layer = 0; layer < 2; ++layer)
      for (std::uint32_t token = 0; token < 16; ++token)
        for (int b = 0; b < 16; ++b) {
          const auto at = segment_offset(g, 4, layer, token / 4) + token % 4 * 16 + b;
          const bool covered = token >= 9 && token < 15;
          CHECK(memory.bytes()[at] == (covered ? pool.memory().bytes()[at] : std::byte{0xdd}));
        }
  });
}

TEST_CASE("kv view: heads and shared planes go apart from one degree of parallelism to another") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    stage s(ex);
    auto shape = [](std::uint32_t heads) {
      return geometry(4, {{0, 2, heads, {{"k", dtype::bf16, true, 4}, {"index", dtype::fp8_e4m3, false, 6}}}});
    };
    const auto two = shape(2), four = shape(4);
    const auto from = known_paged(two, 3), to = known_interleaved(four, 2, 8);
    std::vector<std::vector<buffer>> workers = {memory_of(from.layout, true), memory_of(from.layout, true)};
    std::ranges::copy(patterned(workers[1][0].size(), 99).bytes(), workers[1][0].data());
    auto memory = memory_of(to.layout, false);
    kv_view into(to.layout, memory);
    // Each of two workers has two of the heads, and both have the index, which comes from the first.
    for (std::uint32_t w = 0; w < 2; ++w) {
      kv_view view(from.layout, workers[w]);
      for (auto planes : {plane_set::per_head, plane_set::shared}) {
        if (planes == plane_set::shared && w > 0) continue;
        slice what(two, {0, 2}, {2, 0}), there(four, {0, 2}, {1, 3});
        what.tokens({1, 6}).planes(planes);
        there.tokens({1, 6}).heads({2 * w, 2}).planes(planes);
        REQUIRE(what.bytes() == there.bytes());
        local_window window(blank(what.bytes()), s.copies);
        co_await async_gather(view, what, window.to(), 0, {.through = &s.through});
        co_await async_scatter(window.from(), 0, into, there);
      }
    }
    for (std::uint32_t layer = 0; layer < 2; ++layer)
      for (std::uint32_t position = 1; position < 7; ++position) {
        const std::uint32_t source_table[] = {2, 0}, target_table[] = {1, 3};
        const auto block = target_table[position / 4];
        auto same = [&](std::uint32_t head, std::size_t plane, std::uint32_t dim, std::uint32_t worker) {
          const auto a = from.at({layer, source_table[position / 4], position % 4, head % 2, plane, dim});
          const auto b = to.at({layer, block / 2, block % 2 * 4 + position % 4, head, plane, dim});
          CHECK(workers[worker][0].bytes()[a.offset] == memory[0].bytes()[b.offset]);
        };
        for (std::uint32_t head = 0; head < 4; ++head)
          for (std::uint32_t dim = 0; dim < 4; ++dim) same(head, 0, dim, head / 2);
        for (std::uint32_t dim = 0; dim < 6; ++dim) same(0, 1, dim, 0);
      }
  });
}

TEST_CASE("kv view: what is scattered into is checked as what is gathered from, before and after") {
  for (bool packed : {false, true})
    co_test([packed](asio::any_io_executor ex) -> awaitable<void> {
      stage s(ex);
      const auto g = geometry::attention(2, 2, 8, dtype::f16, 4);
      kv_pool pool(g, 4);
      auto leases = pool.allocate(3).value();
      const auto a = leases[0].index(), b = leases[1].index(), c = leases[2].index();
      kv_view view(pool, leases);
      slice what(g, {0, 2}, {a, b});
      local_window window(patterned(what.bytes()), s.copies);
      const auto* through = packed ? &s.through : nullptr;
      auto scatter = [&](slice into, event begin = {}) {
        return async_scatter(window.from(), 0, view, into, {.through = through, .begin = begin}, as_result);
      };
      CHECK((co_await scatter(what)).has_value());

      // Another one's block, one that was never the view's, one beyond the pool.
      auto newer = pool.allocate().value();
      CHECK((co_await scatter(slice(g, {0, 2}, {a, newer.index()}))).error() == errc::stale_reference);
      CHECK((co_await scatter(slice(g, {0, 2}, {a, 4}))).error() == errc::out_of_range);

      // Freed and handed out again under the same index: the new owner's bytes stay.
      leases[2].reset();
      auto again = pool.allocate().value();
      REQUIRE(again.index() == c);
      std::ranges::fill(pool.segment(0, again).bytes(), std::byte{0x11});
      CHECK((co_await scatter(slice(g, {0, 2}, {a, c}))).error() == errc::stale_reference);
      CHECK(std::ranges::all_of(pool.segment(0, again).bytes(), [](std::byte x) { return x == std::byte{0x11}; }));

      // Freed between: the block is quarantined until the last write, which is for nobody.
      auto line = std::make_shared<detail::timeline_core>(ex);
      error_code ended;
      auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
        group.spawn([&]() -> awaitable<void> {
          auto r = co_await scatter(what, event(line, 1));
          ended = r.error();
        });
        for (int i = 0; i < 5; ++i) co_await asio::post(asio::deferred);
        leases[1].reset();
        CHECK(pool.available() == 0);
        line->advance(1);
      });
      CHECK(v);
      CHECK(ended == errc::stale_reference);
      for (int i = 0; i < 10 && pool.available() == 0; ++i) co_await asio::post(asio::deferred);
      CHECK(pool.available() == 1);
    });
}
