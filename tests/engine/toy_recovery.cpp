// Workers of a model in parts that are lost, in virtual time: others come in their place with the KV that was kept of theirs, and
// every request goes on, a token computed again at the most, and right to the last one.
#include <set>

#include "engine/toy_stages.hpp"
#include "support/enough.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

constexpr toy_price price{.layer = 20us, .token = 2us};

struct kept_stages : toy_stages {
  kept_stages(asio::any_io_executor ex, topology split, engine_options o, std::uint64_t limit = 64 << 20)
      : toy_stages(ex, std::move(split), std::move(o), price, limit) {}
};

// The same with KV at home, and room for a part of it on the devices.
engine_options by_turns(engine_options o, const topology& split, std::uint32_t slots) {
  o.swap = std::uint64_t{o.kv_blocks} * o.block_tokens * 16 * split.layers(toy_model::layers, 0).count;
  o.swap_by = swap_unit::microbatch;
  o.kv_blocks = slots;
  return o;
}

struct tally : stage_tally {
  std::uint64_t recoveries = 0, again = 0, restarted = 0, replaced = 0;
};

// Those of `lost` workers that are not there any more are replaced, and all come together again.
awaitable<void> mend(kept_stages& s, task_group& group, std::set<std::uint32_t> lost, tally& out) {
  s.stop();
  while (*s.running > 0) co_await wait_for(100us);
  for (auto n : lost) s.replace(n);
  out.replaced += lost.size();
  co_await s.join_all(group);
}

// `victims`: chosen each time that something is lost.
template <class Victims>
awaitable<void> some_requests(kept_stages& s, std::size_t count, tally& out, Victims victims) {
  auto& ctx = context_of(s.ex);
  bool over = false;
  const auto v = co_await with(task_group{}, [&](task_group& workers) -> awaitable<void> {
    co_await s.join_all(workers);
    workers.spawn([&]() -> awaitable<void> {
      while (!over) {
        co_await wait_for(ctx.between(4ms, 16ms));
        if (over || !ctx.chance(0.5)) continue;
        co_await mend(s, workers, victims(), out);
      }
      s.stop();
    });
    const auto asked = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      for (std::size_t i = 0; i < count;) {
        auto prompt = toy_prompt(1 + ctx.below(60), ctx.below(3));
        const auto n = static_cast<std::uint32_t>(1 + ctx.below(30));
        const auto patience = ctx.chance(0.2) ? ctx.between(1ns, 20ms) : duration::zero();
        if (auto g = s.leader->submit(toy_request(prompt, n))) {
          group.spawn(read_right(std::move(*g), prompt, n, patience, out));
          ++i;
        } else {
          CHECK(g.error() == errc::unavailable);
          co_await wait_for(1ms);
        }
        if (ctx.chance(0.5)) co_await wait_for(ctx.between(1ns, 5ms));
      }
    });
    over = true;
    CHECK(!asked.error());
    s.stop();
  });
  CHECK(!v.error());
  co_await wait_for(10ms);
  const auto c = s.leader->counters();
  out.recoveries += c.recoveries, out.again += c.recomputed_tokens, out.restarted += c.restarted_requests;
  CHECK(c.blocks_in_use == 0);
}

// Of a sequence of so many blocks, at the last stage.
std::uint64_t copy_bytes(const topology& split, std::uint64_t blocks) {
  const toy_model last(price, {}, {split, split.at(split.workers() - 1)});
  return blocks * last.kv_geometry(4).block_bytes();
}

struct loss {
  topology split;
  std::set<std::uint32_t> of;
  std::uint32_t microbatches = 0;
  bool turns = false;
};

