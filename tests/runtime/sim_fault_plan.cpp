#include "cokv/runtime/sim_fault_plan.hpp"

#include <limits>
#include <map>
#include <set>

#include "cokv/runtime/device.hpp"
#include "cokv/runtime/file.hpp"
#include "cokv/runtime/net.hpp"
#include "cokv/runtime/sim_device.hpp"
#include "cokv/runtime/sim_disk.hpp"
#include "cokv/runtime/sim_net.hpp"
#include "cokv/runtime/sim_node.hpp"
#include "cokv/runtime/trace.hpp"
#include "support/co_test.hpp"
#include "support/enough.hpp"

using namespace cokv;
using namespace std::chrono_literals;
using sim::fault_kind;

namespace {

constexpr auto tuple = asio::as_tuple(asio::deferred);

sim::fault_profile everything() {
  sim::fault_profile p;
  p.nodes = {"store", "client", "third"};
  p.disks = {"store"};
  p.devices = {{"store", "sim:h100"}};
  p.faults_per_second = 4;
  p.weights.fill(1);
  return p;
}

// A register on a host: a number written to its disk before it is acknowledged, passed through its device.
awaitable<void> answer(byte_stream stream, device gpu) {
  auto ex = stream.get_executor();
  auto& fs = file_system::of(ex);
  auto s = gpu.make_stream();
  if (!s) co_return;
  for (std::uint64_t number = 0;;) {
    auto [rec, n] = co_await asio::async_read(stream, asio::buffer(&number, sizeof number), tuple);
    if (rec) co_return;
    auto there = gpu.allocate(sizeof number);
    if (!there) co_return;
    auto host = buffer::host(sizeof number), back = buffer::host(sizeof number);
    std::memcpy(host.data(), &number, sizeof number);
    s->copy(*there, host);
    s->copy(back, *there);
    if (auto [ec] = co_await s->async_drain(tuple); ec) co_return;
    auto [oec, f] = co_await fs.async_open("new", open_mode::create, tuple);
    if (oec) co_return;
    if (auto [ec, w] = co_await f.async_write_at(0, asio::buffer(back.data(), back.size()), tuple); ec) co_return;
    if (auto [ec] = co_await f.async_sync(tuple); ec) co_return;
    if (auto [ec] = co_await fs.async_rename("new", "number", tuple); ec) co_return;
    if (auto [ec] = co_await fs.async_sync_directory("", tuple); ec) co_return;
    if (auto [ec, w] = co_await asio::async_write(stream, asio::buffer(back.data(), back.size()), tuple); ec) co_return;
  }
}

awaitable<void> serve(asio::any_io_executor ex) {
  auto door = network::of(ex).listen({"", 7}).value();
  for (;;) {
    auto [ec, stream] = co_await door.async_accept(tuple);
    if (ec) co_return;
    if (auto gpu = open_device(ex, "sim:h100")) asio::co_spawn(ex, answer(std::move(stream), *gpu), asio::detached);
  }
}

struct tally {
  std::uint64_t acknowledged = 0;
  int failed = 0, wrong = 0;
  time_point last{};
};

// Writes one number after the other, each until it is acknowledged.
awaitable<void> write(asio::any_io_executor ex, tally& t, time_point until) {
  auto& time = clock::of(ex);
  for (std::uint64_t number = 1; time.now() < until; ++number)
    for (bool done = false; !done && time.now() < until;) {
      co_await time.async_wait_for(20ms);
      ++t.failed;
      auto [ec, stream] = co_await network::of(ex).async_connect({"store", 7}, tuple);
      if (ec) continue;
      co_await asio::async_write(stream, asio::buffer(&number, sizeof number), tuple);
      std::uint64_t echo = 0;
      auto [order, rec, m, tec] =
          co_await asio::experimental::make_parallel_group(
              asio::async_read(stream, asio::buffer(&echo, sizeof echo), asio::deferred), time.async_wait_for(1s))
              .async_wait(asio::experimental::wait_for_one(), asio::deferred);
      if (rec || order[0] != 0) continue;
      t.wrong += echo != number;
      t.acknowledged = number;
      t.last = time.now();
      --t.failed;
      done = true;
    }
}

struct run_result {
  tally t;
  std::uint64_t hash = 0, plan = 0;
};

run_result run(std::uint64_t seed, sim::fault_profile profile) {
  INFO(test::replay_command(seed));
  const auto plan = sim::fault_plan::make(seed, profile);
  INFO(plan.to_string());
  sim_context context(seed);
  sim::net::of(context).faults.connect_timeout = 500ms;
  sim::node store(context, "store", [](auto ex) { asio::co_spawn(ex, serve(ex), asio::detached); });
  run_result r;
  const auto until = time_point(profile.horizon + 3s);
  sim::node client(context, "client", [&](auto ex) { asio::co_spawn(ex, write(ex, r.t, until), asio::detached); });
  plan.apply(context);
  context.run_until(time_point(profile.horizon));
  const auto before = r.t.acknowledged;
  context.run_until(until);
  CHECK(r.t.wrong == 0);
  CHECK(r.t.acknowledged > before + 40);  // nothing fails any more: it goes on
  CHECK(r.t.last > until - 1s);
  CHECK(store.up());
  CHECK(!store.paused());
  // What was acknowledged is on the disk, or something newer is, whatever happens now.
  store.kill();
  const auto kept = store.disk().contents("number");
  std::uint64_t number = 0;
  REQUIRE(kept.size() == sizeof number);
  std::memcpy(&number, kept.data(), sizeof number);
  CHECK((number == r.t.acknowledged || number == r.t.acknowledged + 1));
  r.hash = context.trace_hash();
  r.plan = plan.hash();
  return r;
}

sim::fault_profile of_run() {
  sim::fault_profile p;
  p.nodes = {"store"};
  p.links = {{"store", "client"}};
  p.disks = {"store"};
  p.devices = {{"store", "sim:h100"}};
  p.horizon = 5s;
  p.longest = 1s;
  return p;
}

}  // namespace

