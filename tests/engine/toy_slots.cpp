// Microbatches of a model in parts that take turns on its devices, in virtual time: KV has its home in the hosts' memory, and a
// step's comes in while others are computed. Answers are the model's whatever is lost, and the copies hide.
#include "engine/toy_stages.hpp"
#include "support/enough.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

constexpr toy_price price{.layer = 20us, .token = 2us};

// Of blocks of four tokens, a layer's 64 bytes each.
engine_options by_microbatch(const topology& split, std::uint32_t slots, std::uint64_t blocks) {
  return {.kv_blocks = slots,
          .block_tokens = 4,
          .swap = blocks * 64 * split.layers(toy_model::layers, 0).count,
          .swap_by = swap_unit::microbatch};
}

// Another model's workers write a prompt's KV into everybody's home, whatever slots still have of its blocks.
awaitable<void> arrive(toy_stages& s, arrival a, std::vector<token_id> prompt) {
  const auto room = co_await a.async_room(asio::deferred);
  co_await wait_for(context_of(s.ex).between(1ns, 1ms));
  if (context_of(s.ex).chance(0.1)) co_return a.fail(errc::unavailable);
  const auto bt = s.leader->sizes().block_tokens;
  fill_toy_kv(
      bt,
      [&](std::uint32_t layer, std::uint32_t b) {
        for (std::uint32_t n = 0;; ++n) {
          const auto layers = s.split.layers(toy_model::layers, s.split.at(n).stage);
          if (layer >= layers.end()) continue;
          const auto& pool = n == 0 ? s.leader->pool() : s.others[n - 1]->pool();
          return pool.memory().data() + pool.offset(layer - layers.first, room.blocks.at(b));
        }
      },
      prompt, room.first, room.tokens);
  if (room.tokens == prompt.size()) CHECK(!a.first(toy_answer(prompt, 1).front()));
  a.complete();
}

// Some begin alike, some give up, some come late.
awaitable<void> some_requests(toy_stages& s, std::size_t count, stage_tally& out, task_group* workers = nullptr) {
  auto& ctx = context_of(s.ex);
  const auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    for (std::size_t i = 0; i < count;) {
      const auto prompt = toy_prompt(1 + ctx.below(60), ctx.below(3));
      const auto n = static_cast<std::uint32_t>(1 + ctx.below(40));
      const auto patience = ctx.chance(0.2) ? ctx.between(1ns, 20ms) : duration::zero();
      if (auto g = s.leader->submit(toy_request(prompt, n))) {
        group.spawn(read_right(std::move(*g), prompt, n, patience, out));
        ++i;
      } else {
        REQUIRE(workers);
        CHECK(g.error() == errc::unavailable);
        co_await s.join_all(*workers);
      }
      if (ctx.chance(0.5)) co_await wait_for(ctx.between(1ns, 5ms));
      if (workers && ctx.chance(0.05)) s.cut(ctx.below(100));
    }
  });
  CHECK(!v.error());
}

}  // namespace

TEST_CASE("slots: every answer is the model's, in any number of stages and ranks, with room for a part of the KV") {
  stage_tally t;
  std::uint64_t in = 0;
  for (auto split : {topology(2, 1), topology(4, 1), topology(1, 2), topology(2, 3)})
    for (std::uint32_t slots : {56u, 120u})
      co_test(
          [&](asio::any_io_executor ex) -> awaitable<void> {
            auto o = by_microbatch(split, slots, 500);
            o.max_batched_tokens = 32;
            o.prefix_cache = context_of(ex).chance(0.5);
            o.microbatches = static_cast<std::uint32_t>(context_of(ex).below(6));
            toy_stages s(ex, split, o, price);
            CHECK(s.leader->sizes().slots == slots);
            CHECK(s.leader->sizes().kv_blocks == 500);
            co_await joined(s, [&]() -> awaitable<void> { co_await some_requests(s, 20, t); });
            const auto c = s.leader->counters();
            CHECK(c.blocks_in_use == 0);
            CHECK(c.blocks == 500);
            CHECK(c.preemptions == 0);
            in += c.swapped_in_bytes;
            for (auto why : s.ended) CHECK(why != errc::protocol);
          },
          {.real = false, .seeds = 6});
  MESSAGE(t.right, " right, ", t.cancelled, " cancelled, ", in, " bytes in");
  CHECK(t.failed == 0);
  CHECK(t.right >= enough(300));
  CHECK(in >= enough(1'000'000));
}

