#include "cokv/kvstream/swapper.hpp"

#include <doctest/doctest.h>

#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/sim_device.hpp"
#include "kvstream/swapper/swap_rig.hpp"
#include "support/operation_matrix.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace std::chrono_literals;

namespace {

constexpr swapper_options three{.slots = 3, .prefetch = 1, .sequences = 2, .blocks = 4};

co_options few(std::size_t seeds = 30) {
  co_options o;
  o.seeds = seeds;
  return o;
}

awaitable<void> whole_run(asio::any_io_executor ex) {
  swap_rig rig(any_device(ex), three, 5);
  for (std::uint64_t m = 0; m < 5; ++m) rig.add(m, 3);
  for (int i = 0; i < 12; ++i) {
    auto turn = co_await rig.swap.async_turn();
    rig.swap.end(rig.step(turn, 1), 1);
  }
  co_await rig.compute.async_drain();
  CHECK(rig.wrong() == 0);
}

}  // namespace

TEST_CASE("swapper: each microbatch computes with its own KV, and a new token writes only itself out") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        swap_rig rig(any_device(ex), three, 5);
        for (std::uint64_t m = 0; m < 5; ++m) rig.add(m, m == 2 ? 0 : 5);
        for (std::uint32_t i = 0; i < 30; ++i) {
          auto turn = co_await rig.swap.async_turn(as_result);
          CHECK(turn.has_value());
          if (!turn) co_return;
          CHECK(turn->microbatch == i % 5);
          rig.swap.end(rig.step(*turn, 1), 1);
        }
        CHECK((co_await rig.compute.async_drain(as_result)).has_value());
        CHECK(rig.wrong() == 0);
        // What makes KV is written out at once, however long it takes: a write is counted when its end has been heard of.
        const auto all = 30 * swap_rig::token_bytes(2);
        auto& time = clock::of(ex);
        for (int i = 0; i < 1000 && rig.swap.bytes_out() < all; ++i)
          co_await time.async_wait_for(std::chrono::milliseconds(1));
        for (std::uint32_t i = 0; i < 5; ++i) {
          auto turn = co_await rig.swap.async_turn();
          CHECK(rig.wrong_on_host(turn.microbatch, turn.tokens) == 0);
          rig.swap.end(rig.step(turn, 0), 0);
        }
        CHECK((co_await rig.compute.async_drain(as_result)).has_value());
        CHECK(rig.wrong() == 0);
        CHECK(rig.swap.bytes_out() == all);  // every token of every microbatch once
      },
      few());
}

TEST_CASE("swapper: where there are slots for all, nothing moves but what was on the host") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        swap_rig rig(any_device(ex), {.slots = 3, .prefetch = 2, .sequences = 1, .blocks = 4}, 3);
        for (std::uint64_t m = 0; m < 3; ++m) rig.add(m, static_cast<std::uint32_t>(m));
        for (std::uint32_t i = 0; i < 24; ++i) {
          auto turn = co_await rig.swap.async_turn();
          rig.swap.end(rig.step(turn, 1), 1);
        }
        co_await rig.compute.async_drain();
        CHECK(rig.wrong() == 0);
        // The host hears of a copy a little after the device that waited for it.
        const auto all = 3 * swap_rig::token_bytes(1);
        for (int i = 0; i < 10'000 && rig.swap.bytes_in() < all; ++i)
          co_await clock::of(ex).async_wait_for(std::chrono::milliseconds(1));
        CHECK(rig.swap.bytes_in() == all);
        CHECK(rig.swap.bytes_out() == 0);
      },
      few());
}

TEST_CASE("swapper: transfers hide behind computing, but for the first") {
  for (auto [slots, prefetch] : {std::pair{2u, 1u}, std::pair{3u, 1u}, std::pair{4u, 2u}}) {
    sim_context context(1);
    bool ended = false;
    run_to_end(context, [&, slots = slots, prefetch = prefetch]() -> awaitable<void> {
      auto ex = co_await asio::this_coro::executor;
      auto& time = clock::of(ex);
      swap_rig rig(any_device(ex), {.slots = slots, .prefetch = prefetch, .sequences = 4, .blocks = 8}, 8);
      for (std::uint64_t m = 0; m < 8; ++m) rig.add(m, 16);
      const auto& spec = sim::device::of(context, "sim:h200").spec();
      const auto bytes = 16 * swap_rig::token_bytes(4);
      const double transfer = spec.launch_seconds + static_cast<double>(bytes) / spec.pcie_bytes_per_second;
      const double computing = 40 * transfer;  // longer than to come in, and to write a token before that
      const auto start = time.now();
      constexpr int turns = 14;
      for (int i = 0; i < turns; ++i) {
        auto turn = co_await rig.swap.async_turn();
        rig.swap.end(rig.step(turn, 1, {.flops = computing * spec.flops_per_second}), 1);
      }
      co_await rig.compute.async_drain();
      CHECK(rig.wrong() == 0);
      const auto took = std::chrono::duration<double>(time.now() - start).count();
      CHECK(took == doctest::Approx(transfer + turns * (computing + spec.launch_seconds)).epsilon(0.001));
      ended = true;
    }());
    CHECK(ended);
  }
}