TEST_CASE("a fault plan is a function of seed and profile, and keeps within the profile's bounds") {
  std::set<std::uint64_t> hashes;
  std::map<fault_kind, int> kinds;
  const auto profile = everything();
  for (auto seed : test::seeds(500, 0)) {
    INFO("seed ", seed);
    const auto plan = sim::fault_plan::make(seed, profile);
    CHECK(plan.faults() == sim::fault_plan::make(seed, profile).faults());
    CHECK(plan.to_string() == sim::fault_plan::make(seed, profile).to_string());
    CHECK(plan.quiet_from() <= profile.horizon);
    hashes.insert(plan.hash());
    duration before{0};
    for (auto& f : plan.faults()) {
      CHECK(f.at >= before);
      before = f.at;
      ++kinds[f.kind];
      CHECK((f.lasts >= profile.shortest || f.kind == fault_kind::reset));
      CHECK(f.lasts <= profile.longest);
      std::size_t at_once = 0, down = 0;
      for (auto& g : plan.faults()) {
        if (g.at > f.at || g.at + g.lasts < f.at) continue;
        ++at_once;
        down += g.kind == fault_kind::kill || g.kind == fault_kind::pause;
        if (&f != &g && f.kind == g.kind) CHECK(std::tie(f.target, f.other) != std::tie(g.target, g.other));
      }
      CHECK(at_once <= profile.most_at_once);
      CHECK(down <= profile.most_nodes_down);
    }
  }
  if (!test::one_seed()) {
    CHECK(hashes.size() == test::seeds(500).size());
    CHECK(kinds.size() == sim::fault_kinds);
    for (auto& [kind, count] : kinds) CHECK(count >= test::enough(300));
  }
}

TEST_CASE("a fault plan has no more than its profile asks for") {
  auto p = everything();
  p.weights.fill(0);
  CHECK(sim::fault_plan::make(1, p).faults().empty());
  p.weight(fault_kind::pause) = 1;
  p.most_faults = 3;
  auto plan = sim::fault_plan::make(1, p);
  CHECK(plan.faults().size() == 3);
  for (auto& f : plan.faults()) CHECK(f.kind == fault_kind::pause);
  p.faults_per_second = 0;
  CHECK(sim::fault_plan::make(1, p).faults().empty());
  CHECK(sim::fault_plan::make(1, {}).faults().empty());  // nothing to break
  CHECK(sim::fault_plan::make(1, {}).quiet_from() == 0s);

  sim::fault_profile disks_only;
  disks_only.disks = {"a"};
  plan = sim::fault_plan::make(7, disks_only);
  CHECK(!plan.faults().empty());
  for (auto& f : plan.faults()) CHECK((f.kind == fault_kind::disk_full || f.kind == fault_kind::disk_errors));
}

