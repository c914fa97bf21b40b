// Prompts that arrive among those that are computed, in virtual time: cancelled, failed and destroyed at any moment.
#include "engine/arrival_by_hand.hpp"
#include "support/enough.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

struct tally {
  std::uint64_t arrived = 0, failed = 0, cancelled = 0, here_before = 0, preemptions = 0, restored = 0;
};

sim_context& context_of(const asio::any_io_executor& ex) {
  return static_cast<sim_context&>(asio::query(ex, asio::execution::context));
}

// Some moments apart, in the order that the seed says.
awaitable<void> write(engine& e, arrival a, std::vector<token_id> prompt, tally& out) {
  auto& ctx = context_of(e.get_executor());
  auto [ec, room] = co_await a.async_room(asio::as_tuple(asio::deferred));
  if (ec) co_return;
  out.here_before += room.first;
  const auto bt = e.pool().shape().block_tokens();
  if (ctx.chance(0.5)) CHECK(!a.first(toy_next(prompt)));
  for (auto p = room.first; p < room.tokens;) {
    const auto end = std::min(room.tokens, p + bt * static_cast<std::uint32_t>(1 + ctx.below(3)));
    co_await wait_for(ctx.between(1ns, 2ms));
    fill_toy_kv(room, prompt, p, end);
    p = end;
    if (ctx.chance(0.05)) {
      if (ctx.chance(0.5)) a.keep(p);
      ++out.failed;
      co_return a.fail(errc::unavailable);
    }
    if (ctx.chance(0.3)) a.keep(p);
  }
  a.first(toy_next(prompt));  // refused where it was told before
  if (ctx.chance(0.5)) co_await wait_for(ctx.between(1ns, 1ms));
  ++out.arrived;
  a.complete();
}

awaitable<void> read(generation g, std::vector<token_id> prompt, std::uint32_t n, duration patience,
                     const std::vector<token_id>& eos, tally& out) {
  if (patience.count() > 0) {
    co_await wait_for(patience);
    g.cancel();
  }
  const auto got = co_await read_all(std::move(g));
  auto want = toy_answer(prompt, n, eos);
  if (got.ended != asio::error::eof) {
    CHECK((got.ended == asio::error::operation_aborted || got.ended == errc::unavailable));
    out.cancelled += got.ended == asio::error::operation_aborted;
    REQUIRE(got.tokens.size() <= want.size());
    want.resize(got.tokens.size());
  }
  CHECK(got.tokens == want);
}

void random_arrivals(bool ahead, tally& out) {
  co_test(
      [&](asio::any_io_executor ex) -> awaitable<void> {
        auto& ctx = context_of(ex);
        const std::vector<token_id> eos = ctx.chance(0.5) ? std::vector<token_id>{1, 2, 3} : std::vector<token_id>{};
        auto host = std::make_shared<fault_store>(ex, ctx.seed());
        engine_options o{.kv_blocks = static_cast<std::uint32_t>(36 + ctx.below(40)),
                         .block_tokens = static_cast<std::uint32_t>(4 << ctx.below(2)),
                         .max_batched_tokens = static_cast<std::uint32_t>(8 << ctx.below(5)),
                         .max_running = static_cast<std::uint32_t>(2 + ctx.below(12)),
                         .prefix_cache = ctx.chance(0.6),
                         .async_scheduling = ahead};
        if (ctx.chance(0.5)) o.tiers = {toy_tier("host", host)};
        if (ctx.chance(0.5)) o.swap = (1 + ctx.below(60)) * o.block_tokens * 16 * toy_model::layers;
        toy_engine e(ex, o, {.layer = 20us, .token = 2us}, eos);
        auto group = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
          for (int i = 0; i < 20; ++i) {
            auto prompt = toy_prompt(1 + ctx.below(100), ctx.below(3));
            const auto n = static_cast<std::uint32_t>(1 + ctx.below(30));
            auto request = toy_request(prompt, n);
            if (ctx.chance(0.3)) request.priority = static_cast<std::int32_t>(ctx.below(5)) - 2;
            const auto patience = ctx.chance(0.2) ? ctx.between(1ns, 10ms) : duration::zero();
            if (ctx.chance(0.6)) {
              auto both = e.run.receive(std::move(request));
              REQUIRE(both.has_value());
              group.spawn(write(e.run, std::move(both->second), prompt, out));
              group.spawn(read(std::move(both->first), std::move(prompt), n, patience, eos, out));
            } else {
              group.spawn(read(e.run.submit(std::move(request)).value(), std::move(prompt), n, patience, eos, out));
            }
            if (ctx.chance(0.5)) co_await wait_for(ctx.between(1ns, 5ms));
          }
        });
        CHECK(static_cast<bool>(group));
        co_await e.drain();
        const auto c = e.run.counters();
        CHECK(c.blocks_in_use == 0);
        CHECK(c.running == 0);
        CHECK(c.parked == 0);
        CHECK(c.swap_blocks_free == c.swap_blocks);
        out.preemptions += c.preemptions;
        out.restored += c.restored_tokens;
      },
      {.real = false, .seeds = 250});
}

