#include "cokv/kvstream/gather.hpp"

#include <doctest/doctest.h>

#include <optional>
#include <random>

#include "cokv/kvstream/block_window.hpp"
#include "cokv/kvstream/digest.hpp"
#include "cokv/kvstream/local_window.hpp"
#include "cokv/kvstream/memory_store.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/semaphore.hpp"
#include "cokv/runtime/with.hpp"
#include "kvstream/transfers.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

// A group with heads, one without, one with both: what a slice can meet.
geometry mixed() {
  return geometry(4, {{0, 2, 3, {{"k", dtype::bf16, true, 4}, {"v", dtype::bf16, true, 2}}},
                      {2, 1, 0, {{"latent", dtype::f32, false, 3}}},
                      {3, 1, 2, {{"k", dtype::u8, true, 8}, {"scale", dtype::f32, false, 2}}}});
}

slice make_slice(const geometry& g, const selection& s) {
  slice out(g, s.layers, s.table);
  out.tokens(s.tokens);
  if (s.heads.count != 99) out.heads(s.heads);
  return out;
}

struct stage {
  explicit stage(const asio::any_io_executor& ex, std::size_t piece = 100)
      : dev(any_device(ex)),
        copies(dev.make_stream({.name = "copies"}).value()),
        kernels(dev.make_stream({.name = "pack"}).value()),
        staging(staging_pool::make(dev, piece, 3, memory_kind::host).value()),
        through{staging, kernels} {}
  device dev;
  stream copies, kernels;
  staging_pool staging;
  packing through;
};

}  // namespace

TEST_CASE("a slice gathered is its bytes in order, and scattered it is where it was, however it is cut and packed") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        const auto g = mixed();
        constexpr std::uint32_t blocks = 5;
        stage s(ex);
        auto memory = patterned(pool_bytes(g, blocks));
        kv_view view(g, memory, blocks);
        const std::vector<std::vector<std::uint32_t>> tables = {{0, 1, 2}, {3, 1}, {4}, {2, 2}};
        std::mt19937 random(7);
        int cases = 0;
        for (std::uint32_t first = 0; first < 4; ++first)
          for (std::uint32_t count = 1; first + count <= 4; ++count)
            for (const auto& table : tables)
              for (int variant = 0; variant < 6; ++variant) {
                const auto all = static_cast<std::uint32_t>(table.size() * 4);
                selection sel{{first, count}, {0, all}, {0, 99}, table};
                if (variant > 0) {
                  sel.tokens.first = random() % all;
                  sel.tokens.count = random() % (all - sel.tokens.first + 1);
                }
                const bool heads = variant > 2 && first < 2 && first + count <= 2;
                if (heads) {
                  sel.heads.first = random() % 2;
                  sel.heads.count = random() % (2 - sel.heads.first + 1);
                }
                const auto what = make_slice(g, sel);
                const auto at = naive_bytes(g, blocks, sel);
                CHECK(what.bytes() == at.size());
                std::vector<std::byte> expected;
                for (auto offset : at) expected.push_back(memory.bytes()[offset]);

                const bool packed = variant % 2 == 1;
                const auto* through = packed ? &s.through : nullptr;
                const auto how = variant == 1 ? digest_algorithm::xxh3_64 : digest_algorithm::xxh3_64_tree;
                local_window window(blank(at.size() + 20), s.copies);
                auto sent = co_await async_gather(view, what, window.to(), 10, {.through = through, .digest = how});
                CHECK(sent.bytes == at.size());
                if (packed) CHECK(sent.digest == (variant == 1 ? digest_of(expected) : tree_digest_of(expected)));
                CHECK(same(window.memory().slice(10, at.size()).bytes(), expected));
                CHECK(window.memory().bytes()[9] == std::byte{0xdd});
                CHECK(window.memory().bytes()[10 + at.size()] == std::byte{0xdd});

                auto other = blank(memory.size());
                kv_view into(g, other, blocks);
                if (!what.distinct()) {
                  auto twice = co_await async_scatter(window.from(), 10, into, what, {.through = through}, as_result);
                  CHECK(twice.error() == errc::invalid_argument);
                  CHECK(unpack_here(into, what, expected) == errc::invalid_argument);
                  continue;
                }
                scatter_options back{.through = through, .algorithm = how};
                if (packed) back.digest = sent.digest;
                auto got = co_await async_scatter(window.from(), 10, into, what, back);
                CHECK(got.bytes == at.size());
                auto model = blank(memory.size());
                for (auto offset : at) model.bytes()[offset] = memory.bytes()[offset];
                CHECK(same(other.bytes(), model.bytes()));
                auto here = blank(memory.size());
                CHECK(!unpack_here(kv_view(g, here, blocks), what, expected));
                CHECK(same(here.bytes(), model.bytes()));
                expected.push_back({});
                CHECK(unpack_here(kv_view(g, here, blocks), what, expected) == errc::invalid_argument);
                cases += table != tables[3];
              }
        CHECK(cases == 10 * 3 * 6);
      },
      {.seeds = 3});
}

