// A Redis Cluster of our own on a simulated network: nodes stand still, are cut off, lose everything and hand slots over,
// while a client writes and reads. What is read as good is what was written under that key, or the test fails.
#include <doctest/doctest.h>

#include "cokv/kvstream/redis_store.hpp"
#include "cokv/runtime/detail/splitmix.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/sim_fault_plan.hpp"
#include "cokv/runtime/sim_net.hpp"
#include "cokv/runtime/sim_node.hpp"
#include "kvstream/redis/fake_redis.hpp"
#include "store/redis/slots.hpp"
#include "support/enough.hpp"
#include "support/store_contract.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace std::chrono_literals;

namespace {

constexpr auto tuple = asio::as_tuple(asio::deferred);
constexpr int hosts = 3;
const namespace_id ns = namespace_id::of("m", geometry::attention(3, 2, 4, dtype::f32));

struct tally {
  int written = 0, partial = 0, failed = 0, good_blocks = 0, missing_blocks = 0, moves = 0, starts = 0, late = 0;
};

// The nodes of the cluster, whichever life they are in. What one had is gone with it.
struct machines {
  machines(sim_context& context, tally& of) : t(of) {
    slots = std::make_shared<fake_redis_slots>();
    for (int i = 0; i < hosts; ++i) slots->nodes.push_back({"r" + std::to_string(i), 6379});
    slots->share_out();
    running.resize(hosts);
    for (int i = 0; i < hosts; ++i)
      nodes.push_back(std::make_unique<sim::node>(context, "r" + std::to_string(i), [this, i](auto ex) {
        ++t.starts;
        running[static_cast<std::size_t>(i)] = std::make_shared<fake_redis>(ex, slots, i);
        fake_redis::start(running[static_cast<std::size_t>(i)], {"0.0.0.0", 6379});
      }));
  }

  // A slot's keys go over in two steps, the second some time after the first.
  void begin_move(int slot, int to) {
    if (slots->importing.contains(slot) || slots->owner[static_cast<std::size_t>(slot)] == to) return;
    slots->importing[slot] = to;
    ++t.moves;
    hand_over(slot, 0.5);
  }
  void end_moves() {
    for (const auto& [slot, to] : std::exchange(slots->importing, {})) {
      slots->importing[slot] = to;
      hand_over(slot, 1);
      slots->importing.erase(slot);
      slots->owner[static_cast<std::size_t>(slot)] = to;
    }
  }
  void hand_over(int slot, double part) {
    auto& from = running[static_cast<std::size_t>(slots->owner[static_cast<std::size_t>(slot)])]->kept;
    auto& to = running[static_cast<std::size_t>(slots->importing[slot])]->kept;
    detail::splitmix random(static_cast<std::uint64_t>(slot));
    for (auto at = from.begin(); at != from.end();)
      if (detail::slot_of(at->first) == slot && random.chance(part))
        to.insert(from.extract(at++));
      else
        ++at;
  }