TEST_CASE("a profile that contradicts itself is refused") {
  auto refused = [](auto change) {
    auto p = everything();
    change(p);
    CHECK_THROWS_AS(sim::fault_plan::make(1, p), std::invalid_argument);
  };
  refused([](auto& p) { p.horizon = -1s; });
  refused([](auto& p) { p.starts = 20s; });
  refused([](auto& p) { p.longest = 0s; });
  refused([](auto& p) { p.faults_per_second = -1; });
  refused([](auto& p) { p.faults_per_second = std::numeric_limits<double>::quiet_NaN(); });
  refused([](auto& p) { p.weights[0] = -1; });
  refused([](auto& p) { p.links = {{"a", "a"}}; });
  sim_context context(1);
  CHECK_THROWS_AS(sim::fault_plan({{fault_kind::kill, 1s, 1s, "nobody", ""}}).apply(context), std::invalid_argument);
  CHECK_THROWS_AS(sim::fault_plan({{fault_kind::kill, 1s, 1s, "home", ""}}).apply(context), std::invalid_argument);
  CHECK_THROWS_AS(sim::fault_plan({{fault_kind::device_loss, 1s, 1s, "home", "sim:abacus"}}).apply(context),
                  config_error);
}

TEST_CASE("a fault plan reads as a line for each fault") {
  const sim::fault_plan plan({{fault_kind::kill, 250ms, 1s, "store", ""},
                              {fault_kind::one_way, 1s, 5ms, "store", "client"},
                              {fault_kind::reset, 2s, 0s, "store", "client"},
                              {fault_kind::device_loss, 3s, 1ns, "store", "sim:h100:1"}});
  CHECK(plan.to_string() ==
        "   0.250000000 s  kill store for 1.000000000 s\n"
        "   1.000000000 s  one-way partition store > client for 0.005000000 s\n"
        "   2.000000000 s  reset store - client\n"
        "   3.000000000 s  device loss store sim:h100:1 for 0.000000001 s\n");
  CHECK(plan.quiet_from() == 3s + 1ns);
}

TEST_CASE("every kind of fault breaks what it names for as long as it lasts, and nothing afterwards") {
  sim_context context(1);
  sim::node a(context, "a"), b(context, "b");
  auto& faults = sim::net::of(context).faults;
  auto& disk = a.disk().faults;
  auto& gpu = sim::device::of(context, "sim:h100", "a");
  struct {
    fault_kind kind;
    std::string target, other;
    std::function<bool()> broken;
  } const table[] = {
      {fault_kind::kill, "a", "", [&] { return !a.up(); }},
      {fault_kind::pause, "a", "", [&] { return a.paused(); }},
      {fault_kind::disk_full, "a", "", [&] { return disk.no_space == 1; }},
      {fault_kind::disk_errors, "a", "", [&] { return disk.read_error > 0 && disk.sync_error > 0; }},
      {fault_kind::disk_flips, "a", "", [&] { return disk.flip_read > 0 && disk.flip_write > 0; }},
      {fault_kind::net_flips, "", "", [&] { return faults.flip > 0; }},
      {fault_kind::device_errors, "a", "sim:h100", [&] { return gpu.faults.fail > 0; }},
      {fault_kind::device_slow, "a", "sim:h100", [&] { return gpu.faults.slowdown > 1; }},
      {fault_kind::device_loss, "a", "sim:h100", [&] { return gpu.lost(); }},
  };
  auto& recorder = trace::of(context.get_executor());
  recorder.enable();
  for (auto& row : table) {
    CAPTURE(sim::name_of(row.kind));
    const auto now = context.now();
    CHECK(!row.broken());
    sim::fault_plan({{row.kind, now.time_since_epoch() + 1s, 2s, row.target, row.other}}).apply(context);
    context.run_until(now + 1s - 1ns);
    CHECK(!row.broken());
    context.run_until(now + 1s);
    CHECK(row.broken());
    context.run_until(now + 3s - 1ns);
    CHECK(row.broken());
    context.run_until(now + 3s);
    CHECK(!row.broken());
  }
  auto spans = recorder.spans("faults");
  REQUIRE(spans.size() == std::size(table));
  CHECK(spans[0].name == "kill a");
  CHECK(spans[0].end - spans[0].start == 2s);
}

TEST_CASE("under any plan an acknowledged write is right, and after the last fault writes go on") {
  std::uint64_t acknowledged = 0, failed = 0;
  for (auto seed : test::seeds(500)) {
    auto r = run(seed, of_run());
    acknowledged += r.t.acknowledged;
    failed += static_cast<std::uint64_t>(r.t.failed);
  }
  MESSAGE(acknowledged, " writes acknowledged, ", failed, " attempts failed");
  CHECK(failed >= test::enough(1000));
}

TEST_CASE("a run under a fault plan is the same run each time") {
  std::set<std::uint64_t> hashes;
  for (auto seed : test::seeds(20)) {
    auto a = run(seed, of_run()), b = run(seed, of_run());
    CHECK(a.hash == b.hash);
    CHECK(a.plan == b.plan);
    CHECK(a.t.acknowledged == b.t.acknowledged);
    hashes.insert(a.hash);
  }
  if (!test::one_seed()) CHECK(hashes.size() == test::seeds(20).size());
}
