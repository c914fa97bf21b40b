// Layers whose KV a neighbour keeps: answers are the model's, or an error where the neighbour is gone; prompts that arrive,
// cancelled requests and prefixes of others included.
#include "engine/arrival_by_hand.hpp"
#include "kvstream/pager/neighbour.hpp"
#include "support/enough.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

sim_context& context_of(const asio::any_io_executor& ex) {
  return static_cast<sim_context&>(asio::query(ex, asio::execution::context));
}

std::uint64_t lent_bytes(const engine_options& o, std::size_t layers) {
  return std::uint64_t{o.kv_blocks} * o.block_tokens * 16 * layers;
}

// An engine, and the neighbour that keeps layers of it.
struct lent_engine {
  lent_engine(asio::any_io_executor ex, engine_options o, std::vector<std::uint32_t> layers, toy_price price = {},
              std::vector<token_id> eos = {})
      : there(std::make_shared<neighbour_memory>(ex, lent_bytes(o, layers.size()))),
        e(ex, with_lent(std::move(o), std::move(layers)), price, std::move(eos)) {}

  engine_options with_lent(engine_options o, std::vector<std::uint32_t> layers) {
    o.lent = lent_kv{.layers = std::move(layers), .from = source(there), .to = sink(there), .chunk = 96};
    o.on_lender_lost = [this](error_code why) { lost.push_back(why); };
    return o;
  }

  std::vector<error_code> lost;
  std::shared_ptr<neighbour_memory> there;
  toy_engine e;
};

engine_options small(std::uint32_t blocks = 64) { return {.kv_blocks = blocks, .block_tokens = 4}; }

struct tally {
  std::uint64_t answered = 0, failed = 0, cancelled = 0, arrived = 0, here_before = 0, preemptions = 0, losses = 0;
};

awaitable<void> write(engine& e, arrival a, std::vector<token_id> prompt, tally& out) {
  auto& ctx = context_of(e.get_executor());
  const auto room = co_await a.async_room(as_result);
  if (!room) co_return;
  out.here_before += room->first;
  if (ctx.chance(0.5)) CHECK(!a.first(toy_next(prompt)));
  const auto middle = room->first + static_cast<std::uint32_t>(ctx.below(room->tokens - room->first + 1));
  fill_toy_kv(*room, prompt, room->first, middle);
  if (ctx.chance(0.5)) co_await wait_for(ctx.between(1ns, 1ms));
  if (ctx.chance(0.05)) {
    a.keep(middle);
    co_return a.fail(errc::protocol);
  }
  fill_toy_kv(*room, prompt, middle, room->tokens);
  a.first(toy_next(prompt));  // refused where it was told before
  ++out.arrived;
  a.complete();
}

awaitable<void> read(generation g, std::vector<token_id> prompt, std::uint32_t n, duration patience, tally& out) {
  const auto got = co_await read_for(std::move(g), patience);
  auto want = toy_answer(prompt, n);
  if (got.ended == asio::error::eof) {
    ++out.answered;
  } else {
    CHECK(
        (got.ended == asio::error::operation_aborted || got.ended == errc::unavailable || got.ended == errc::protocol));
    ++(got.ended == errc::unavailable ? out.failed : out.cancelled);
    REQUIRE(got.tokens.size() <= want.size());
    want.resize(got.tokens.size());
  }
  CHECK(got.tokens == want);
}

// As long as nobody lends, it asks for the same one again.
awaitable<void> lend_again(lent_engine& l) {
  while (l.e.run.lend(source(l.there), sink(l.there))) co_await wait_for(1ms);
}

awaitable<void> requests(lent_engine& l, std::size_t count, tally& out, bool faults) {
  auto& ctx = context_of(l.e.run.get_executor());
  auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    for (std::size_t i = 0; i < count; ++i) {
      if (l.e.run.counters().lender_lost) {
        l.there->get_fails = l.there->put_fails = 0;
        co_await lend_again(l);
      } else if (faults) {
        l.there->get_fails = l.there->put_fails = ctx.chance(0.3) ? 0.02 : 0;
      }
      auto prompt = toy_prompt(1 + ctx.below(60), ctx.below(3));
      const auto n = static_cast<std::uint32_t>(1 + ctx.below(30));
      const auto patience = ctx.chance(0.3) ? ctx.between(1ns, 20ms) : duration::zero();
      if (ctx.chance(0.5)) {
        auto both = l.e.run.receive(toy_request(prompt, n)).value();
        group.spawn(write(l.e.run, std::move(both.second), prompt, out));
        group.spawn(read(std::move(both.first), prompt, n, patience, out));
      } else {
        group.spawn(read(l.e.run.submit(toy_request(prompt, n)).value(), prompt, n, patience, out));
      }
      if (ctx.chance(0.3)) co_await wait_for(ctx.between(1ns, 10ms));
    }
  });
  if (!v) throw boost::system::system_error(v.error());
}