TEST_CASE("bytes that are not those that were sent are an error") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    const auto g = mixed();
    stage s(ex);
    kv_view view(g, patterned(pool_bytes(g, 3)), 3);
    slice what(g, {0, 4}, {0, 2});
    local_window window(blank(what.bytes()), s.copies);
    auto sent = co_await async_gather(view, what, window.to(), 0, {.through = &s.through});
    window.memory().bytes()[what.bytes() / 2] ^= std::byte{4};
    auto r = co_await async_scatter(window.from(), 0, kv_view(g, blank(pool_bytes(g, 3)), 3), what,
                                    {.through = &s.through, .digest = sent.digest}, as_result);
    CHECK(r.error() == errc::digest_mismatch);
    for (int i = 0; i < 10; ++i) co_await asio::post(asio::deferred);  // buffers go back by post
    CHECK(s.staging.available() == 3);
  });
}

TEST_CASE(
    "gathers through one packing: what is computed is not held up by what is not, however little staging there is") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    const auto g = geometry::attention(3, 2, 16, dtype::f32, 4);
    stage s(ex);
    kv_view view(g, patterned(pool_bytes(g, 3)), 3);
    auto line = std::make_shared<detail::timeline_core>(ex);
    const auto n = slice(g, {0, 1}, {0, 1, 2}).bytes();
    CHECK(n > 2 * s.staging.count() * s.staging.buffer_bytes());
    local_window window(blank(3 * n), s.copies);
    semaphore done(ex, 0);
    std::vector<permit> arrived;
    auto layer = [&](std::uint32_t l) -> awaitable<void> {
      co_await async_gather(view, slice(g, {l, 1}, {0, 1, 2}), window.to(), l * n,
                            {.through = &s.through, .begin = event(line, l + 1)});
      done.release();
    };
    auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      for (std::uint32_t l = 0; l < 3; ++l) group.spawn(layer(l));
      for (std::uint32_t l = 0; l < 3; ++l) {
        line->advance(l + 1);  // the next one is computed only when this one has arrived
        arrived.push_back(co_await done.async_acquire());
        std::vector<std::byte> expected;
        for (const auto& piece : view.pieces(slice(g, {l, 1}, {0, 1, 2})).value())
          expected.insert(expected.end(), piece.bytes().begin(), piece.bytes().end());
        CHECK(same(window.memory().slice(l * n, n).bytes(), expected));
      }
    });
    CHECK(v);
  });
}