// What goes home takes longer than steps do: whose slots are taken, for what comes in or is begun, must be at home before.
TEST_CASE("slots: what is on its way home is not computed over, however slow that is") {
  stage_tally t;
  for (double link : {1e5, 1e6})
    co_test(
        [&](asio::any_io_executor ex) -> awaitable<void> {
          auto& ctx = context_of(ex);
          auto slow = sim::published_device("h200").value();
          slow.name = "slow-link", slow.pcie_bytes_per_second = link;
          sim::device::define(ctx, slow);
          const topology split(2, 1);
          auto o = by_microbatch(split, 60, 500);
          o.prefix_cache = ctx.chance(0.3);
          toy_stages s(ex, split, o, price, 0, "sim:slow-link");
          co_await joined(s, [&]() -> awaitable<void> {
            const auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
              for (std::uint64_t i = 0; i < 6; ++i) {
                const auto p = toy_prompt(80 + ctx.below(33), i);
                const auto n = static_cast<std::uint32_t>(1 + ctx.below(5));
                group.spawn(read_right(s.leader->submit(toy_request(p, n)).value(), p, n, {}, t));
                if (ctx.chance(0.5)) co_await wait_for(ctx.between(1ns, 5ms));
              }
            });
            CHECK(!v.error());
          });
        },
        {.real = false, .seeds = 10});
  CHECK(t.failed + t.cancelled == 0);
  CHECK(t.right >= enough(120));
}

TEST_CASE("slots: nothing comes in while everything fits, and only blocks with new tokens go home") {
  const topology split(2, 1);
  co_test(
      [&](asio::any_io_executor ex) -> awaitable<void> {
        toy_stages s(ex, split, by_microbatch(split, 2 * 8 * 20, 2000), price);
        stage_tally t;
        co_await joined(s, [&]() -> awaitable<void> { co_await at_once(s, 8, 20, 60, t); });
        CHECK(t.right == 8);
        const auto c = s.leader->counters();
        CHECK(c.swapped_in_bytes == 0);
        CHECK(c.swapped_out_bytes == 8 * (5 + 59) * 64 * 2);  // the prompt's blocks, and each token's
      },
      {.real = false, .seeds = 3});
}

TEST_CASE("slots: with few blocks at home, too, requests are computed again, and right") {
  stage_tally t;
  std::uint64_t preempted = 0;
  const topology split(3, 1);
  co_test(
      [&](asio::any_io_executor ex) -> awaitable<void> {
        auto o = by_microbatch(split, 60, 70);
        o.prefix_cache = context_of(ex).chance(0.5);
        toy_stages s(ex, split, o, price);
        co_await joined(s, [&]() -> awaitable<void> { co_await some_requests(s, 30, t); });
        preempted += s.leader->counters().preemptions;
        CHECK(s.leader->counters().blocks_in_use == 0);
      },
      {.real = false, .seeds = 10});
  CHECK(t.failed == 0);
  CHECK(t.right >= enough(150));
  CHECK(preempted >= enough(20));
}

TEST_CASE("slots: copies and workers that are lost fail what is under way, and nothing is wrong") {
  stage_tally t{.devices_fail = true};
  std::uint64_t losses = 0;
  co_test(
      [&](asio::any_io_executor ex) -> awaitable<void> {
        auto& ctx = context_of(ex);
        const auto split = ctx.chance(0.5) ? topology(2, 1) : ctx.chance(0.5) ? topology(3, 1) : topology(2, 2);
        auto o = by_microbatch(split, static_cast<std::uint32_t>(52 + ctx.below(60)), 120 + ctx.below(300));
        o.prefix_cache = ctx.chance(0.5);
        o.max_batched_tokens = 32;
        toy_stages s(ex, split, o, price);
        const auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
          co_await s.join_all(group);
          s.faulty(0.0002, 0.0005);
          co_await some_requests(s, 24, t, &group);
          s.faulty(0, 0);
          s.stop();
        });
        CHECK(!v.error());
        co_await wait_for(10ms);
        for (auto why : s.ended) CHECK(why != errc::protocol);
        losses += s.leader->counters().ranks_lost;
        CHECK(s.leader->counters().blocks_in_use == 0);
      },
      {.real = false, .seeds = 40});
  MESSAGE(t.right, " right, ", t.failed, " failed, ", t.cancelled, " cancelled, ", losses, " times a worker was lost");
  CHECK(t.right >= enough(200));
  CHECK(t.failed >= enough(60));
  CHECK(losses >= enough(30));
}