awaitable<void> swept(asio::any_io_executor ex) {
  lent_engine l(ex, small(40), {1, 3}, {.layer = 20us, .token = 2us});
  tally none;
  try {
    co_await requests(l, 4, none, false);
  } catch (const boost::system::system_error& cancelled) {
    CHECK(cancelled.code() == asio::error::operation_aborted);
  }
  co_await asio::this_coro::reset_cancellation_state(asio::disable_cancellation());
  co_await l.e.drain();
  co_await wait_for(10ms);  // what the last steps added is written back
  CHECK(l.e.run.counters().blocks_in_use == 0);
}

}  // namespace

TEST_CASE("lent layers: every answer is the model's, whichever of them are elsewhere") {
  for (const auto& layers : {std::vector<std::uint32_t>{3}, {0}, {1, 3}, {0, 1, 2}, {1, 2, 3}})
    co_test(
        [&](asio::any_io_executor ex) -> awaitable<void> {
          lent_engine l(ex, small(), layers, {.layer = 20us, .token = 2us});
          tally t;
          co_await requests(l, 8, t, false);
          CHECK(t.failed == 0);
          co_await l.e.drain();
          co_await wait_for(10ms);
          const auto c = l.e.run.counters();
          CHECK(c.blocks_in_use == 0);
          CHECK(c.lent_out_bytes > 0);
          CHECK(l.lost.empty());
          CHECK(l.e.run.pool().memory().size() == std::uint64_t{64} * 4 * 16 * (6 - layers.size()));
        },
        {.real = false, .seeds = 30});
}

TEST_CASE("lent layers: with a neighbour that fails and lends again, each answer is right, or ends with its error") {
  tally t;
  co_test(
      [&](asio::any_io_executor ex) -> awaitable<void> {
        auto& ctx = context_of(ex);
        auto o = small(static_cast<std::uint32_t>(30 + ctx.below(60)));
        o.prefix_cache = ctx.chance(0.7);
        o.max_batched_tokens = static_cast<std::uint32_t>(8 << ctx.below(5));
        const auto lent = ctx.chance(0.5) ? std::vector<std::uint32_t>{1, 3} : std::vector<std::uint32_t>{0, 2, 3};
        lent_engine l(ex, o, lent, {.layer = 20us, .token = 2us});
        co_await requests(l, 25, t, true);
        l.there->get_fails = l.there->put_fails = 0;
        if (l.e.run.counters().lender_lost) co_await lend_again(l);
        const auto prompt = toy_prompt(30, 1);
        co_await read(l.e.run.submit(toy_request(prompt, 9)).value(), prompt, 9, {}, t);
        co_await l.e.drain();
        co_await wait_for(10ms);
        const auto c = l.e.run.counters();
        CHECK(c.blocks_in_use == 0);
        CHECK(c.lenders_lost == l.lost.size());
        t.preemptions += c.preemptions;
        t.losses += c.lenders_lost;
      },
      {.real = false, .seeds = 300});
  MESSAGE(t.answered, " answered, ", t.failed, " failed, ", t.cancelled, " cancelled, ", t.arrived, " arrived, ",
          t.here_before, " tokens here before, ", t.preemptions, " preemptions, ", t.losses, " neighbours lost");
  CHECK(t.answered >= enough(3000));
  CHECK(t.failed >= enough(100));
  CHECK(t.cancelled >= enough(100));
  CHECK(t.arrived >= enough(1000));
  CHECK(t.here_before >= enough(1000));
  CHECK(t.preemptions >= enough(50));
  CHECK(t.losses >= enough(50));
}