  tally& t;
  std::shared_ptr<fake_redis_slots> slots;
  std::vector<std::shared_ptr<fake_redis>> running;
  std::vector<std::unique_ptr<sim::node>> nodes;
};

struct plan_of_faults {
  sim::fault_profile profile;
  bool move_slots = false;
  bool lose_nothing = false;
};

sim::fault_profile breaks() {
  sim::fault_profile p;
  p.nodes = {"r0", "r1", "r2"};
  p.links = {{"r0", "client"}, {"r1", "client"}, {"r2", "client"}};
  p.horizon = 15s;
  p.longest = 3s;
  p.most_nodes_down = 2;
  return p;
}

awaitable<void> use(asio::any_io_executor ex, std::uint64_t seed, const plan_of_faults& f, duration quiet,
                    machines& all, tally& t, bool& finished) {
  detail::splitmix random(seed);
  const auto below = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random.below(n)); };
  auto& time = clock::of(ex);
  redis_store s(ex, "redis://r0,r1,r2", {.piece_bytes = 6000});
  std::vector<block_key> kept;
  for (int i = 0; i < 20; ++i) {
    const auto first = below(30), count = 1 + below(10);
    if (below(2) == 0) {
      auto [ec, writer] = co_await s.async_open_write(ns, contract_layout(), contract_keys(first, count),
                                                      write_options{.force = below(8) == 0}, tuple);
      for (std::uint32_t layer = 0; !ec && layer < contract_layout().layers(); ++layer)
        ec = std::get<0>(co_await writer->async_write(layer, contract_segments(first, count, layer), tuple));
      if (!ec) {
        ec = std::get<0>(co_await writer->async_commit(tuple));
        for (std::uint32_t k = 0; k < count; ++k)
          if (writer->keeps(k)) kept.push_back(contract_keys(first + k, 1)[0]);
      }
      ++(!ec ? t.written : ec == errc::partial ? t.partial : t.failed);
    } else {
      const auto begun = time.now();
      (void)co_await s.async_match(ns, contract_keys(first, count), match_options{.refresh = below(4) == 0}, as_result);
      t.late += time.now() - begun > 300ms;
      const auto good = co_await read_blocks(s, ns, first, count);  // compares every byte
      t.good_blocks += static_cast<int>(good);
      t.missing_blocks += static_cast<int>(count - good);
    }
    if (f.move_slots) {
      if (below(3) == 0) all.end_moves();
      const auto key = detail::slot_of("cokv:{" + contract_keys(below(30), 1)[0].hex().substr(0, 8) + "}");
      if (below(2) == 0) all.begin_move(key, static_cast<int>(below(hosts)));
    }
    co_await time.async_wait_for(duration(below(500'000'000)));
  }
  all.end_moves();
  co_await time.async_wait_until(std::max(time.now(), time_point(quiet)) + 1min);
  if (f.lose_nothing)
    for (const auto& key : kept) CHECK(co_await s.async_match(ns, {key}, as_result) == 1);
  // When nothing breaks any more, what is asked is done; blocks that have lost a piece go when they are read.
  std::size_t good = 0;
  for (int tries = 0; tries < 31 && good < 30; ++tries) {
    CHECK(!co_await write_blocks(s, ns, 0, 30));
    good = co_await read_blocks(s, ns, 0, 30);
    co_await time.async_wait_for(10ms, asio::deferred);
  }
  CHECK(good == 30);
  finished = true;
}

tally run_all(const plan_of_faults& f) {
  tally t;
  for (auto seed : seeds(500)) {
    INFO(replay_command(seed));
    sim_context context(seed);
    machines all(context, t);
    sim::node client(context, "client");
    const auto plan = sim::fault_plan::make(seed, f.profile);
    INFO(plan.to_string());
    bool finished = false;
    asio::co_spawn(client.get_executor(), use(client.get_executor(), seed, f, plan.quiet_from(), all, t, finished),
                   asio::detached);
    plan.apply(context);
    CHECK(context.run_for(1h) != sim_context::outcome::livelock);
    CHECK(finished);
    CHECK(t.late == 0);
  }
  MESSAGE(t.written, " writes, ", t.partial, " in part, ", t.failed, " failed; ", t.good_blocks, " blocks read, ",
          t.missing_blocks, " missing; ", t.moves, " slots moved, ", t.starts, " starts of nodes");
  return t;
}

}  // namespace

TEST_CASE("redis in virtual time: without faults everything is kept, while slots move") {
  plan_of_faults f{.profile = breaks(), .move_slots = true, .lose_nothing = true};
  f.profile.most_faults = 0;
  const auto t = run_all(f);
  CHECK(t.failed == 0);  // a commit may meet a slot that stays on its way for longer than it is tried
  CHECK(t.moves >= enough(1000));
}

TEST_CASE("redis in virtual time: nodes that die empty, stand still and are cut off") {
  const auto t = run_all({.profile = breaks()});
  if (one_seed()) return;
  CHECK(t.partial >= enough(300));
  CHECK(t.good_blocks >= enough(2000));
  CHECK(t.starts >= enough(2000));
}

TEST_CASE("redis in virtual time: bits that flip on the wire, broken connections, and slots that move") {
  auto p = breaks();
  p.weight(sim::fault_kind::kill) = 0;
  p.weight(sim::fault_kind::net_flips) = 2;
  const auto t = run_all({.profile = p, .move_slots = true});
  CHECK(t.good_blocks >= enough(2000));
}
