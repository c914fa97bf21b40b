// Sequences of a model in parts that take turns on its devices, in virtual time: each worker moves its part of them while others
// are computed; a copy that fails anywhere costs computing, a lost worker its requests, and neither a wrong token.
#include "engine/toy_stages.hpp"
#include "support/enough.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

constexpr toy_price price{.layer = 20us, .token = 2us};

// Of blocks of four tokens, a layer's 64 bytes each.
engine_options turns(const topology& split, std::uint32_t blocks, std::uint64_t host_blocks) {
  return {.kv_blocks = blocks,
          .block_tokens = 4,
          .prefix_cache = false,
          .swap = host_blocks * 64 * split.layers(toy_model::layers, 0).count};
}

}  // namespace

TEST_CASE("swap in parts: nothing is copied while everything fits") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        const topology split(2, 1);
        toy_stages s(ex, split, turns(split, 8 * 20 + 8, 500), price);
        stage_tally t;
        co_await joined(s, [&]() -> awaitable<void> { co_await at_once(s, 8, 20, 60, t); });
        CHECK(t.right == 8);
        CHECK(s.leader->sizes().host_blocks == 500);
        CHECK(s.leader->counters().swapped_out_bytes == 0);
        CHECK(s.leader->counters().preemptions == 0);
      },
      {.real = false, .seeds = 5});
}

TEST_CASE(
    "swap in parts: with blocks for a quarter nothing is computed again, and only new KV goes out, at every worker") {
  for (auto split : {topology(2, 1), topology(4, 1), topology(2, 2), topology(1, 3)})
    co_test(
        [&](asio::any_io_executor ex) -> awaitable<void> {
          INFO(split.text());
          toy_stages s(ex, split, turns(split, 8 * 60 / 4, 8 * 60), price);
          stage_tally t;
          co_await joined(s, [&]() -> awaitable<void> { co_await at_once(s, 8, 20, 220, t); });
          CHECK(t.right == 8);
          const auto c = s.leader->counters();
          const std::uint64_t block = 64 * split.layers(toy_model::layers, 0).count;
          CHECK(c.preemptions == 0);
          CHECK(c.swapped_out_bytes > 0);
          CHECK(c.swapped_in_bytes > c.swapped_out_bytes);
          CHECK(c.swapped_out_bytes <=
                2 * 8 * 60 * block);  // everything once, and a half-full block again at each turn
          CHECK(c.swap_failures == 0);
          CHECK(c.swap_blocks_free == c.swap_blocks);
          CHECK(c.blocks_in_use == 0);
          CHECK(c.parked == 0);
        },
        {.real = false, .seeds = 2});
}

TEST_CASE("swap in parts: copies that fail and workers that are lost cost their requests alone, and nothing is wrong") {
  stage_tally t{.devices_fail = true};
  std::uint64_t failed_copies = 0, losses = 0, moved = 0;
  co_test(
      [&](asio::any_io_executor ex) -> awaitable<void> {
        auto& ctx = context_of(ex);
        const auto split = ctx.chance(0.5) ? topology(2, 1) : ctx.chance(0.5) ? topology(3, 1) : topology(2, 2);
        auto o = turns(split, static_cast<std::uint32_t>(40 + ctx.below(60)), 20 + ctx.below(200));
        o.prefix_cache = ctx.chance(0.5);
        o.max_batched_tokens = 32;
        toy_stages s(ex, split, o, price);
        const auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
          co_await s.join_all(group);
          const auto asked = co_await with(task_group{}, [&](task_group& readers) -> awaitable<void> {
            s.faulty(0.0002, 0.03);
            for (int i = 0; i < 24;) {
              const auto prompt = toy_prompt(1 + ctx.below(60), ctx.below(3));
              const auto n = static_cast<std::uint32_t>(1 + ctx.below(90));
              const auto patience = ctx.chance(0.2) ? ctx.between(1ns, 20ms) : duration::zero();
              if (auto g = s.leader->submit(toy_request(prompt, n))) {
                readers.spawn(read_right(std::move(*g), prompt, n, patience, t));
                ++i;
              } else {
                CHECK(g.error() == errc::unavailable);
                co_await s.join_all(group);
              }
              if (ctx.chance(0.3)) co_await wait_for(ctx.between(1ns, 5ms));
              if (ctx.chance(0.03)) s.cut(ctx.below(100));
            }
          });
          CHECK(!asked.error());
          s.faulty(0, 0);
          s.stop();
        });
        CHECK(!v.error());
        co_await wait_for(10ms);
        for (auto why : s.ended) CHECK(why != errc::protocol);
        const auto c = s.leader->counters();
        failed_copies += c.swap_failures, losses += c.ranks_lost, moved += c.swapped_in_bytes > 0;
        CHECK(c.blocks_in_use == 0);
        CHECK(c.parked == 0);
        CHECK(c.swap_blocks_free == c.swap_blocks);
      },
      {.real = false, .seeds = 30});
  MESSAGE(t.right, " right, ", t.failed, " failed, ", t.cancelled, " cancelled, ", losses, " times a worker was lost, ",
          failed_copies, " copies failed, in ", moved, " runs KV moved");
  CHECK(t.right >= enough(120));
  CHECK(t.failed >= enough(60));
  CHECK(losses >= enough(10));
  CHECK(moved >= enough(12));
  CHECK(failed_copies >= enough(15));
}

// The last stage has three layers of four behind a slow link, so that its copies take three times as long as the leader's: whoever
// gives up in between leaves blocks that are still written.
TEST_CASE("swap in parts: blocks of who gives up are nobody's before the slowest worker has ended its copy") {
  stage_tally t;
  std::uint64_t in_bytes = 0;
  co_test(
      [&](asio::any_io_executor ex) -> awaitable<void> {
        auto& ctx = context_of(ex);
        auto slow = sim::published_device("h200").value();
        slow.name = "slow-link", slow.pcie_bytes_per_second = 1e6;
        sim::device::define(ctx, slow);
        const topology split(2, 1, 0, {0, 1});
        auto o = turns(split, 60, 400);
        toy_stages s(ex, split, o, price, 0, "sim:slow-link");
        co_await joined(s, [&]() -> awaitable<void> {
          const auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
            for (std::uint64_t i = 0; i < 60; ++i) {
              const auto prompt = toy_prompt(30 + ctx.below(30), i);
              const auto n = static_cast<std::uint32_t>(40 + ctx.below(80));
              const auto patience = ctx.chance(0.6) ? ctx.between(5ms, 100ms) : duration::zero();
              auto request = toy_request(prompt, n);
              request.priority =
                  static_cast<std::int32_t>(ctx.below(3));  // who came to the device just now gives way too
              group.spawn(read_right(s.leader->submit(std::move(request)).value(), prompt, n, patience, t));
              co_await wait_for(ctx.between(1ns, 3ms));
            }
          });
          CHECK(!v.error());
        });
        in_bytes += s.leader->counters().swapped_in_bytes;
        for (auto why : s.ended) CHECK(why != errc::protocol);
        CHECK(s.leader->counters().blocks_in_use == 0);
      },
      {.real = false, .seeds = 5});
  MESSAGE(t.right, " right, ", t.cancelled, " cancelled, ", in_bytes, " bytes in");
  CHECK(t.failed == 0);
  CHECK(t.right >= enough(80));
  CHECK(t.cancelled >= enough(80));
  CHECK(in_bytes >= enough(150'000));
}
