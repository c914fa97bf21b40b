// Stages of a model in virtual time: answers are the whole model's, steps follow each other through the stages, and when a
// worker is gone each request is right or ends with an error.
#include "engine/toy_stages.hpp"
#include "support/enough.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

// Workers that are lost come back in `workers`, where that is given.
awaitable<void> some_requests(toy_stages& s, std::size_t count, stage_tally& out, task_group* workers = nullptr) {
  auto& ctx = context_of(s.ex);
  const auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    for (std::size_t i = 0; i < count; ++i) {
      auto prompt = toy_prompt(1 + ctx.below(60), ctx.below(3));
      const auto n = static_cast<std::uint32_t>(1 + ctx.below(30));
      const auto patience = ctx.chance(0.2) ? ctx.between(1ns, 20ms) : duration::zero();
      auto g = s.leader->submit(toy_request(prompt, n));
      if (g) {
        group.spawn(read_right(std::move(*g), prompt, n, patience, out));
      } else {
        REQUIRE(workers);
        CHECK(g.error() == errc::unavailable);
        co_await s.join_all(*workers);
      }
      if (ctx.chance(0.5)) co_await wait_for(ctx.between(1ns, 5ms));
      if (workers && ctx.chance(0.15)) s.cut(ctx.below(100));
    }
  });
  if (!v) throw boost::system::system_error(v.error());
}

awaitable<void> swept(asio::any_io_executor ex, topology split) {
  toy_stages s(ex, std::move(split), {.kv_blocks = 40, .block_tokens = 4}, {.layer = 20us, .token = 2us});
  stage_tally t;
  try {
    co_await joined(s, [&]() -> awaitable<void> {
      const auto prompt = toy_prompt(5, 1);
      co_await read_right(s.leader->submit(toy_request(prompt, 3)).value(), prompt, 3, {}, t);
    });
  } catch (const boost::system::system_error& cancelled) {
    CHECK(cancelled.code() == asio::error::operation_aborted);
  }
  co_await s.ends_clean();
}

}  // namespace

TEST_CASE("pipeline: every answer is the model's, in any number of stages and ranks, with few blocks and many") {
  for (auto split : {topology(2, 1), topology(4, 1), topology(1, 2), topology(2, 3)})
    for (std::uint32_t blocks : {40u, 400u})
      co_test(
          [&](asio::any_io_executor ex) -> awaitable<void> {
            toy_stages s(ex, split, {.kv_blocks = blocks, .block_tokens = 4, .max_batched_tokens = 32},
                         {.layer = 20us, .token = 2us});
            stage_tally t;
            co_await joined(s, [&]() -> awaitable<void> { co_await some_requests(s, 12, t); });
            CHECK(t.failed == 0);
            CHECK(s.leader->counters().blocks_in_use == 0);
            // Another rank of the last stage may be at the last one when the leader has its tokens.
            for (auto& w : s.others) CHECK(w->steps() + 1 >= s.leader->counters().steps);
          },
          {.real = false, .seeds = 8});
}

TEST_CASE("pipeline: links that are cut fail what is under way, and new ones take over; nothing is wrong") {
  stage_tally t;
  std::uint64_t losses = 0;
  co_test(
      [&](asio::any_io_executor ex) -> awaitable<void> {
        toy_stages s(ex, context_of(ex).chance(0.5) ? topology(3, 1) : topology(2, 2),
                     {.kv_blocks = 60, .block_tokens = 4, .max_batched_tokens = 32}, {.layer = 20us, .token = 2us});
        const auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
          co_await s.join_all(group);
          co_await some_requests(s, 20, t, &group);
          s.stop();
        });
        CHECK(!v.error());
        losses += s.leader->counters().ranks_lost;
        CHECK(s.lost.size() == s.leader->counters().ranks_lost);
        co_await wait_for(1ms);
        CHECK(s.leader->counters().blocks_in_use == 0);
      },
      {.real = false, .seeds = 60});
  MESSAGE(t.right, " right, ", t.failed, " failed, ", t.cancelled, " cancelled, ", losses, " times a link was lost");
  CHECK(t.right >= enough(150));
  CHECK(t.failed >= enough(300));
  CHECK(losses >= enough(80));
}