// Eight that decode, when workers are lost once.
engine_counters lost_once(const loss& l) {
  engine_counters out;
  tally t;
  co_test(
      [&](asio::any_io_executor ex) -> awaitable<void> {
        const engine_options o{
            .kv_blocks = 400, .block_tokens = 4, .max_batched_tokens = 256, .microbatches = l.microbatches};
        kept_stages s(ex, l.split, l.turns ? by_turns(o, l.split, 90) : o);
        const auto v = co_await with(task_group{}, [&](task_group& workers) -> awaitable<void> {
          co_await s.join_all(workers);
          const auto asked = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
            for (std::uint64_t i = 0; i < 8; ++i) {
              const auto prompt = toy_prompt(10 + i, i % 3);
              group.spawn(read_right(s.leader->submit(toy_request(prompt, 60)).value(), prompt, 60, {}, t));
            }
            while (s.leader->counters().generated_tokens < 150) co_await wait_for(200us);
            co_await mend(s, workers, l.of, t);
          });
          CHECK(!asked.error());
          s.stop();
        });
        CHECK(!v.error());
        out = s.leader->counters();
        co_await wait_for(10ms);
        CHECK(s.leader->counters().blocks_in_use == 0);
      },
      {.real = false, .seeds = 1});
  CHECK(t.right == 8);
  CHECK(t.failed == 0);
  return out;
}

// The KV of a prompt that was computed elsewhere, at each worker that has a part of it.
void fill_parts(kept_stages& s, const kv_room& room, const std::vector<token_id>& prompt) {
  for (std::uint32_t n = 0; n < s.split.workers(); ++n) {
    const auto layers = s.split.layers(toy_model::layers, s.split.at(n).stage);
    const auto view = n == 0 ? room.memory : s.others[n - 1]->view();
    const auto& shape = view.layout().shape();
    std::vector<std::byte> elsewhere(shape.block_tokens() * 16);
    fill_toy_kv(
        shape.block_tokens(),
        [&](std::uint32_t l, std::uint32_t b) {
          if (l < layers.first || l >= layers.end()) return elsewhere.data();
          return view.pieces(slice(shape, {l - layers.first, 1}, {room.blocks.at(b)})).value().at(0).data();
        },
        prompt, room.first, room.tokens);
  }
}

// An answer whose prompt was computed elsewhere.
struct from_elsewhere {
  std::vector<token_id> prompt;
  generation answer;
  arrival comes;
};

from_elsewhere received(kept_stages& s, std::size_t prompt, std::uint32_t n) {
  from_elsewhere out{.prompt = toy_prompt(prompt, prompt), .answer = {}, .comes = {}};
  std::tie(out.answer, out.comes) = s.leader->receive(toy_request(out.prompt, n)).value();
  return out;
}

awaitable<void> arrive(kept_stages& s, from_elsewhere& one) {
  fill_parts(s, co_await one.comes.async_room(asio::deferred), one.prompt);
  CHECK(!one.comes.first(toy_answer(one.prompt, 1).front()));
  one.comes.complete();
}

topology some_split(sim_context& ctx) {
  const std::array all{topology(2, 1), topology(3, 1), topology(2, 2), topology(1, 2), topology(4, 1), topology(1, 3)};
  return all[ctx.below(all.size())];
}

}  // namespace

TEST_CASE("recovery: a worker that is lost is replaced with its KV, and every request goes on") {
  tally t;
  std::uint64_t turned = 0;
  co_test(
      [&](asio::any_io_executor ex) -> awaitable<void> {
        auto& ctx = context_of(ex);
        const auto split = some_split(ctx);
        const engine_options o{.kv_blocks = ctx.chance(0.5) ? 60u : 200u, .block_tokens = 4, .max_batched_tokens = 32};
        const bool turns = ctx.chance(0.5);
        kept_stages s(ex, split, turns ? by_turns(o, split, 50) : o);
        co_await some_requests(s, 20, t, [&]() -> std::set<std::uint32_t> {
          if (ctx.chance(0.2)) return {};  // links alone
          return {1 + static_cast<std::uint32_t>(ctx.below(s.split.workers() - 1))};
        });
        turned += s.leader->counters().swapped_in_bytes > 0;
      },
      {.real = false, .seeds = 60});
  CHECK(turned >= enough(15));
  MESSAGE(t.right, " right, ", t.cancelled, " cancelled, ", t.recoveries, " recoveries, ", t.replaced, " replaced, ",
          t.again, " tokens again, ", t.restarted, " restarted");
  CHECK(t.failed == 0);
  CHECK(t.right >= enough(300));
  CHECK(t.recoveries >= enough(80));
}

