// Whole engines in virtual time, their tiers failing in every way: an answer is what the model would say, or its prefix.
#include "cokv/runtime/sim_device.hpp"
#include "engine/toy_engine.hpp"
#include "support/enough.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

struct tally {
  std::uint64_t preemptions = 0, cached = 0, resumed = 0, late = 0, load_failures = 0, cancelled = 0, tokens = 0,
                restored = 0, swapped_in = 0, swapped_out = 0;
};

// Prompts that begin alike, some cancelled, on a small pool. `eos`: some answers end early.
awaitable<void> serve_some(engine& e, sim_context& ctx, const std::vector<token_id>& eos, tally& out) {
  auto group = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    for (int i = 0; i < 14; ++i) {
      auto prompt = toy_prompt(1 + ctx.below(100), ctx.below(3));
      if (ctx.chance(0.3)) prompt.push_back(static_cast<token_id>(ctx.below(90)));
      const auto n = static_cast<std::uint32_t>(1 + ctx.below(30));
      auto request = toy_request(prompt, n);
      if (ctx.chance(0.3)) request.priority = static_cast<std::int32_t>(ctx.below(5)) - 2;
      auto submitted = e.submit(std::move(request));
      REQUIRE(submitted.has_value());
      const auto patience = ctx.chance(0.2) ? ctx.between(1ns, 20ms) : duration::zero();
      group.spawn([](generation g, std::vector<token_id> prompt, std::uint32_t n, duration patience,
                     const std::vector<token_id>& eos, tally& out) -> awaitable<void> {
        if (patience.count() > 0) {
          co_await wait_for(patience);
          g.cancel();
        }
        const auto got = co_await read_all(std::move(g));
        auto want = toy_answer(prompt, n, eos);
        if (got.ended != asio::error::eof) {
          CHECK(got.ended == asio::error::operation_aborted);
          ++out.cancelled;
          REQUIRE(got.tokens.size() <= want.size());
          want.resize(got.tokens.size());
        }
        CHECK(got.tokens == want);
        out.tokens += got.tokens.size();
        out.cached += got.report.cached_tokens;
        // What was not computed came from somewhere.
        std::uint32_t all = got.report.cached_device_tokens;
        for (auto t : got.report.cached_tier_tokens) all += t;
        CHECK(all == got.report.cached_tokens);
        CHECK(got.report.cached_tokens < got.report.prompt_tokens);
        CHECK(got.report.generated_tokens == got.tokens.size());
      }(std::move(*submitted), std::move(prompt), n, patience, eos, out));
      if (ctx.chance(0.5)) co_await wait_for(ctx.between(1ns, 5ms));
    }
  });
  CHECK(static_cast<bool>(group));
}

void random_engines(bool ahead, std::size_t seeds_wanted, tally& out, bool swap = false) {
  co_test(
      [&](asio::any_io_executor ex) -> awaitable<void> {
        auto& ctx = static_cast<sim_context&>(asio::query(ex, asio::execution::context));
        const std::vector<token_id> eos = ctx.chance(0.5) ? std::vector<token_id>{1, 2, 3} : std::vector<token_id>{};
        const faults some{.error = 0.02,
                          .hang = 0.03,
                          .damaged = 0.06,
                          .lost = 0.06,
                          .slowest = 300us,
                          .stubborn = ctx.chance(0.4) ? 15ms : 0ms};
        auto host = std::make_shared<fault_store>(ex, ctx.seed()),
             disk = std::make_shared<fault_store>(ex, ctx.seed() + 1, some);
        const bool always = ctx.chance(0.5);
        if (ctx.chance(0.5)) host->fault = {.lost = 0.1, .slowest = 1ms};
        for (int restart = 0; restart < 3; ++restart) {
          engine_options o{.kv_blocks = static_cast<std::uint32_t>(20 + ctx.below(60)),
                           .block_tokens = static_cast<std::uint32_t>(4 << ctx.below(2)),
                           .max_batched_tokens = static_cast<std::uint32_t>(8 << ctx.below(5)),
                           .max_running = static_cast<std::uint32_t>(1 + ctx.below(12)),
                           .prefix_cache = ctx.chance(0.4),
                           .async_scheduling = ahead};
          o.policy = always ? kv_policy::always : kv_policy::automatic;
          o.kv_blocks = std::max(o.kv_blocks, 140 / o.block_tokens);
          if (ctx.chance(0.8)) o.tiers = {toy_tier("host", host), toy_tier("disk", disk)};
          o.connector.first_backoff = 1ms;
          if (swap) o.swap = (1 + ctx.below(100)) * o.block_tokens * 16 * toy_model::layers;
          toy_engine e(ex, o, {.layer = 20us, .token = 2us}, eos);
          co_await serve_some(e.run, ctx, eos, out);
          co_await e.drain();
          const auto c = e.run.counters();
          CHECK(c.blocks_in_use == 0);
          CHECK(c.failed == 0);
          out.preemptions += c.preemptions;
          out.swapped_in += c.swapped_in_bytes;
          out.swapped_out += c.swapped_out_bytes;
          CHECK(c.parked == 0);
          CHECK(c.swap_blocks_free == c.swap_blocks);
          CHECK(c.swap_failures == 0);
          out.resumed += c.resumed_tokens;
          out.restored += c.restored_tokens;
          for (auto& t : e.run.kv_counters().tiers) {
            out.late += t.late_blocks;
            out.load_failures += t.load_failures;
            CHECK(t.pending_blocks == 0);
          }
        }
      },
      {.real = false, .seeds = seeds_wanted});
}

