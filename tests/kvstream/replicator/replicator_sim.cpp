// A ring of workers on a simulated network, each on a host of its own: hosts are killed, cut off and disconnected, a
// coordinator runs the log and tells them, and a model of truth says what every byte of KV has to be.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "cokv/kvstream/replicator.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/semaphore.hpp"
#include "cokv/runtime/sim_net.hpp"
#include "cokv/runtime/sim_node.hpp"
#include "cokv/runtime/with.hpp"
#include "kvstream/replicator/ring_worker.hpp"
#include "support/co_test.hpp"
#include "support/enough.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace std::chrono_literals;

namespace {

using id = replication_log::worker_id;
constexpr std::uint64_t microbatches = 2;

struct ring;

// One life of a worker.
struct member {
  id self = 0;
  std::uint64_t place = 0;  // whose KV it has, whoever has it
  std::optional<window_table> windows;
  std::optional<replicator> copies;
  std::optional<worker_kv> kv;
  link_listener door;
  task_group* epoch_scope = nullptr;  // what it does in this epoch
  bool halted = false, quiet = true, over = false;
  bool alive = true;
  std::unique_ptr<sim::node> host;
};

struct ring {
  explicit ring(sim_context& c, std::uint32_t workers, std::uint32_t ahead) : context(c), max_ahead(ahead) {
    std::vector<id> ids;
    for (std::uint32_t i = 0; i < workers; ++i) ids.push_back(++last);
    log.emplace(ids, ahead);
    for (std::uint64_t m = 0; m < microbatches; ++m) log->open(m);
  }

  sim_context& context;
  std::uint32_t max_ahead;
  id last = 0;
  std::optional<replication_log> log;
  std::map<id, std::unique_ptr<member>> members;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::vector<std::uint32_t>> attempts;  // by place and microbatch
  std::uint32_t goal = most_steps;
  bool stopping = false;
  std::size_t recomputed = 0, restores = 0, recoveries = 0, failed_restores = 0, broken = 0;