TEST_CASE("slots: KV that comes from elsewhere is what is computed with, not what slots had of its blocks before") {
  stage_tally t;
  std::uint64_t in = 0, arrivals = 0;
  const topology split(3, 1);
  co_test(
      [&](asio::any_io_executor ex) -> awaitable<void> {
        auto& ctx = context_of(ex);
        auto o = by_microbatch(split, static_cast<std::uint32_t>(56 + ctx.below(60)), 150);
        o.prefix_cache = ctx.chance(0.5);
        toy_stages s(ex, split, o, price);
        co_await joined(s, [&]() -> awaitable<void> {
          const auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
            for (int i = 0; i < 40; ++i) {
              const auto prompt = toy_prompt(1 + ctx.below(60), ctx.below(6));
              const auto n = static_cast<std::uint32_t>(1 + ctx.below(40));
              if (ctx.chance(0.4)) {
                group.spawn(read_right(s.leader->submit(toy_request(prompt, n)).value(), prompt, n, {}, t));
              } else {
                const bool whole = prompt.size() < 2 || ctx.chance(0.5);
                auto both = s.leader->receive(toy_request(prompt, n),
                                              whole ? std::optional<std::uint32_t>()
                                                    : static_cast<std::uint32_t>(1 + ctx.below(prompt.size() - 1)));
                REQUIRE(both.has_value());
                ++arrivals;
                auto [answer, comes] = std::move(*both);
                group.spawn(read_right(std::move(answer), prompt, n, {}, t));
                group.spawn(arrive(s, std::move(comes), prompt));
              }
              co_await wait_for(ctx.between(1ns, 6ms));
            }
          });
          CHECK(!v.error());
        });
        in += s.leader->counters().swapped_in_bytes;
        CHECK(s.leader->counters().blocks_in_use == 0);
      },
      {.real = false, .seeds = 12});
  MESSAGE(t.right, " right, ", t.failed, " failed, ", arrivals, " arrived, ", in, " bytes in");
  CHECK(t.right >= enough(300));
  CHECK(t.failed >= enough(10));  // whose KV did not come
  CHECK(in >= enough(100'000));
}

TEST_CASE("slots: cancelled or destroyed at any step they leave nothing behind") {
  const topology split(2, 1);
  const auto body = [split](asio::any_io_executor ex) -> awaitable<void> {
    toy_stages s(ex, split, by_microbatch(split, 6, 40), price);
    stage_tally t;
    try {
      co_await joined(s, [&]() -> awaitable<void> { co_await at_once(s, 3, 5, 3, t); });
    } catch (const boost::system::system_error& cancelled) {
      CHECK(cancelled.code() == asio::error::operation_aborted);
    }
    co_await s.ends_clean();
  };
  cancel_at_every_step(body);
  destroy_at_every_step(body);
}

// DejaVu's case (arXiv 2403.01876, section 4.2.2): four stages, whose devices have room for four sequences of the greatest length. In
// four microbatches each has one. When microbatches take turns a device has two of them, the one that it computes and the next, each of two
// sequences: the batch is twice as large, and where a step costs the same whatever its batch, so many answers take half the
// time. That KV comes in and goes home takes none, while it is shorter than a step.
TEST_CASE("slots: with N stages microbatches are N / 2 times as large, and their copies hide") {
  const auto makespan = [](bool by_turns, double link) {
    duration out{};
    co_test(
        [&](asio::any_io_executor ex) -> awaitable<void> {
          auto& ctx = context_of(ex);
          auto how = sim::published_device("h200").value();
          how.name = "some-link", how.pcie_bytes_per_second = link;
          sim::device::define(ctx, how);
          const topology split(4, 1);
          constexpr std::uint32_t each = 16, sequences = 16;  // blocks of a sequence of 63 tokens and the next
          auto o = by_turns ? by_microbatch(split, 4 * each, sequences * each + 40)
                            : engine_options{.kv_blocks = 4 * each, .block_tokens = 4};
          o.prefix_cache = false;
          toy_stages s(ex, split, o, {.layer = 1ms, .token = 0ns}, 0, "sim:some-link");
          stage_tally t;
          co_await joined(s, [&]() -> awaitable<void> {
            const auto begun = clock::of(ex).now();
            co_await at_once(s, sequences, 4, 60, t);
            out = clock::of(ex).now() - begun;
          });
          CHECK(t.right == sequences);
          if (!by_turns) co_return;
          const auto c = s.leader->counters();
          CHECK(c.preemptions == 0);
          CHECK(c.swapped_in_bytes > 10 * c.swapped_out_bytes / 4);
        },
        {.real = false, .seeds = 1});
    return std::chrono::duration<double, std::milli>(out).count();
  };
  // A step's two sequences have at most 32 blocks of a layer's 64 bytes, 2 KB: at 6 MB/s they come in in 0.35 ms.
  const auto fits = makespan(false, 6e6), turns = makespan(true, 6e6), at_once_there = makespan(true, 3e12),
             slow = makespan(true, 1e6);
  MESSAGE("four at a time ", fits, " ms, by turns ", turns, ", over a link without end ", at_once_there,
          ", over one that is too slow ", slow);
  CHECK(fits / turns >= 1.9);
  CHECK(turns <= 1.01 * at_once_there);
  CHECK(slow > 1.3 * turns);
}