TEST_CASE("pipeline: cancelled or destroyed at any step it leaves nothing behind") {
  for (auto split : {topology(2, 1), topology(1, 2)}) {
    const auto body = [split](asio::any_io_executor ex) { return swept(ex, split); };
    cancel_at_every_step(body);
    destroy_at_every_step(body);
  }
}

// Stage 0 computes until 20 ms, stage 1 from then until 40: what is enqueued is written, whoever gives up meanwhile.
TEST_CASE("pipeline: a worker that is cancelled ends when its device has ended what it began") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        toy_stages s(ex, topology(2, 1), {.kv_blocks = 40, .block_tokens = 4}, {.layer = 10ms, .token = 0ns});
        auto& time = clock::of(ex);
        time_point begun, ended;
        co_await s.link_all();
        REQUIRE(!s.leader->join(s.links[0]));
        auto asked = s.leader->submit(toy_request(toy_prompt(3, 1), 1)).value();
        begun = time.now();
        (void)co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
          group.spawn([&]() -> awaitable<void> { (void)co_await s.others[0]->run(std::move(s.links[1])); });
          co_await wait_for(25ms);
          group.cancel();
        });
        ended = time.now();
        CHECK(ended - begun >= 40ms);
        CHECK(ended - begun < 41ms);
        s.links.clear();
        s.stop();
        co_await s.leader->async_drain(asio::as_tuple(asio::deferred));
      },
      {.real = false, .seeds = 5});
}

// Four stages of one layer; eight sequences, of each 41 tokens are sampled, one behind the prompt; the first begins a step before
// the others come. At a price a layer each of 42 steps takes the time of four stages, in one microbatch of eight as in four of
// two, which pass through the stages one behind the other. At a price a token one microbatch of eight takes 8 of them in each stage, 41 x
// 4 x 8 in all; with four microbatches of two all stages are at work: 41 x 8 are computed in each, and the last begins when
// two of them have passed the three before it.
TEST_CASE("pipeline: stages compute different microbatches at once") {
  const auto makespan = [](std::uint32_t microbatches, toy_price price) {
    duration out{};
    co_test(
        [&](asio::any_io_executor ex) -> awaitable<void> {
          toy_stages s(ex, topology(4, 1), {.kv_blocks = 400, .block_tokens = 4, .microbatches = microbatches}, price);
          stage_tally t;
          co_await joined(s, [&]() -> awaitable<void> {
            auto& time = clock::of(ex);
            const auto begun = time.now();
            const auto v = co_await with(task_group{}, [&](task_group& group) {
              for (std::uint64_t i = 0; i < 8; ++i) {
                const auto prompt = toy_prompt(1, i);
                group.spawn(read_right(s.leader->submit(toy_request(prompt, 41)).value(), prompt, 41, {}, t));
              }
            });
            CHECK(!v.error());
            out = time.now() - begun;
          });
          CHECK(t.right == 8);
        },
        {.real = false, .seeds = 1});
    return std::chrono::duration<double, std::milli>(out).count();
  };
  const toy_price by_layer{.layer = 10ms, .token = 0ns}, by_token{.layer = 0ns, .token = 10ms};
  MESSAGE("by layer ", makespan(1, by_layer), " and ", makespan(4, by_layer), " ms, by token ", makespan(1, by_token),
          " and ", makespan(4, by_token));
  CHECK(makespan(1, by_layer) == doctest::Approx(10 * 42 * 4).epsilon(0.02));
  CHECK(makespan(4, by_layer) == doctest::Approx(10 * 42 * 4).epsilon(0.02));
  CHECK(makespan(1, by_token) == doctest::Approx(10 * 41 * 4 * 8).epsilon(0.02));
  CHECK(makespan(4, by_token) == doctest::Approx(10 * (41 * 8 + 3 * 2)).epsilon(0.02));
}
