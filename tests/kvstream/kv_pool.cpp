#include "cokv/kvstream/kv_pool.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "cokv/kvstream/kv_view.hpp"
#include "cokv/kvstream/slice.hpp"
#include "cokv/runtime/device.hpp"
#include "cokv/runtime/error.hpp"

using namespace cokv;

namespace {

geometry small() {
  return geometry(4, {{0, 2, 2, {{"k", dtype::f32, true, 4}, {"v", dtype::f32, true, 4}}},
                      {2, 1, 0, {{"c", dtype::f32, false, 5}}}});
}

}  // namespace

TEST_CASE("kv_pool: one contiguous extent a layer and block, none over another") {
  auto g = small();
  kv_pool pool(g, 3);
  auto leases = pool.allocate(3);
  REQUIRE(leases.has_value());
  std::set<std::byte*> covered;
  for (auto& l : *leases)
    for (std::uint32_t layer = 0; layer < 3; ++layer) {
      auto s = pool.segment(layer, l);
      CHECK(s.size() == g.segment_bytes(layer));
      CHECK(s.data() == pool.memory().data() + pool.offset(layer, l.index()));
      CHECK(pool.offset(layer, l.index()) == segment_offset(g, 3, layer, l.index()));
      for (std::size_t i = 0; i < s.size(); ++i) covered.insert(s.data() + i);
    }
  CHECK(covered.size() == pool_bytes(g, 3));
}

TEST_CASE("kv_pool: who wants a block hears once of one that comes back, from whichever thread, also of one before") {
  kv_pool pool(small(), 2);
  const auto before = pool.returned();
  auto one = pool.allocate().value(), two = pool.allocate().value();
  std::atomic<int> told{0};
  CHECK(pool.on_return(before, [&] { ++told; }));
  auto read = pool.segment(0, two);
  two.reset();
  CHECK(told == 0);  // quarantined
  std::thread([last = std::move(read)]() mutable { last = {}; }).join();
  CHECK(told == 1);
  CHECK(pool.returned() == before + 1);
  CHECK(!pool.on_return(before, [&] { told = 100; }));
  CHECK(pool.on_return(before + 1, [&] { told = 100; }));
  CHECK(pool.on_return(before + 1, {}));  // not any more
  one.reset();
  CHECK(told == 1);
  CHECK(pool.available() == 2);
}

TEST_CASE("kv_pool: layers that are elsewhere have two places by turns, and nothing else of theirs is to be had") {
  const auto g = geometry::attention(5, 2, 4, dtype::f32, 4);
  const std::vector<std::uint32_t> elsewhere{1, 2, 4};
  const auto layer = g.segment_bytes(0) * 3;
  REQUIRE(pool_bytes(g, 3, elsewhere) == 4 * layer);
  CHECK(pool_bytes(g, 3, {}) == pool_bytes(g, 3));
  kv_pool pool(g, 3, buffer::host(4 * layer), elsewhere);
  CHECK(!pool.whole());
  CHECK((pool.elsewhere(2) && !pool.elsewhere(3)));
  const auto at = pool.landings();
  CHECK((at[0].size() == layer && at[1].size() == layer));
  CHECK((at[0].data() == pool.memory().data() + 2 * layer && at[1].data() == at[0].data() + layer));
  auto lease = pool.allocate().value();
  CHECK(pool.offset(0, 2) == 2 * g.segment_bytes(0));
  CHECK(pool.offset(3, 0) == layer);
  CHECK_THROWS_AS(pool.offset(2, 0), std::logic_error);
  pool.place(2, at[1]);
  pool.place(4, at[0].slice(0, layer - 1));
  CHECK(pool.offset(2, 1) == 3 * layer + g.segment_bytes(2));
  CHECK(pool.offset(4, 0) == 2 * layer);
  pool.place(2, at[0]);
  CHECK(pool.offset(2, 0) == 2 * layer);

  CHECK(pool.segment(3, lease).data() == pool.memory().data() + layer);
  CHECK_THROWS_AS(pool.segment(1, lease), std::logic_error);
  CHECK(pool.segment(1, lease.ref()).error() == errc::unsupported);
  CHECK_THROWS_AS(kv_view(pool, {&lease, 1}), std::logic_error);
  CHECK_THROWS_AS(pool.place(3, at[0]), std::logic_error);
  CHECK_THROWS_AS(pool.place(1, at[0].slice(1, 1)), std::logic_error);
  CHECK_THROWS_AS(pool.place(1, pool.memory()), std::logic_error);
  CHECK_THROWS_AS(pool.place(1, buffer::host(8)), std::logic_error);

  const auto made = [&](std::vector<std::uint32_t> those, std::uint64_t bytes) {
    kv_pool(g, 3, buffer::host(bytes), std::move(those));
  };
  CHECK_THROWS_AS(made({1, 2, 4}, 4 * layer - 1), config_error);
  CHECK_THROWS_AS(made({1, 1}, 5 * layer), config_error);
  CHECK_THROWS_AS(made({2, 1}, 5 * layer), config_error);
  CHECK_THROWS_AS(made({5}, 6 * layer), config_error);
  CHECK_THROWS_AS(made({0, 1, 2, 3, 4}, 5 * layer), config_error);
}

