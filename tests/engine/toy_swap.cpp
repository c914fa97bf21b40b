// Sequences that take turns on the device: nothing moves while all fit, everybody's turn comes, and a copy that fails costs
// computing, never a token.
#include "cokv/runtime/sim_device.hpp"
#include "engine/arrival_by_hand.hpp"
#include "support/enough.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

constexpr std::uint64_t block_bytes = 4 * 16 * toy_model::layers;  // of four tokens

engine_options small(std::uint32_t blocks, std::uint64_t host_blocks) {
  return {.kv_blocks = blocks, .block_tokens = 4, .prefix_cache = false, .swap = host_blocks * block_bytes};
}

// As many sequences at once, alike but for their prompts; each one's tokens with their times.
awaitable<std::vector<toy_outcome>> at_once(engine& e, std::size_t count, std::size_t prompt, std::uint32_t n,
                                            sampling_params how = {.temperature = 0}) {
  std::vector<toy_outcome> out(count);
  auto v = co_await with(task_group{}, [&](task_group& group) {
    for (std::size_t i = 0; i < count; ++i) {
      auto request = toy_request(toy_prompt(prompt, i), n);
      request.sampling = how;
      group.spawn([](generation g, toy_outcome& to) -> awaitable<void> { to = co_await read_all(std::move(g)); }(
                                                        e.submit(std::move(request)).value(), out[i]));
    }
  });
  CHECK(static_cast<bool>(v));
  co_return out;
}

}  // namespace

TEST_CASE("swap: nothing is copied while everything fits") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        toy_engine e(ex, small(8 * 20 + 8, 500), {.layer = 20us, .token = 2us});
        const auto all = co_await at_once(e.run, 8, 20, 60);
        for (std::size_t i = 0; i < all.size(); ++i) CHECK(all[i].tokens == toy_answer(toy_prompt(20, i), 60));
        const auto c = e.run.counters();
        CHECK(c.swapped_out_bytes == 0);
        CHECK(c.swapped_in_bytes == 0);
        CHECK(c.preemptions == 0);
      },
      {.real = false, .seeds = 20});
}

TEST_CASE(
    "swap: with blocks for a quarter everybody's turn comes, nothing is computed again, and only new KV goes out") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        toy_engine e(ex, small(8 * 60 / 4, 8 * 60), {.layer = 20us, .token = 2us});
        const auto all = co_await at_once(e.run, 8, 20, 220);
        auto first_end = time_point::max();
        for (auto& one : all) first_end = std::min(first_end, one.at.back());
        for (std::size_t i = 0; i < all.size(); ++i) {
          CHECK(all[i].tokens == toy_answer(toy_prompt(20, i), 220));
          // Before the first was through with all of it, the others had a part.
          CHECK(std::ranges::count_if(all[i].at, [&](time_point t) { return t < first_end; }) >= 32);
        }
        co_await e.drain();
        const auto c = e.run.counters();
        CHECK(c.preemptions == 0);
        CHECK(c.swapped_out_bytes > 0);
        CHECK(c.swapped_in_bytes > c.swapped_out_bytes);  // what was out once and did not change
        // Everything once, and a block that was half full again at each turn.
        CHECK(c.swapped_out_bytes <= 2 * 8 * 60 * block_bytes);
        CHECK(c.swap_blocks_free == c.swap_blocks);
        CHECK(c.blocks_in_use == 0);
      },
      {.real = false, .seeds = 20});
}

TEST_CASE("swap: a copy or a step that fails costs its own requests alone, and what is answered is right") {
  std::uint64_t answered = 0, failed = 0, copies = 0;
  for (auto seed : seeds(1000)) {
    INFO(replay_command(seed));
    sim_context ctx(seed);
    bool ended = false;
    auto body = [&]() -> awaitable<void> {
      const auto ex = co_await asio::this_coro::executor;
      auto o = small(static_cast<std::uint32_t>(70 + ctx.below(60)), 50 + ctx.below(400));
      o.async_scheduling = ctx.chance(0.5);
      o.prefix_cache = ctx.chance(0.5);
      toy_engine e(ex, o, {.layer = 20us, .token = 2us});
      sim::device::of(ctx, "sim:h200").faults.fail = 0.001;
      const auto all = co_await at_once(e.run, 8, 10 + ctx.below(20), 100);
      sim::device::of(ctx, "sim:h200").faults.fail = 0;
      const auto length = all[0].report.prompt_tokens;
      for (std::size_t i = 0; i < all.size(); ++i) {
        auto want = toy_answer(toy_prompt(length, i), 100);
        if (all[i].ended == asio::error::eof) {
          ++answered;
        } else {
          ++failed;
          CHECK(all[i].ended == errc::device_failed);
          REQUIRE(all[i].tokens.size() <= want.size());
          want.resize(all[i].tokens.size());
        }
        CHECK(all[i].tokens == want);
      }
      co_await e.drain();
      const auto c = e.run.counters();
      copies += c.swap_failures;
      CHECK(c.blocks_in_use == 0);
      CHECK(c.parked == 0);
      CHECK(c.swap_blocks_free == c.swap_blocks);
    };
    asio::co_spawn(ctx, body(), [&](std::exception_ptr e) {
      CHECK(!e);
      ended = true;
    });
    CHECK(ctx.run() == sim_context::outcome::done);
    CHECK(ended);
  }
  MESSAGE(answered, " answered, ", failed, " failed, ", copies, " copies failed");
  CHECK(answered >= enough(2000));
  CHECK(failed >= enough(100));
  CHECK(copies >= enough(10));
}

TEST_CASE("swap: an engine that is destroyed while KV moves leaves nothing behind") {
  for (auto seed : seeds(50)) {
    INFO(replay_command(seed));
    sim_context ctx(seed);
    auto body = [&]() -> awaitable<void> {
      const auto ex = co_await asio::this_coro::executor;
      auto e = std::make_unique<toy_engine>(ex, small(80, 400), toy_price{.layer = 20us, .token = 2us});
      std::vector<generation> all;
      for (std::uint64_t i = 0; i < 8; ++i) all.push_back(e->run.submit(toy_request(toy_prompt(20, i), 100)).value());
      co_await wait_for(ctx.between(1ns, 20ms));
      e.reset();
      for (auto& g : all) {
        error_code ended;
        while (!ended) ended = std::get<0>(co_await g.async_next(asio::as_tuple(asio::deferred)));
        CHECK((ended == errc::closed || ended == asio::error::operation_aborted || ended == asio::error::eof));
      }
    };
    asio::co_spawn(ctx, body(), [&](std::exception_ptr e) { CHECK(!e); });
    CHECK(ctx.run() == sim_context::outcome::done);
  }
}