namespace {

// On a device's own memory, where no kernel of the host packs: its copies do.
awaitable<void> device_round_trip(asio::any_io_executor ex, digest_algorithm how) {
  const auto g = mixed();
  stage s(ex, 60);
  const auto bytes = pool_bytes(g, 3);
  auto memory = patterned(bytes), back = blank(bytes);
  auto near = s.dev.allocate(bytes).value(), far = s.dev.allocate(bytes).value();
  CHECK(!near.host_accessible());
  CHECK(!s.copies.copy(near, memory));
  CHECK(!s.copies.copy(far, back));
  const auto filled = s.copies.record();
  slice what(g, {0, 4}, {2, 0});
  what.tokens({1, 6});
  local_window window(blank(what.bytes()), s.copies);
  auto sent = co_await async_gather(kv_view(g, near, 3), what, window.to(), 0,
                                    {.through = &s.through, .begin = after(filled), .digest = how}, as_result);
  if (!sent) co_return;
  const auto all = window.memory().bytes();
  CHECK(sent->digest == (how == digest_algorithm::xxh3_64 ? digest_of(all) : tree_digest_of(all)));
  auto got = co_await async_scatter(window.from(), 0, kv_view(g, far, 3), what,
                                    {.through = &s.through, .digest = sent->digest, .algorithm = how}, as_result);
  if (!got) co_return;
  CHECK(!s.copies.copy(back, far));
  if (!co_await s.copies.record().async_wait(as_result)) co_return;
  const auto at = naive_bytes(g, 3, {{0, 4}, {1, 6}, {0, 99}, {2, 0}});
  std::size_t i = 0, wrong = 0;
  for (auto offset : at) {
    wrong += window.memory().bytes()[i++] != memory.bytes()[offset];
    wrong += back.bytes()[offset] != memory.bytes()[offset];
    back.bytes()[offset] = std::byte{0xdd};
  }
  CHECK(wrong == 0);
  CHECK(std::ranges::all_of(back.bytes(), [](std::byte b) { return b == std::byte{0xdd}; }));
  auto bare = co_await async_gather(kv_view(g, near, 3), what, window.to(), 0,
                                    {.through = &s.through, .digest = digest_algorithm::none}, as_result);
  if (bare) CHECK(bare->digest == 0);
  auto other = co_await async_scatter(window.from(), 0, kv_view(g, near, 3), what,
                                      {.through = &s.through, .digest = sent->digest + 1, .algorithm = how}, as_result);
  CHECK(!other);
}

}  // namespace

TEST_CASE("what lies on a device is packed and unpacked by its copies, and digested on the way") {
  for (auto how : {digest_algorithm::xxh3_64, digest_algorithm::xxh3_64_tree}) {
    const auto body = [how](asio::any_io_executor ex) { return device_round_trip(ex, how); };
    co_test(body, {.real = false, .seeds = 100});
    cancel_at_every_step(body, {.real = false, .seeds = 1});
    destroy_at_every_step(body, {.real = false, .seeds = 1});
  }
}

TEST_CASE("memory that is neither the host's nor the packing device's is refused") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    const auto g = mixed();
    stage s(ex);
    auto memory = blank(pool_bytes(g, 2));
    auto away = buffer::adopt(memory.data(), memory.size(), memory_kind::device, std::make_shared<buffer>(memory));
    slice what(g, {0, 4}, {1});
    local_window window(blank(what.bytes()), s.copies);
    auto there = co_await async_gather(kv_view(g, away, 2), what, window.to(), 0, {.through = &s.through}, as_result);
    CHECK(there.error() == errc::wrong_device);
    auto back = co_await async_scatter(window.from(), 0, kv_view(g, away, 2), what, {.through = &s.through}, as_result);
    CHECK(back.error() == errc::wrong_device);
    CHECK(std::ranges::all_of(memory.bytes(), [](std::byte b) { return b == std::byte{0xdd}; }));
  });
}