TEST_CASE("kv_pool: all of n blocks or none") {
  kv_pool pool(small(), 4);
  auto two = pool.allocate(2);
  REQUIRE(two.has_value());
  auto three = pool.allocate(3);
  CHECK(three.error() == errc::out_of_memory);
  CHECK(pool.stats().free == 2);
  CHECK(pool.stats().refusals == 1);
  CHECK(pool.allocate(0)->empty());
}

TEST_CASE("kv_pool: a freed block's references are stale, in this life and the next") {
  kv_pool pool(small(), 1);
  CHECK(!pool.current(block_ref{}));
  auto lease = pool.allocate();
  auto ref = lease->ref();
  CHECK(pool.current(ref));
  CHECK(pool.lease(ref)->ref() == ref);
  CHECK(pool.segment(0, ref).has_value());
  lease->reset();
  CHECK(!pool.current(ref));
  auto again = pool.allocate();
  CHECK(again->index() == ref.index);
  CHECK(again->ref() != ref);
  CHECK(pool.segment(0, ref).error() == errc::stale_reference);
  CHECK(pool.lease(ref).error() == errc::stale_reference);
  CHECK(pool.segment(3, again->ref()).error() == errc::out_of_range);
  CHECK(!pool.current({7, 1}));
}

TEST_CASE("kv_pool: a block lives as long as its last share") {
  kv_pool pool(small(), 1);
  auto first = *pool.allocate();
  auto second = first.share();
  CHECK(second.shares() == 2);
  auto ref = first.ref();
  first.reset();
  CHECK(!first);
  CHECK(pool.current(ref));
  auto third = std::move(second);
  CHECK(third.shares() == 1);
  third = block_lease();
  CHECK(!pool.current(ref));
  CHECK(pool.available() == 1);
}

TEST_CASE("kv_pool: a freed block stays in quarantine while a buffer of it is held, on any thread") {
  kv_pool pool(small(), 1);
  auto lease = *pool.allocate();
  auto ref = lease.ref();
  auto held = pool.segment(1, lease).slice(8, 8);
  lease.reset();
  CHECK(pool.stats().quarantined == 1);
  CHECK(!pool.current(ref));  // nothing new begins
  CHECK(pool.allocate().error() == errc::out_of_memory);
  std::thread([held = std::move(held)]() mutable { held = buffer(); }).join();
  CHECK(pool.stats().quarantined == 0);
  CHECK(pool.allocate().has_value());
}

TEST_CASE("kv_pool: buffers and leases may outlive the pool") {
  block_lease lease;
  buffer held;
  {
    kv_pool pool(small(), 2);
    lease = *pool.allocate();
    held = pool.segment(0, lease);
  }
  std::memset(held.data(), 1, held.size());
  lease.reset();
  std::memset(held.data(), 2, held.size());
}

TEST_CASE("kv_pool: misuse is refused by rule") {
  kv_pool pool(small(), 1), other(small(), 1);
  auto lease = *other.allocate();
  CHECK_THROWS_WITH_AS(pool.segment(0, lease), "kv_pool: a lease is used with the pool it came from", std::logic_error);
  CHECK_THROWS_AS(pool.hold_until(lease, {}), std::logic_error);
  CHECK_THROWS_AS(block_lease().ref(), std::logic_error);
  CHECK_THROWS_AS(block_lease().share(), std::logic_error);
  CHECK_THROWS_AS(other.segment(3, lease), std::out_of_range);
  CHECK_THROWS_AS(pool.offset(0, 1), std::logic_error);
  CHECK_THROWS_AS(kv_pool(small(), 0), config_error);
  CHECK_THROWS_AS(kv_pool(small(), 2, buffer::host(pool_bytes(small(), 2) - 1)), config_error);
}

TEST_CASE("kv_pool: a block freed under a copy is not handed out before the copy is done") {
  asio::io_context ctx(1);
  kv_pool pool(small(), 1);
  auto device = open_device(ctx.get_executor(), "cpu").value();
  auto stream = device.make_stream().value();
  std::atomic<bool> go{false};
  auto lease = *pool.allocate();
  auto target = pool.segment(0, lease);
  auto source = buffer::host(target.size());
  std::memset(source.data(), 7, source.size());
  REQUIRE(!stream.launch("wait", [&go] { go.wait(false); }));
  REQUIRE(!stream.copy(target, source));
  auto* bytes = target.data();
  target = buffer();
  lease.reset();
  CHECK(pool.allocate().error() == errc::out_of_memory);
  CHECK(pool.stats().quarantined == 1);
  go = true;
  go.notify_all();
  error_code drained = asio::error::would_block;
  stream.async_drain([&](error_code ec) { drained = ec; });
  ctx.run();
  CHECK(!drained);
  CHECK(bytes[0] == std::byte{7});
  CHECK(pool.allocate().has_value());
}