void all_came_up(const tally& t) {
  MESSAGE(t.tokens, " tokens; ", t.preemptions, " preemptions, ", t.cancelled, " cancelled, ", t.cached, " cached, ",
          t.load_failures, " blocks failed, ", t.late, " came late, ", t.resumed, " tokens resumed, ", t.restored,
          " restored");
  CHECK(t.preemptions >= enough(50));
  CHECK(t.cancelled >= enough(200));
  CHECK(t.cached >= enough(5000));
  CHECK(t.load_failures >= enough(200));
  CHECK(t.late >= enough(1));
  CHECK(t.resumed >= enough(20));
  CHECK(t.restored >= enough(100));
}

}  // namespace

TEST_CASE("toy engine: mixed lengths, preemption, loads that fail, cancels: the right tokens") {
  tally t;
  random_engines(false, 250, t);
  all_came_up(t);
}

TEST_CASE("toy engine: the same with each next step prepared while one runs") {
  tally t;
  random_engines(true, 250, t);
  all_came_up(t);
}

TEST_CASE("toy engine: more sequences than the pool has room for take turns on it: the right tokens") {
  for (const bool ahead : {false, true}) {
    tally t;
    random_engines(ahead, 250, t, true);
    MESSAGE(t.swapped_out, " bytes swapped out, ", t.swapped_in, " in");
    CHECK(t.swapped_in > 0);
    CHECK(t.swapped_out > 0);
    CHECK(t.cancelled >= enough(200));
  }
}

TEST_CASE("engine: a device that is gone fails its requests, refuses more, and is told of once") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        std::vector<std::string> told;
        engine_options o;
        o.async_scheduling = static_cast<sim_context&>(asio::query(ex, asio::execution::context)).chance(0.5);
        o.on_broken = [&](error_code ec, std::string_view what) {
          CHECK(ec == errc::device_lost);
          told.emplace_back(what);
        };
        toy_engine e(ex, std::move(o));
        std::vector<generation> all;
        for (std::uint64_t i = 0; i < 4; ++i) all.push_back(e.run.submit(toy_request(toy_prompt(20, i), 200)).value());
        for (int i = 0; i < 5; ++i) (void)co_await all[0].async_next(asio::deferred);
        sim::device::of(static_cast<sim_context&>(asio::query(ex, asio::execution::context)), "sim:h200").lose(10s);
        for (auto& g : all) CHECK((co_await read_all(std::move(g))).ended);
        CHECK(told.size() == 1);
        CHECK(e.run.counters().broken);
        CHECK(e.run.submit(toy_request(toy_prompt(3, 1), 2)).error() == errc::device_lost);
        co_await e.drain();
        CHECK(told.size() == 1);
      },
      {.real = false, .seeds = 6});
}