TEST_CASE("a view knows its blocks: a freed one is stale, and what is read is not handed out again") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    const auto g = mixed();
    stage s(ex);
    kv_pool pool(g, 3);
    auto leases = pool.allocate(2).value();
    const auto a = leases[0].index(), b = leases[1].index();
    for (std::uint32_t l = 0; l < 4; ++l)
      for (auto& lease : leases) std::ranges::fill(pool.segment(l, lease).bytes(), std::byte(lease.index() + 1));
    kv_view view(pool, leases);
    local_window window(blank(2 * g.block_bytes()), s.copies);
    co_await async_gather(view, slice(g, {0, 4}, {a, b}), window.to(), 0);
    for (std::uint64_t at = 0, l = 0; l < 4; at += 2 * g.segment_bytes(l), ++l) {
      CHECK(window.memory().bytes()[at] == std::byte(a + 1));
      CHECK(window.memory().bytes()[at + g.segment_bytes(l)] == std::byte(b + 1));
    }
    auto none = co_await async_gather(view, slice(g, {0, 1}, {2 - a + 1 - b + 0}), window.to(), 0, {}, as_result);
    CHECK(none.error() == errc::stale_reference);
    CHECK((co_await async_gather(view, slice(g, {0, 1}, {7}), window.to(), 0, {}, as_result)).error() ==
          errc::out_of_range);

    // Freed while a transfer waits to read it: quarantined until that is over.
    auto line = std::make_shared<detail::timeline_core>(ex);
    auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      group.spawn([&]() -> awaitable<void> {
        co_await async_gather(view, slice(g, {0, 4}, {a}), window.to(), 0, {.begin = event(line, 1)});
      });
      for (int i = 0; i < 5; ++i) co_await asio::post(asio::deferred);
      leases[0].reset();
      CHECK(pool.available() == 1);
      line->advance(1);
    });
    CHECK(v);
    CHECK(pool.available() == 2);
    auto stale = co_await async_gather(view, slice(g, {0, 1}, {a}), window.to(), 0, {}, as_result);
    CHECK(stale.error() == errc::stale_reference);
  });
}

TEST_CASE("a gather and a scatter can be cancelled and destroyed at every step: right bytes or an error") {
  for (bool packed : {false, true}) {
    auto body = [packed](asio::any_io_executor ex) -> awaitable<void> {
      const auto g = mixed();
      stage s(ex, 64);
      auto memory = patterned(pool_bytes(g, 3));
      auto other = blank(memory.size());
      kv_view view(g, memory, 3), into(g, other, 3);
      slice what(g, {0, 4}, {2, 0});
      local_window window(blank(what.bytes()), s.copies);
      const auto* through = packed ? &s.through : nullptr;
      auto sent = co_await async_gather(view, what, window.to(), 0, {.through = through}, as_result);
      CHECK(s.staging.count() == 3);
      if (!sent) co_return;
      auto got = co_await async_scatter(window.from(), 0, into, what, {.through = through}, as_result);
      if (!got) co_return;
      for (auto e : what.extents(view.layout()))
        CHECK(same(other.slice(e.offset, e.size).bytes(), memory.slice(e.offset, e.size).bytes()));
    };
    cancel_at_every_step(body, {.real = false, .seeds = 1});
    destroy_at_every_step(body, {.real = false, .seeds = 1});
  }
}

TEST_CASE("a gather that is cancelled ends after its kernels, also where the sink ends at once") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        const auto g = geometry::attention(1, 2, 4, dtype::f32);
        stage s(ex, 1 << 16);
        kv_view view(g, patterned(pool_bytes(g, 2)), 2);
        memory_store store(ex, {});
        auto writer = co_await store.async_open_write({}, g.layout(), chain_keys(std::vector<std::int32_t>(32), 16));
        auto line = std::make_shared<detail::timeline_core>(ex);
        asio::cancellation_signal stop;
        std::optional<error_code> ended;
        async_gather(view, slice(g, {0, 1}, {0, 1}), blocks_to(std::move(writer), g.layout(), 2), 0,
                     {.through = &s.through, .begin = event(line, 1), .level = completion_level::local},
                     asio::bind_cancellation_slot(stop.slot(), [&](error_code ec, transferred) { ended = ec; }));
        auto& time = clock::of(ex);
        co_await time.async_wait_for(std::chrono::seconds(1), asio::deferred);
        stop.emit(asio::cancellation_type::total);
        co_await time.async_wait_for(std::chrono::seconds(1), asio::deferred);
        CHECK(!ended);  // the kernel that reads the slice waits for its event
        line->advance(1);
        co_await time.async_wait_for(std::chrono::seconds(1), asio::deferred);
        REQUIRE(ended);
        CHECK(*ended == asio::error::operation_aborted);
      },
      {.real = false});
}
