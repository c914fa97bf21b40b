// Disaggregated serving in miniature on simulated networks, shared memory and devices that break, lie and stand still:
// each answer is right or was given up on with an error, everything ends, and every block comes back.
#include <doctest/doctest.h>

#include "cokv/runtime/sim_device.hpp"
#include "cokv/runtime/sim_net.hpp"
#include "cokv/runtime/sim_node.hpp"
#include "kvstream/hash/hash_serving.hpp"
#include "kvstream/small_models.hpp"
#include "kvstream/transfers.hpp"
#include "support/enough.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace std::chrono_literals;

namespace {

const link_options small{.credits = 8, .messages = 4, .chunk = 4096, .greeting = 2s, .silence = 3s};

hash_place over_tcp() { return {.listen = "tcp://localhost:700", .connect = "tcp://prefill:700", .link = small}; }
hash_place over_shm() {
  return {.listen = "shm:///run/prefill",
          .connect = "shm:///run/prefill",
          .link = small,
          .gpu = any_device,
          .kind = memory_kind::shared};
}
hash_place on_device() {
  auto at = over_tcp();
  at.gpu = any_device;
  at.stage = {.chunk = 4096, .count = 3};
  return at;
}
// Host memory, packed by the device's kernels.
hash_place packed_by_host() {
  auto at = over_tcp();
  at.gpu = any_device;
  at.kind = memory_kind::host;
  return at;
}

struct outcome {
  std::size_t answered = 0, given_up = 0, failed_attempts = 0, pushed = 0, pulled = 0;
  std::set<std::string> errors;
};

// `sound`: nobody dies, so nobody may leave a lease behind.
template <class Faults>
void run(std::uint64_t seed, const hash_place& at, Faults faults, outcome& all, bool sound = true) {
  INFO(replay_command(seed));
  sim_context context(seed);
  auto& net = sim::net::of(context);
  net.faults.socket_buffer = 20 << 10;
  const auto models = small_models(4);
  hash_serving s(models[context.below(models.size())], seed);
  bool answered = false, computed = false;
  {
    sim::node prefill(context, "prefill", [&](auto ex) {
      asio::co_spawn(ex, hash_prefill(s, at), [&](std::exception_ptr e) {
        CHECK(!e);
        computed = true;
      });
    });
    sim::node decode(context, "decode", [&](auto ex) {
      asio::co_spawn(ex, hash_decode(s, at), [&](std::exception_ptr e) {
        CHECK(!e);
        answered = true;
      });
    });
    faults(context, net);
    for (int minutes = 0; minutes < 60 && !answered; ++minutes) (void)context.run_for(1min);
    CHECK(answered);  // nothing hangs
    if (s.close_door) s.close_door();
    CHECK(context.run() == sim_context::outcome::done);
    CHECK(computed);
  }
  if (sound) check_end(s);
  all.answered += s.answered, all.given_up += s.given_up, all.failed_attempts += s.failed_attempts;
  all.pushed += s.pushed, all.pulled += s.pulled;
  all.errors.insert(s.errors.begin(), s.errors.end());
}

}  // namespace

TEST_CASE("hash model: on a sound network every answer is right at the first attempt, wherever KV lies") {
  outcome all;
  const auto tried = seeds(60);
  for (auto seed : tried)
    for (const auto& at : {over_tcp(), over_shm(), on_device(), packed_by_host()})
      run(seed, at, [](sim_context&, sim::net&) {}, all);
  CHECK(all.failed_attempts == 0);
  CHECK(all.answered == tried.size() * 4 * 4);
  CHECK(all.pushed == all.pulled);
}

TEST_CASE("hash model: wrong bits, broken connections, short reads and delays give right answers or errors") {
  outcome all;
  for (auto seed : seeds(500))
    run(
        seed, seed % 2 ? over_tcp() : packed_by_host(),
        [](sim_context& context, sim::net& net) {
          if (context.chance(0.5)) net.faults.flip = 0.02;
          if (context.chance(0.5)) net.faults.reset = 0.02;
          if (context.chance(0.3)) net.faults.clog = 0.02;
          if (context.chance(0.3)) net.faults.refuse = 0.3;
        },
        all);
  CHECK(all.answered >= enough(500));
  CHECK(all.failed_attempts >= enough(200));
  CHECK(all.errors.size() >= 3);
}

TEST_CASE("hash model: partitions, one-way too, and workers that stand still or die give right answers or errors") {
  outcome all;
  for (auto seed : seeds(500)) {
    const bool shared = seed % 3 == 0;
    run(
        seed, shared ? over_shm() : over_tcp(),
        [&](sim_context& context, sim::net& net) {
          const auto when = duration(context.below(20'000'000));
          const auto how = context.below(shared ? 3 : 6);
          auto& timer = clock::of(context.get_executor());
          timer.async_wait_for(when, [&, how](error_code) {
            if (how == 0) sim::node::find(context, "prefill")->restart();
            if (how == 1) sim::node::find(context, "prefill")->pause();
            if (how == 2) sim::node::find(context, "decode")->pause();
            if (how == 3) net.partition("prefill", "decode");
            if (how == 4) net.partition_one_way("prefill", "decode");
            if (how == 5) net.partition_one_way("decode", "prefill");
          });
          timer.async_wait_for(when + 30s, [&, how](error_code) {
            if (how == 1) sim::node::find(context, "prefill")->resume();
            if (how == 2) sim::node::find(context, "decode")->resume();
            net.heal();
          });
        },
        all, false);
  }
  CHECK(all.answered >= enough(1000));
  CHECK(all.failed_attempts >= enough(100));
}

TEST_CASE("hash model: devices that are slow, fail or are lost give right answers or errors") {
  outcome all;
  for (auto seed : seeds(500))
    run(
        seed, on_device(),
        [](sim_context& context, sim::net& net) {
          if (context.chance(0.3)) net.faults.flip = 0.02;
          for (auto host : {"prefill", "decode"}) {
            auto& device = sim::device::of(context, "sim:h200", host);
            if (context.chance(0.3)) device.faults.slow = 0.2, device.faults.slow_factor = 1000;
            if (context.chance(0.3)) device.faults.fail_at = 1 + context.below(150);
            if (context.chance(0.1))
              clock::of(context.get_executor())
                  .async_wait_for(duration(context.below(5'000'000)), [&device](error_code) { device.lose(); });
          }
        },
        all);
  CHECK(all.answered >= enough(500));
  CHECK(all.failed_attempts >= enough(100));
}