TEST_CASE("recovery: no more than a token of each sequence is computed again, whoever is lost") {
  for (auto split : {topology(2, 1), topology(4, 1), topology(2, 2), topology(1, 3)})
    for (std::uint32_t victim = 0; victim < split.workers(); ++victim)
      for (auto [microbatches, turns] : {std::pair{0u, false}, {1u, false}, {0u, true}}) {
        // None: links alone.
        const auto c =
            lost_once({split, victim > 0 ? std::set{victim} : std::set<std::uint32_t>(), microbatches, turns});
        INFO(split.text(), " without worker ", victim);
        CHECK(c.recoveries == 1);
        CHECK(c.restarted_requests == 0);
        CHECK(c.recomputed_tokens <= 8);
        // 8 prompts of 10 to 17 tokens, and 60 tokens each, of which the last is not computed on.
        CHECK(c.prompt_tokens == 108);
      }
}

TEST_CASE(
    "recovery: of several that are lost at once each is replaced whose keeper lives; else all is computed again") {
  CHECK(lost_once({topology(4, 1), {1, 3}}).restarted_requests == 0);
  CHECK(lost_once({topology(2, 2), {1, 2}}).restarted_requests == 0);
  CHECK(lost_once({topology(4, 1), {1, 2}}).restarted_requests == 8);
  CHECK(lost_once({topology(2, 2), {1, 3}}).restarted_requests == 8);
  CHECK(lost_once({topology(1, 3), {1, 2}}).restarted_requests == 8);
}

TEST_CASE("recovery: where copies find no room their sequences begin anew, and others go on") {
  tally t;
  engine_counters c;
  co_test(
      [&](asio::any_io_executor ex) -> awaitable<void> {
        // Room for three of eight: each may come to 77 tokens.
        kept_stages s(ex, topology(2, 1), {.kv_blocks = 400, .block_tokens = 4, .max_batched_tokens = 256},
                      3 * copy_bytes(topology(2, 1), 20));
        const auto v = co_await with(task_group{}, [&](task_group& workers) -> awaitable<void> {
          co_await s.join_all(workers);
          const auto asked = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
            for (std::uint64_t i = 0; i < 8; ++i) {
              const auto prompt = toy_prompt(17, i);
              group.spawn(read_right(s.leader->submit(toy_request(prompt, 60)).value(), prompt, 60, {}, t));
            }
            while (s.leader->counters().generated_tokens < 150) co_await wait_for(10us);
            CHECK(s.leader->counters().kept_bytes == 3 * copy_bytes(topology(2, 1), 20));
            co_await mend(s, workers, {1}, t);
          });
          CHECK(!asked.error());
          s.stop();
        });
        CHECK(!v.error());
        c = s.leader->counters();
      },
      {.real = false, .seeds = 3});
  CHECK(t.right >= enough(24));
  CHECK(c.restarted_requests == 5);
}

TEST_CASE(
    "recovery: who waits for a lost worker is not kept waiting when nobody comes, and may go, or be told to end") {
  for (int how : {0, 1, 2}) {
    co_test(
        [&](asio::any_io_executor ex) -> awaitable<void> {
          kept_stages s(ex, topology(2, 1), {.kv_blocks = 60, .block_tokens = 4});
          const auto prompt = toy_prompt(10, 1);
          auto waits = std::optional<generation>();
          const auto v = co_await with(task_group{}, [&](task_group& workers) -> awaitable<void> {
            co_await s.join_all(workers);
            waits.emplace(s.leader->submit(toy_request(prompt, 40)).value());
            for (int n = 0; n < 5; ++n) (void)co_await waits->async_next();
            s.stop();
          });
          CHECK(!v.error());
          co_await wait_for(1s);
          CHECK(s.leader->counters().failed == 0);
          CHECK(s.leader->submit(toy_request(prompt, 1)).error() == errc::unavailable);
          if (how == 0) s.leader->give_up_ranks(errc::unavailable);
          if (how == 1) waits.reset();
          if (how == 2) s.leader->cancel_all();
          co_await s.leader->async_drain(asio::as_tuple(asio::deferred));
          const auto c = s.leader->counters();
          CHECK(c.failed == (how == 0 ? 1u : 0u));
          CHECK(c.cancelled == (how == 0 ? 0u : 1u));
          CHECK(c.blocks_in_use == 0);
        },
        {.real = false, .seeds = 5});
  }
}