  std::vector<id> living() const {
    std::vector<id> out;
    for (const auto& [w, m] : members)
      if (m->alive) out.push_back(w);
    return out;
  }
  std::uint32_t least(std::uint64_t m) const {
    auto n = ~0u;
    for (const auto& [w, one] : members)
      if (part_of_ring(w)) n = std::min(n, log->steps(w, m));
    return n;
  }
  std::set<id> ring_ids;
  bool part_of_ring(id w) const { return ring_ids.contains(w); }
};

std::string host_name(id w) { return "worker" + std::to_string(w); }
link_options quick(id w) { return {.name = std::to_string(w), .chunk = 4096, .greeting = 1s, .silence = 2s}; }

awaitable<void> keep(ring&, member& me, peer_link link) {
  (void)co_await me.copies->keep(link);
  (void)co_await link.async_closed(as_result);
}

awaitable<void> serve(ring& r, member& me) {
  auto ex = co_await asio::this_coro::executor;
  for (;;) {
    auto link = co_await me.door.async_accept(as_result);
    if (!link) co_return;
    asio::co_spawn(ex, keep(r, me, std::move(*link)), asio::detached);
  }
}

// Connects to the successor, again and again; what one epoch is.
awaitable<void> send_all(ring& r, member& me) {
  const auto to = r.log->target(me.self);
  if (!to) co_return;
  for (;;) {
    auto link = co_await async_connect(*me.windows, "tcp://" + host_name(*to) + ":700", quick(me.self), as_result);
    if (link) {
      (void)co_await me.copies->send(*link);
      ++r.broken;
    }
    co_await clock::of(me.windows->get_executor()).async_wait_for(50ms);
  }
}

awaitable<void> compute_all(ring& r, member& me, std::uint64_t m) {
  auto& time = clock::of(me.windows->get_executor());
  while (me.copies->steps(m) < r.goal) {
    auto may = co_await me.copies->async_may_compute(m, as_result);
    if (!may) CHECK(may.error() == asio::error::operation_aborted);
    if (!may) co_return;
    const auto n = me.copies->steps(m);
    if (me.alive &&
        (n > r.least(m) || !r.log->may_compute(me.self, m))) {  // nobody begins a step before all have the one before
      co_await time.async_wait_for(20ms);
      continue;
    }
    co_await time.async_wait_for(duration(100'000 + r.context.below(2'000'000)));
    if (!me.alive) {  // given up: what it computes is nobody's truth
      me.kv->write(me.place, m, n, 1000);
      me.copies->computed(m, me.kv->step(m, n));
      continue;
    }
    auto& attempt = r.attempts[{me.place, m}];
    if (attempt.size() <= n)
      attempt.resize(n + 1);
    else
      ++attempt[n];
    me.kv->write(me.place, m, n, attempt[n]);
    me.copies->computed(m, me.kv->step(m, n));
    r.log->computed(me.self, m);
  }
}

awaitable<void> work(ring& r, member& me) {
  while (!me.over) {
    if (me.halted) {
      me.quiet = true;
      co_await clock::of(me.windows->get_executor()).async_wait_for(10ms);
      continue;
    }
    me.quiet = false;
    (void)co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      me.epoch_scope = &group;
      group.spawn(send_all(r, me));
      for (std::uint64_t m = 0; m < microbatches; ++m) group.spawn(compute_all(r, me, m));
      co_return;
    });
    me.epoch_scope = nullptr;
  }
}

void boot(ring& r, member& me, const asio::any_io_executor& ex) {
  me.windows.emplace(ex);
  me.kv.emplace(static_cast<std::uint32_t>(microbatches));
  me.copies.emplace(*me.windows, me.self,
                    replicator_options{.max_ahead = r.max_ahead,
                                       .limit = 16 * microbatches * replicated_bytes(most_steps),
                                       .acknowledged = [&r, &me](auto m, auto steps, auto epoch) {
                                         if (const auto to = r.log->target(me.self); to && r.part_of_ring(me.self))
                                           r.log->acknowledged(me.self, *to, m, steps, epoch);
                                       }});
  me.door = link_listener::listen(*me.windows, "tcp://localhost:700", quick(me.self)).value();
  for (std::uint64_t m = 0; m < microbatches; ++m) me.copies->open(m, replicated_bytes(most_steps));
  asio::co_spawn(ex, serve(r, me), asio::detached);
}

member& begin(ring& r, id w, std::uint64_t place) {
  auto& me = *(r.members[w] = std::make_unique<member>());
  me.self = w;
  me.place = place;
  me.halted = true;
  me.host = std::make_unique<sim::node>(r.context, host_name(w), [&](auto ex) {
    boot(r, me, ex);
    asio::co_spawn(ex, work(r, me), asio::detached);
  });
  return me;
}

// Everybody in the ring stands still, learns of the epoch, and goes on.
awaitable<void> new_epoch(ring& r, const std::map<std::uint64_t, std::uint32_t>& resume) {
  auto& time = clock::of(co_await asio::this_coro::executor);
  for (auto w : r.living()) {
    auto& me = *r.members.at(w);
    me.halted = true;
    me.copies->follow(r.log->epoch(), r.part_of_ring(w) ? r.log->target(w) : std::nullopt);
    if (me.epoch_scope) me.epoch_scope->cancel();
  }
  for (auto w : r.living())
    while (r.members.at(w)->alive && !r.members.at(w)->quiet) co_await time.async_wait_for(5ms);
  for (auto w : r.living()) {
    auto& me = *r.members.at(w);
    if (!r.part_of_ring(w)) continue;
    for (std::uint64_t m = 0; m < microbatches; ++m) {
      const auto to = resume.find(m);
      const auto steps = to == resume.end() ? me.copies->steps(m) : to->second;
      CHECK(steps <= me.copies->steps(m));
      CHECK(steps == r.log->steps(w, m));
      me.copies->recovered(m, steps, r.log->safe_steps(w, m));
    }
    me.copies->retain([&](id other, auto) { return r.log->keeps(w, other); });
  }
}

void go_on(ring& r) {
  for (auto w : r.living())
    if (r.part_of_ring(w)) r.members.at(w)->halted = false;
}

// A host of its own gets what the lost worker had, from whoever keeps it; errors are the holder's death.
awaitable<bool> restore(ring& r, member& fresh, std::uint64_t epoch, std::vector<replication_log::restore> wanted) {
  for (const auto& one : wanted) {
    auto link =
        co_await async_connect(*fresh.windows, "tcp://" + host_name(one.from) + ":700", quick(fresh.self), as_result);
    if (!link) co_return false;
    auto steps = fresh.kv->steps(one.microbatch, one.steps);
    auto got = co_await async_restore(*link, {epoch, one.lost, one.microbatch, steps}, as_result);
    link->close();
    (void)co_await link->async_closed(as_result);
    if (!got) co_return false;
    const auto& attempt = r.attempts[{fresh.place, one.microbatch}];
    for (std::uint32_t n = 0; n < one.steps; ++n)
      CHECK(fresh.kv->wrong(fresh.place, one.microbatch, n, attempt[n]) == 0);
    fresh.copies->restored(one.microbatch, std::move(steps), one.from);
    ++r.restores;
  }
  co_return true;
}

// Of a lost worker's steps, those that somebody who lives keeps.
std::uint32_t held(ring& r, id w, std::uint64_t m) {
  std::uint32_t most = 0;
  for (auto holder : r.living()) most = std::max(most, r.log->acknowledged_steps(w, holder, m));
  return most;
}

void kill(ring& r, id w) {
  auto& me = *r.members.at(w);
  me.alive = false;
  me.epoch_scope = nullptr;
  me.host->kill();
}

awaitable<void> recover(ring& r, std::vector<id> dead) {
  auto ex = co_await asio::this_coro::executor;
  ++r.recoveries;
  std::set<id> lost;
  for (;;) {
    std::map<std::uint64_t, std::uint32_t> before;
    std::map<std::uint64_t, bool> whole;
    for (std::uint64_t m = 0; m < microbatches; ++m) {
      before[m] = r.least(m);
      whole[m] = true;
      for (auto w : r.ring_ids)
        if (lost.contains(w) || std::ranges::count(dead, w) > 0)
          whole[m] = whole[m] && held(r, w, m) + r.max_ahead >= r.log->steps(w, m);
    }
    lost.insert(dead.begin(), dead.end());
    const auto recovery = r.log->lose(dead);
    dead.clear();
    const auto told = r.log->epoch();
    for (const auto& [m, resume] : recovery.resume) {
      if (whole[m]) CHECK(resume + r.max_ahead >= before[m]);
      r.recomputed += before[m] - resume;
    }
    co_await new_epoch(r, recovery.resume);
    bool again = false;
    for (auto w : std::set<id>(lost)) {
      const auto place = r.members.at(w)->place;
      auto& fresh = begin(r, ++r.last, place);
      fresh.copies->follow(told, std::nullopt);
      std::vector<replication_log::restore> wanted;
      for (const auto& one : recovery.restores)
        if (one.lost == w) wanted.push_back(one);
      bool restored = false;
      {
        semaphore ended(ex, 0);
        asio::co_spawn(fresh.windows->get_executor(), restore(r, fresh, told, wanted),
                       [&](std::exception_ptr e, bool ok) {
                         CHECK(!e);
                         restored = ok;
                         ended.release();
                       });
        (void)co_await ended.async_acquire();
      }
      if (!restored) {  // a holder that can't be reached is given up as well
        ++r.failed_restores;
        kill(r, fresh.self);
        for (const auto& one : wanted)
          if (!lost.contains(one.from) && std::ranges::count(dead, one.from) == 0) {
            kill(r, one.from);
            dead.push_back(one.from);
          }
        again = true;
        break;
      }
      r.log->replace(w, fresh.self);
      for (auto other : r.living()) r.members.at(other)->copies->replaced(w, fresh.self);
      r.ring_ids.erase(w);
      r.ring_ids.insert(fresh.self);
      lost.erase(w);
      for (std::uint64_t m = 0; m < microbatches; ++m) CHECK(fresh.copies->steps(m) == r.log->steps(fresh.self, m));
    }
    if (!again) break;
  }
  co_await new_epoch(r, {});
  go_on(r);
}

bool finished(const ring& r) {
  for (auto w : r.ring_ids)
    for (std::uint64_t m = 0; m < microbatches; ++m)
      if (r.log->steps(w, m) < r.goal || (r.log->target(w) && r.log->safe_steps(w, m) < r.goal)) return false;
  return true;
}

// What every successor keeps is fetched, and compared, by somebody outside the ring.
awaitable<void> check_copies(ring& r, sim::node& outside) {
  auto ex = co_await asio::this_coro::executor;
  (void)outside;
  window_table windows(ex);
  worker_kv seen(static_cast<std::uint32_t>(microbatches * r.ring_ids.size()));
  for (auto w : r.ring_ids) {
    const auto holder = r.log->target(w);
    if (!holder) continue;
    const auto place = r.members.at(w)->place;
    auto link = co_await async_connect(windows, "tcp://" + host_name(*holder) + ":700", quick(1000), as_result);
    CHECK(link.error() == error_code());
    if (!link) continue;
    for (std::uint64_t m = 0; m < microbatches; ++m) {
      const auto name = w * microbatches + m;  // blocks of its own
      auto got = co_await async_restore(*link, {r.log->epoch(), w, m, seen.steps(name, r.goal)}, as_result);
      CHECK(got.error() == error_code());
      const auto what = seen.steps(name, r.goal);
      std::size_t wrong = 0;
      for (std::uint32_t n = 0; n < r.goal; ++n) {
        std::uint64_t offset = 0;
        const auto pieces = what[n].view.pieces(what[n].what[0]).value();
        for (const auto& piece : pieces)
          for (auto b : piece.bytes()) wrong += b != kv_truth(place, m, n, r.attempts[{place, m}][n], offset++);
      }
      CHECK(wrong == 0);
    }
    link->close();
    (void)co_await link->async_closed(as_result);
  }
}

struct tally {
  std::size_t recomputed = 0, restores = 0, recoveries = 0, failed_restores = 0, finished = 0, broken = 0;
};

enum class harm { none, kills, cuts };

void run(std::uint64_t seed, harm how, tally& all) {
  INFO(replay_command(seed));
  sim_context context(seed);
  auto& net = sim::net::of(context);
  if (how == harm::cuts) {
    if (context.chance(0.5)) net.faults.reset = 0.002;
    if (context.chance(0.3)) net.faults.flip = 0.002;
    if (context.chance(0.3)) net.faults.clog = 0.01;
  }
  {
    ring r(context, 2 + static_cast<std::uint32_t>(context.below(3)), 1 + static_cast<std::uint32_t>(context.below(2)));
    bool ended = false;
    sim::node outside(context, "outside");
    auto body = [&]() -> awaitable<void> {
      auto ex = co_await asio::this_coro::executor;
      auto& time = clock::of(ex);
      for (id w = 1; w <= r.last; ++w) {
        r.ring_ids.insert(w);
        begin(r, w, w);
      }
      co_await new_epoch(r, {});
      go_on(r);
      for (int event = 0; event < 3 && how != harm::none; ++event) {
        co_await time.async_wait_for(duration(context.below(30'000'000)));
        std::vector<id> alive(r.ring_ids.begin(), r.ring_ids.end());
        const auto w = alive[context.below(alive.size())];
        const auto other = alive[context.below(alive.size())];
        if (how == harm::cuts) {
          switch (context.below(3)) {
            case 0:
              net.reset_connections(host_name(w));
              break;
            case 1:
              net.partition_one_way(host_name(w), host_name(other));
              co_await time.async_wait_for(duration(context.below(4'000'000'000)));
              net.heal();
              break;
            default: {  // given up without being dead: it goes on for a while as if nothing had happened
              net.isolate(host_name(w));
              co_await time.async_wait_for(20ms);
              auto& zombie = *r.members.at(w);
              zombie.alive = false;
              net.heal();
              co_await recover(r, {w});
              co_await time.async_wait_for(10ms);
              zombie.epoch_scope = nullptr;
              zombie.host->kill();
            }
          }
          continue;
        }
        std::vector<id> dead{w};
        if (other != w && context.chance(0.3)) dead.push_back(other);
        for (auto d : dead) kill(r, d);
        co_await time.async_wait_for(duration(context.below(5'000'000)));
        co_await recover(r, dead);
      }
      net.faults.reset = net.faults.flip = net.faults.clog = 0;
      while (!finished(r)) co_await time.async_wait_for(5ms);
      for (auto w : r.ring_ids) {
        auto& me = *r.members.at(w);
        for (std::uint64_t m = 0; m < microbatches; ++m)
          for (std::uint32_t n = 0; n < r.goal; ++n)
            CHECK(me.kv->wrong(me.place, m, n, r.attempts[{me.place, m}][n]) == 0);
      }
      co_await check_copies(r, outside);
      // All of it is given back.
      for (auto w : r.living()) {
        auto& me = *r.members.at(w);
        me.over = true;
        if (me.epoch_scope) me.epoch_scope->cancel();
        me.door.close();
        for (std::uint64_t m = 0; m < microbatches; ++m) me.copies->close(m);
      }
      co_await time.async_wait_for(10s);
      for (auto w : r.living()) {
        auto& me = *r.members.at(w);
        CHECK(me.copies->copies() == 0);
        CHECK(me.copies->bytes_kept() == 0);
        CHECK(me.windows->size() == 0);
        for (std::uint64_t m = 0; m < microbatches; ++m) me.kv->drop(m);
        CHECK(me.kv->pool().available() == me.kv->pool().blocks());
      }
      ended = true;
    };
    asio::co_spawn(outside.get_executor(), body(), [](std::exception_ptr e) {
      if (e) std::rethrow_exception(e);
    });
    (void)context.run_for(10min);
    CHECK(ended);
    all.finished += ended;
    all.recomputed += r.recomputed;
    all.restores += r.restores;
    all.recoveries += r.recoveries;
    all.failed_restores += r.failed_restores;
    all.broken += r.broken;
    for (auto& [w, m] : r.members) m->host->kill();
  }
}

}  // namespace

TEST_CASE("replicator: on a sound ring every worker's KV is at its successor, byte for byte") {
  tally all;
  for (auto seed : seeds(50)) run(seed, harm::none, all);
  CHECK(all.recoveries == 0);
}

TEST_CASE("replicator: whoever is killed, all resume at one step with the KV that was there") {
  tally all;
  for (auto seed : seeds(500)) run(seed, harm::kills, all);
  if (!one_seed()) {
    CHECK(all.restores >= enough(100));
    CHECK(all.recomputed >= enough(100));
  }
}

TEST_CASE("replicator: partitions, broken connections and workers given up alive cost time, and no byte") {
  tally all;
  for (auto seed : seeds(500)) run(seed, harm::cuts, all);
  if (!one_seed()) {
    CHECK(all.restores >= enough(100));
    CHECK(all.broken >= enough(100));
  }
}
