// Microbatches that come and go in a few slots, on simulated devices that fail and are slow.
#include <doctest/doctest.h>

#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/sim_device.hpp"
#include "kvstream/swapper/swap_rig.hpp"
#include "support/enough.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace std::chrono_literals;

TEST_CASE("swapper: whatever comes, goes and fails, who computes has its own KV") {
  std::size_t turns = 0, failed = 0;
  for (auto seed : seeds(500)) {
    INFO(replay_command(seed));
    sim_context context(seed);
    auto& gpu = sim::device::of(context, "sim:h200");
    const bool faulty = context.chance(0.5);
    if (faulty) gpu.faults.fail = 0.02;
    gpu.faults.slow = 0.1;
    const auto slots = 1 + static_cast<std::uint32_t>(context.below(4));
    const swapper_options o{.slots = slots,
                            .prefetch = static_cast<std::uint32_t>(context.below(slots)),
                            .sequences = 1 + static_cast<std::uint32_t>(context.below(2)),
                            .blocks = 4};
    bool ended = false;
    auto body = [&]() -> awaitable<void> {
      swap_rig rig(any_device(co_await asio::this_coro::executor), o, 8);
      std::uint64_t next = 0;
      for (int i = 0; i < 60; ++i) {
        if ((context.chance(0.3) || rig.held.empty()) && rig.on_host.available() >= o.sequences * o.blocks)
          rig.add(next++, static_cast<std::uint32_t>(context.below(4)));
        if (!rig.held.empty() && context.chance(0.1)) {
          const auto gone = std::next(rig.held.begin(), static_cast<std::ptrdiff_t>(context.below(rig.held.size())));
          rig.remove(gone->first);
        }
        if (!rig.swap.current()) {
          co_await clock::of(rig.gpu.get_executor()).async_wait_for(1ms);
          continue;
        }
        const auto whose = *rig.swap.current();
        auto turn = co_await rig.turn();
        if (!turn) {
          ++failed;
          CHECK(faulty);
          CHECK(turn.error() == errc::device_failed);
          if (context.chance(0.7)) rig.remove(whose);
          continue;
        }
        ++turns;
        const auto fresh = turn->tokens < 14 ? static_cast<std::uint32_t>(context.below(3)) : 0;
        const auto done = rig.step(*turn, fresh);
        rig.swap.end(done, fresh);
        if (context.chance(0.3)) (void)co_await done.async_wait(as_result);
      }
      (void)co_await rig.compute.async_drain(as_result);
      CHECK(rig.wrong() == 0);
      ended = true;
    };
    asio::co_spawn(context.get_executor(), body(), [](std::exception_ptr e) {
      if (e) std::rethrow_exception(e);
    });
    CHECK(context.run() == sim_context::outcome::done);
    CHECK(ended);
  }
  if (!one_seed()) {
    CHECK(turns >= enough(10'000));
    CHECK(failed >= enough(100));
  }
}