TEST_CASE(
    "recovery: prompts that come from elsewhere fail when they are on their way, wait when they are not, and are "
    "computed here when "
    "they had come") {
  constexpr std::uint32_t n = 30;
  std::uint64_t resumed = 0, restarted = 0;
  for (const auto split : {topology(2, 1), topology(1, 2), topology(3, 1)})
    for (const duration late : {0us, 5us, 50us, 200us, 400us, 800us, 3000us})  // behind the last that has come
      co_test(
          [&](asio::any_io_executor ex) -> awaitable<void> {
            kept_stages s(ex, split, {.kv_blocks = 100, .block_tokens = 4});
            tally t;
            const auto v = co_await with(task_group{}, [&](task_group& workers) -> awaitable<void> {
              co_await s.join_all(workers);
              auto decoded = received(s, 41, n), come = received(s, 23, n), coming = received(s, 100, n),
                   waits = received(s, 120, n);
              const auto all = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
                const auto read = [&](from_elsewhere& one) {
                  group.spawn(read_right(std::move(one.answer), one.prompt, n, {}, t));
                };
                co_await arrive(s, decoded);
                read(decoded);
                while (s.leader->counters().generated_tokens < 8) co_await wait_for(50us);
                const auto room = co_await coming.comes.async_room(asio::deferred);
                fill_parts(s, room, coming.prompt);
                co_await arrive(s, come);
                if (late > duration::zero()) co_await wait_for(late);
                read(come);
                co_await mend(s, workers, {split.workers() - 1}, t);
                CHECK((co_await coming.answer.async_next(as_result)).error() == errc::unavailable);
                CHECK(coming.comes.over());
                CHECK(!waits.comes.over());
                coming.comes.fail(errc::unavailable);
                co_await arrive(s, waits);
                read(waits);
              });
              CHECK(!all.error());
              s.stop();
            });
            CHECK(!v.error());
            CHECK(t.right == 3);
            const auto c = s.leader->counters();
            CHECK(c.resumed_requests + c.restarted_requests == 2);
            CHECK(c.recomputed_tokens <= 1 + (c.restarted_requests > 0 ? 24u : 1u));
            CHECK(c.failed == 1);
            resumed += c.resumed_requests, restarted += c.restarted_requests;
            co_await wait_for(10ms);
            CHECK(s.leader->counters().blocks_in_use == 0);
          },
          {.real = false, .seeds = 1});
  CHECK(resumed > restarted);
  CHECK(restarted >= 3);
}

TEST_CASE("recovery: what is put back may lie where another's KV comes, which therefore waits for it") {
  for (const bool patient : {true, false}) {
    std::size_t right = 0, wrong = 0;
    co_test(
        [&](asio::any_io_executor ex) -> awaitable<void> {
          kept_stages s(ex, topology(2, 1), {.kv_blocks = 60, .block_tokens = 4});
          tally t;
          const auto v = co_await with(task_group{}, [&](task_group& workers) -> awaitable<void> {
            co_await s.join_all(workers);
            auto over = s.leader->submit(toy_request(toy_prompt(120, 1), 60)).value();
            while (s.leader->counters().generated_tokens < 20) co_await wait_for(50us);
            co_await mend(s, workers, {1}, t);
            over.cancel();  // behind the plan of what goes on
            auto come = received(s, 160, 10);
            (void)co_await come.comes.async_room(asio::deferred);
            if (patient) CHECK(!co_await s.others[0]->restored());
            co_await arrive(s, come);
            const auto got = co_await read_all(std::move(come.answer));
            CHECK(got.ended == asio::error::eof);
            ++(got.tokens == toy_answer(come.prompt, 10) ? right : wrong);
            s.stop();
          });
          CHECK(!v.error());
        },
        {.real = false, .seeds = 5});
    CHECK((patient ? wrong : right) == 0);
    CHECK((patient ? right : wrong) >= enough(5));
  }
}