TEST_CASE("lent layers: without a neighbour nothing is taken; one that has too little does not lend") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        lent_engine l(ex, small(), {1, 3});
        CHECK(l.e.run.lend(source(l.there), sink(l.there)) == errc::already_exists);
        l.there->get_fails = 1;
        const auto prompt = toy_prompt(30, 1);
        const auto first = co_await read_all(l.e.run.submit(toy_request(prompt, 9)).value());
        CHECK(first.ended == errc::unavailable);
        CHECK(l.lost == std::vector{make_error_code(errc::unavailable)});
        CHECK(l.e.run.submit(toy_request(prompt, 9)).error() == errc::unavailable);
        CHECK(l.e.run.receive(toy_request(prompt, 9)).error() == errc::unavailable);
        co_await wait_for(10ms);
        auto less = std::make_shared<neighbour_memory>(ex, l.there->memory.size() - 1);
        CHECK(l.e.run.lend(source(less), sink(less)) == errc::out_of_memory);
        auto other = std::make_shared<neighbour_memory>(ex, l.there->memory.size());
        CHECK(!l.e.run.lend(source(other), sink(other)));
        const auto again = co_await read_all(l.e.run.submit(toy_request(prompt, 9)).value());
        CHECK(again.tokens == toy_answer(prompt, 9));
        CHECK(again.report.cached_tokens == 0);

        auto followed = toy_request(prompt, 1);
        followed.sink = std::shared_ptr<prompt_sink>(reinterpret_cast<prompt_sink*>(1), [](auto*) {});
        CHECK(l.e.run.submit(followed).error() == errc::unsupported);
        toy_engine plain(ex, {});
        CHECK(plain.run.lend(source(other), sink(other)) == errc::unsupported);
      },
      {.real = false, .seeds = 1});
}

TEST_CASE("lent layers: what can't be written back ends the loan, also when no step would ask for it again") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        lent_engine l(ex, small(), {1, 3});
        const auto prompt = toy_prompt(9, 1);
        auto g = l.e.run.submit(toy_request(prompt, 3)).value();
        (void)co_await g.async_next(asio::deferred);
        l.there->put_fails = 1;
        const auto rest = co_await read_all(std::move(g));
        co_await wait_for(10ms);
        CHECK(l.lost == std::vector{make_error_code(errc::unavailable)});
        CHECK((rest.ended == asio::error::eof || rest.ended == errc::unavailable));
        const auto c = l.e.run.counters();
        CHECK(c.lender_lost);
        CHECK(c.blocks_in_use == 0);
        CHECK(c.blocks_free == c.blocks);
      },
      {.real = false, .seeds = 30});
}

TEST_CASE("lent layers: a block whose last token is still on its way back is not another prompt's yet") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto o = small(6);
        o.prefix_cache = false;
        lent_engine l(ex, o, {3}, {.layer = 20us, .token = 2us});
        tally t;
        auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
          const auto first = toy_prompt(9, 1), second = toy_prompt(20, 2);  // that takes all blocks
          group.spawn(read(l.e.run.submit(toy_request(first, 3)).value(), first, 3, {}, t));
          co_await wait_for(10us);  // it has its blocks
          auto both = l.e.run.receive(toy_request(second, 4)).value();
          group.spawn(arrive(l.e.run, std::move(both.second), second));
          group.spawn(read(std::move(both.first), second, 4, {}, t));
        });
        CHECK((v && t.answered == 2));
      },
      {.real = false, .seeds = 200});
}

TEST_CASE("lent layers: what does not go together is refused") {
  sim_context ctx(1);
  const auto make = [&](engine_options o, std::vector<std::uint32_t> layers) {
    lent_engine(ctx.get_executor(), std::move(o), std::move(layers));
  };
  CHECK_THROWS_AS(make(small(), {}), config_error);
  CHECK_THROWS_AS(make(small(), {0, 1, 2, 3}), config_error);
  CHECK_THROWS_AS(make(small(), {4}), config_error);
  CHECK_THROWS_AS(make(small(), {2, 1}), config_error);
  auto o = small();
  o.swap = 1 << 20;
  CHECK_THROWS_AS(make(o, {1}), config_error);
  o = small();
  o.async_scheduling = true;
  CHECK_THROWS_AS(make(o, {1}), config_error);
  o = small();
  o.tiers = {toy_tier("host", std::make_shared<fault_store>(ctx.get_executor(), 1))};
  CHECK_THROWS_AS(make(o, {1}), config_error);
}

TEST_CASE("lent layers: cancelled at every step, no block is left") {
  cancel_at_every_step(swept, {.real = false, .seeds = 20});
}

TEST_CASE("lent layers: destroyed at every step") { destroy_at_every_step(swept, {.real = false, .seeds = 20}); }