TEST_CASE("swapper: a copy that fails is its microbatch's error, once, and the others compute with their own KV") {
  std::size_t failed = 0, computed = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed)
    for (std::uint64_t at = 1; at <= 40; at += 3) {
      CAPTURE(seed);
      CAPTURE(at);
      sim_context context(seed);
      auto& gpu = sim::device::of(context, "sim:h200");
      gpu.faults.fail_at = at;
      run_to_end(context, [&]() -> awaitable<void> {
        swap_rig rig(any_device(co_await asio::this_coro::executor),
                     {.slots = 2, .prefetch = 1, .sequences = 1, .blocks = 4}, 5);
        for (std::uint64_t m = 0; m < 5; ++m) rig.add(m, 3);
        for (int i = 0; i < 24 && rig.swap.current(); ++i) {
          const auto whose = *rig.swap.current();
          auto turn = co_await rig.turn();
          if (!turn) {
            ++failed;
            CHECK(turn.error() == errc::device_failed);
            auto again = co_await rig.turn();
            if (!again) rig.remove(whose);  // lost: what computed it failed
            if (!again) continue;
            turn = std::move(again);
          }
          const auto done = rig.step(*turn, 1);
          rig.swap.end(done, 1);
          if (seed % 2 == 0) (void)co_await done.async_wait(as_result);
          ++computed;
        }
        (void)co_await rig.compute.async_drain(as_result);
        CHECK(rig.wrong() == 0);
      }());
    }
  CHECK(failed > 100);
  CHECK(computed > 5000);
}

TEST_CASE("swapper: a removed microbatch gives its slot and its blocks back; there is nobody to wait for then") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        swap_rig rig(any_device(ex), three, 4);
        CHECK((co_await rig.swap.async_turn(as_result)).error() == errc::not_found);
        for (std::uint64_t m = 0; m < 4; ++m) rig.add(m, 2);
        CHECK(rig.swap.add(9) == errc::out_of_memory);
        auto turn = co_await rig.swap.async_turn();
        rig.swap.end(rig.step(turn, 1), 1);
        for (std::uint64_t m = 0; m < 4; ++m) rig.remove(m);
        CHECK((co_await rig.swap.async_turn(as_result)).error() == errc::not_found);
        co_await rig.compute.async_drain();
        while (rig.on_host.available() < rig.on_host.blocks()) co_await clock::of(ex).async_wait_for(1ms);
        rig.add(9, 7);
        turn = co_await rig.swap.async_turn();
        CHECK(turn.microbatch == 9);
        co_await rig.step(turn, 1).async_wait();
        CHECK(rig.wrong() == 0);
        CHECK_THROWS_AS(rig.swap.remove(0), std::invalid_argument);
        CHECK_THROWS_AS(rig.swap.remove(9), std::invalid_argument);  // it computes
        CHECK_THROWS_AS(rig.swap.end({}, 100), std::invalid_argument);
        CHECK_THROWS_AS((void)rig.swap.add(10, 100), std::invalid_argument);
      },
      few());
}

TEST_CASE("swapper: what doesn't fit together is refused") {
  sim_context context(1);
  auto d = any_device(context.get_executor());
  kv_pool small(swap_shape(), 3), large(swap_shape(), 64), other(geometry::attention(1, 1, 4, dtype::f32, 4), 64);
  CHECK_THROWS_AS(swapper(d, small, large, three), config_error);
  CHECK_THROWS_AS(swapper(d, large, other, three), config_error);
  CHECK_THROWS_AS(swapper(d, large, large, {.slots = 2, .prefetch = 2, .sequences = 1, .blocks = 1}), config_error);
  CHECK_THROWS_AS(swapper(d, large, large, {.slots = 2, .prefetch = 1, .sequences = 0, .blocks = 1}), config_error);
}

TEST_CASE("swapper: destroyed while copies are under way, blocks are handed out again only when those are done") {
  sim_context context(3);
  run_to_end(context, []() -> awaitable<void> {
    auto d = any_device(co_await asio::this_coro::executor);
    kv_pool on_device(swap_shape(), 8, d.allocate(pool_bytes(swap_shape(), 8)).value()), on_host(swap_shape(), 16);
    {
      swapper swap(d, on_device, on_host, {.slots = 2, .prefetch = 1, .sequences = 1, .blocks = 4});
      for (std::uint64_t m = 0; m < 4; ++m) CHECK(!swap.add(m, 9));
      (void)co_await swap.async_turn();
      CHECK(on_device.available() == 0);
    }
    CHECK(on_device.stats().quarantined > 0);
    co_await clock::of(d.get_executor()).async_wait_for(1s);
    CHECK(on_device.available() == 8);
    CHECK(on_host.available() == 16);
  }());
}

TEST_CASE("swapper: async_turn: tokens, executors, cancellation") {
  check_operation("async_turn", [](sim_context& ctx) {
    auto rig = std::make_shared<swap_rig>(any_device(ctx.get_executor()), three, 5);
    for (std::uint64_t m = 0; m < 5; ++m) rig->add(m, 3);
    return matrix_row([rig](auto&& token) { return rig->swap.async_turn(std::forward<decltype(token)>(token)); });
  });
}

TEST_CASE("swapper: cancelled or destroyed at any step, everything ends") {
  cancel_at_every_step(whole_run, few());
  destroy_at_every_step(whole_run, few());
}