TEST_CASE("recovery: a worker whose device failed trusts nothing that it has, and gets it again from its keeper") {
  tally t;
  co_test(
      [&](asio::any_io_executor ex) -> awaitable<void> {
        auto& ctx = context_of(ex);
        kept_stages s(ex, topology(2, 1), {.kv_blocks = 60, .block_tokens = 4});
        const auto prompt = toy_prompt(10, 1);
        const auto v = co_await with(task_group{}, [&](task_group& workers) -> awaitable<void> {
          co_await s.join_all(workers);
          const auto asked = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
            group.spawn(read_right(s.leader->submit(toy_request(prompt, 40)).value(), prompt, 40, {}, t));
            while (s.leader->counters().generated_tokens < 10) co_await wait_for(10us);
            CHECK(s.others[0]->holding().computed.size() == 1);
            sim::device::of(ctx, "sim:h200:1").faults.fail = 1;
            while (s.leader->counters().ranks_lost == 0) co_await wait_for(10us);
            sim::device::of(ctx, "sim:h200:1").faults.fail = 0;
            s.stop();
            while (*s.running > 0) co_await wait_for(100us);
            CHECK(s.others[0]->holding().last.number == 0);
            CHECK(s.others[0]->holding().computed.empty());
            co_await s.join_all(workers);
          });
          CHECK(!asked.error());
          s.stop();
        });
        CHECK(!v.error());
        CHECK(s.leader->counters().restarted_requests == 0);
      },
      {.real = false, .seeds = 5});
  CHECK(t.right >= enough(5));
  CHECK(t.failed == 0);
}

TEST_CASE("recovery: what is lost again and again before a step of it is done is not ordered for ever") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        kept_stages s(ex, topology(3, 1), {.kv_blocks = 60, .block_tokens = 4});
        const auto prompt = toy_prompt(10, 1);
        std::optional<generation> bad;
        const auto v = co_await with(task_group{}, [&](task_group& workers) -> awaitable<void> {
          for (int round = 0; round < 6; ++round) {
            co_await s.join_all(workers);
            if (!bad) bad.emplace(s.leader->submit(toy_request(prompt, 40)).value());
            co_await wait_for(30us);  // less than a step takes
            s.stop();
            co_await wait_for(10ms);
            CHECK(s.leader->counters().failed == (round == 5 ? 1u : 0u));
          }
          CHECK((co_await bad->async_next(as_result)).error() == errc::unavailable);
          co_await s.join_all(workers);
          tally t;
          co_await read_right(s.leader->submit(toy_request(prompt, 5)).value(), prompt, 5, {}, t);
          CHECK(t.right == 1);
          s.stop();
        });
        CHECK(!v.error());
      },
      {.real = false, .seeds = 5});
}

TEST_CASE("recovery: cancelled or destroyed at any step it leaves nothing behind") {
  const auto body = [](asio::any_io_executor ex) -> awaitable<void> {
    kept_stages s(ex, topology(2, 1), {.kv_blocks = 40, .block_tokens = 4});
    tally t;
    try {
      const auto v = co_await with(task_group{}, [&](task_group& workers) -> awaitable<void> {
        co_await s.join_all(workers);
        const auto prompt = toy_prompt(5, 1);
        const auto asked = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
          group.spawn(read_right(s.leader->submit(toy_request(prompt, 3)).value(), prompt, 3, {}, t));
          while (s.leader->counters().generated_tokens < 2) co_await wait_for(200us);
          co_await mend(s, workers, {1}, t);
        });
        if (!asked) throw boost::system::system_error(asked.error());
        s.stop();
      });
      if (!v) throw boost::system::system_error(v.error());
    } catch (const boost::system::system_error& cancelled) {
      CHECK(cancelled.code() == asio::error::operation_aborted);
    }
    co_await s.ends_clean();
  };
  cancel_at_every_step(body);
  destroy_at_every_step(body);
}