TEST_CASE("kv_pool: a block that an event holds comes free with the event") {
  asio::io_context ctx(1);
  kv_pool pool(small(), 2);
  auto device = open_device(ctx.get_executor(), "cpu").value();
  auto stream = device.make_stream().value();
  std::atomic<bool> go{false};
  auto lease = *pool.allocate();
  REQUIRE(!stream.launch("write", [&go] { go.wait(false); }));
  pool.hold_until(lease, stream.record());
  pool.hold_until(lease, event());
  lease.reset();
  CHECK(pool.available() == 1);
  CHECK(pool.allocate(2).error() == errc::out_of_memory);
  go = true;
  go.notify_all();
  stream.async_drain([](error_code) {});
  ctx.run();
  CHECK(pool.allocate(2).has_value());
}

TEST_CASE("kv_pool: events that are waited for do not pile up") {
  kv_pool pool(small(), 1);
  auto lease = *pool.allocate();
  for (int i = 0; i < 100'000; ++i) pool.hold_until(lease, event());
  lease.reset();
  CHECK(pool.available() == 1);
}

TEST_CASE("kv_pool: agrees with a model of truth over random operations") {
  auto g = small();
  constexpr std::uint32_t blocks = 7;
  for (unsigned seed = 0; seed < 30; ++seed) {
    std::mt19937 random(seed);
    auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
    kv_pool pool(g, blocks);

    struct truth {
      std::uint32_t leases = 0, buffers = 0;
    };
    struct held_lease {
      block_lease lease;
      block_ref ref;
    };
    struct held_buffer {
      buffer bytes;
      std::uint32_t block;
    };
    std::map<std::uint32_t, truth> model;
    for (std::uint32_t i = 0; i < blocks; ++i) model[i] = {};
    std::vector<held_lease> leases;
    std::vector<held_buffer> buffers;
    std::vector<block_ref> seen;

    auto count = [&](auto&& p) {
      std::uint32_t n = 0;
      for (auto& [i, t] : model) n += p(t);
      return n;
    };
    for (int step = 0; step < 1000; ++step) {
      auto free = count([](auto& t) { return !t.leases && !t.buffers; });
      switch (below(6)) {
        case 0:
        case 1: {
          auto n = static_cast<std::uint32_t>(below(3));
          auto got = pool.allocate(n);
          REQUIRE(got.has_value() == (n <= free));
          if (!got) break;
          for (auto& l : *got) {
            auto& t = model[l.index()];
            REQUIRE((!t.leases && !t.buffers));  // nobody else can touch it
            t.leases = 1;
            for (auto& old : seen) REQUIRE(old != l.ref());
            seen.push_back(l.ref());
            leases.push_back({std::move(l), seen.back()});
          }
          break;
        }
        case 2:
          if (!leases.empty()) {
            auto i = below(leases.size());
            leases.push_back({leases[i].lease.share(), leases[i].ref});
            ++model[leases[i].ref.index].leases;
          }
          break;
        case 3:
          if (!leases.empty()) {
            auto i = below(leases.size());
            --model[leases[i].ref.index].leases;
            std::swap(leases[i], leases.back());
            leases.pop_back();
          }
          break;
        case 4:
          if (!leases.empty()) {
            auto& l = leases[below(leases.size())];
            buffers.push_back({pool.segment(static_cast<std::uint32_t>(below(3)), l.lease), l.ref.index});
            ++model[l.ref.index].buffers;
          }
          break;
        case 5:
          if (!buffers.empty()) {
            auto i = below(buffers.size());
            --model[buffers[i].block].buffers;
            std::swap(buffers[i], buffers.back());
            buffers.pop_back();
          }
          break;
      }
      auto stats = pool.stats();
      REQUIRE(stats.leased == count([](auto& t) { return t.leases > 0; }));
      REQUIRE(stats.quarantined == count([](auto& t) { return !t.leases && t.buffers; }));
      REQUIRE(stats.free == count([](auto& t) { return !t.leases && !t.buffers; }));
      for (auto& l : leases) REQUIRE(pool.current(l.ref));
      std::set<block_ref> live;
      for (auto& l : leases) live.insert(l.ref);
      for (auto& ref : seen) REQUIRE(pool.current(ref) == live.contains(ref));
    }
  }
}