void all_came_up(const tally& t) {
  MESSAGE(t.arrived, " arrived, ", t.failed, " failed, ", t.cancelled, " cancelled, ", t.here_before,
          " tokens here before, ", t.preemptions, " preemptions, ", t.restored, " tokens restored");
  CHECK(t.arrived >= enough(1000));
  CHECK(t.failed >= enough(50));
  CHECK(t.cancelled >= enough(100));
  CHECK(t.here_before >= enough(1000));
  CHECK(t.preemptions >= enough(50));
}

awaitable<void> expect(generation g, std::vector<token_id> want) {
  for (auto t : want) {
    const auto piece = co_await g.async_next(asio::deferred);
    CHECK(piece.token == t);
  }
}

// Two that arrive, one of them for want of blocks behind the other, and one that is computed.
awaitable<void> some(engine& e) {
  auto v = co_await with(task_group{}, [&](task_group& group) {
    for (std::uint64_t i = 0; i < 2; ++i) {
      const auto prompt = toy_prompt(40, i);
      auto both = e.receive(toy_request(prompt, 3)).value();
      group.spawn([](engine& e, arrival a, std::vector<token_id> prompt) -> awaitable<void> {
        auto room = co_await a.async_room(asio::deferred);
        fill_toy_kv(room, prompt, room.first, 16);
        co_await wait_for(100us);
        a.keep(16);
        fill_toy_kv(room, prompt, 16, room.tokens);
        CHECK(!a.first(toy_next(prompt)));
        co_await wait_for(100us);
        a.complete();
      }(e, std::move(both.second), prompt));
      group.spawn(expect(std::move(both.first), toy_answer(prompt, 3)));
    }
    const auto prompt = toy_prompt(20, 7);
    group.spawn(expect(e.submit(toy_request(prompt, 3)).value(), toy_answer(prompt, 3)));
  });
  if (!v) throw boost::system::system_error(v.error());
}

awaitable<void> swept(asio::any_io_executor ex) {
  toy_engine e(ex, {.kv_blocks = 6}, {.layer = 20us, .token = 2us});
  try {
    co_await some(e.run);
  } catch (const boost::system::system_error& cancelled) {
    CHECK(cancelled.code() == asio::error::operation_aborted);
  }
  co_await asio::this_coro::reset_cancellation_state(asio::disable_cancellation());
  co_await e.drain();
  CHECK(e.run.counters().blocks_in_use == 0);
}

}  // namespace

TEST_CASE("arrival: among requests that are computed, failing and cancelled at random, every answer is the model's") {
  tally t;
  random_arrivals(false, t);
  all_came_up(t);
}

TEST_CASE("arrival: the same with each next step prepared while one runs") {
  tally t;
  random_arrivals(true, t);
  all_came_up(t);
}

TEST_CASE("arrival: who makes room while a step computes it, gives up no block that the step still uses") {
  std::uint64_t preemptions = 0;
  for (const bool tier : {false, true})
    co_test(
        [&](asio::any_io_executor ex) -> awaitable<void> {
          auto& ctx = context_of(ex);
          engine_options o{.kv_blocks = 40, .block_tokens = 4, .prefix_cache = false, .async_scheduling = true};
          if (tier) o.tiers = {toy_tier("host", std::make_shared<fault_store>(ex, ctx.seed()))};
          toy_engine e(ex, o, {.layer = 50us, .token = 10us});
          tally none;
          const std::vector<token_id> no_eos;
          auto group = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
            for (std::uint64_t i = 0; i < 4; ++i) {
              auto prompt = toy_prompt(20, i);
              auto request = toy_request(prompt, 14);
              request.priority = -2;
              group.spawn(read(e.run.submit(std::move(request)).value(), prompt, 14, {}, no_eos, none));
            }
            co_await wait_for(ctx.between(1ns, 2ms));
            for (std::uint64_t i = 4; i < 6; ++i) {
              auto prompt = toy_prompt(60, i);
              auto request = toy_request(prompt, 5);
              request.priority = 2;
              auto both = e.run.receive(std::move(request)).value();
              group.spawn(read(std::move(both.first), prompt, 5, {}, no_eos, none));
              group.spawn([](engine& to, arrival a, std::vector<token_id> prompt) -> awaitable<void> {
                const auto room = co_await a.async_room(asio::deferred);
                fill_toy_kv(room, prompt, room.first, room.tokens);  // at once
                CHECK(!a.first(toy_next(prompt)));
                a.complete();
              }(e.run, std::move(both.second), prompt));
            }
          });
          CHECK(static_cast<bool>(group));
          co_await e.drain();
          preemptions += e.run.counters().preemptions;
        },
        {.real = false, .seeds = 60});
  CHECK(preemptions >= enough(60));
}

TEST_CASE("arrival: cancelled at every step, no block is left") {
  cancel_at_every_step(swept, {.real = false, .seeds = 50});
}

TEST_CASE("arrival: destroyed at every step") { destroy_at_every_step(swept, {.real = false, .seeds = 50}); }
