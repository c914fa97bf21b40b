// The real cache server and the real client, each a host of a simulated cluster, while connections break, bits flip on
// the wire and in files, disks fail and the server is killed. Every seed ends in the right bytes or an error: content
// is a function of the key, so one wrong byte anywhere shows.
#include <doctest/doctest.h>

#include "cache/service.hpp"
#include "cokv/kvstream/file_store.hpp"
#include "cokv/kvstream/http_store.hpp"
#include "cokv/kvstream/memory_store.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/sim_disk.hpp"
#include "cokv/runtime/sim_fault_plan.hpp"
#include "cokv/runtime/sim_net.hpp"
#include "cokv/runtime/sim_node.hpp"
#include "support/co_test.hpp"
#include "support/enough.hpp"

using namespace cokv;
using test::enough;
using namespace std::chrono_literals;

namespace {

constexpr auto tuple = asio::as_tuple(asio::deferred);
constexpr std::uint32_t prompts = 4, prompt_blocks = 5;

const block_layout layout{{512, 768, 64}};
const namespace_id ns = namespace_id::of("m", geometry::attention(3, 2, 4, dtype::f32));

std::vector<block_key> keys_of(std::uint32_t prompt, std::uint32_t count) {
  std::vector<std::int32_t> tokens(count, static_cast<std::int32_t>(prompt) + 1);
  return chain_keys(tokens, 1);
}

std::byte content(std::uint32_t prompt, std::uint32_t block, std::uint32_t layer, std::size_t at) {
  std::uint64_t x = (prompt * 1000003ull + block * 10007ull + layer * 101ull + at) * 0x9E3779B97F4A7C15ull;
  return static_cast<std::byte>(x >> 56);
}

std::vector<buffer> segments_of(std::uint32_t prompt, std::uint32_t count, std::uint32_t layer) {
  std::vector<buffer> all;
  for (std::uint32_t b = 0; b < count; ++b) {
    all.push_back(buffer::host(layout.segments[layer]));
    for (std::size_t i = 0; i < layout.segments[layer]; ++i) all.back().data()[i] = content(prompt, b, layer, i);
  }
  return all;
}

struct tally {
  int written = 0, failed_writes = 0, reads = 0, failed_reads = 0, good_blocks = 0, wrong_bytes = 0, starts = 0;
};

awaitable<error_code> write(store& s, std::uint32_t prompt, std::uint32_t count, bool deferred) {
  auto [ec, writer] =
      co_await s.async_open_write(ns, layout, keys_of(prompt, count), write_options{.deferred = deferred}, tuple);
  if (ec) co_return ec;
  for (std::uint32_t layer = 0; layer < layout.layers(); ++layer)
    if (auto [wec] = co_await writer->async_write(layer, segments_of(prompt, count, layer), tuple); wec) co_return wec;
  auto [cec] = co_await writer->async_commit(tuple);
  co_return cec;
}

awaitable<error_code> read(store& s, std::uint32_t prompt, std::uint32_t count, tally& t) {
  auto [ec, reader] = co_await s.async_open_read(ns, layout, keys_of(prompt, count), tuple);
  if (ec) co_return ec;
  std::vector<std::vector<buffer>> layers;
  std::size_t good = count;
  for (std::uint32_t layer = 0; layer < layout.layers(); ++layer) {
    auto& into = layers.emplace_back();
    for (std::uint32_t b = 0; b < count; ++b) into.push_back(buffer::host(layout.segments[layer]));
    auto [rec, n] = co_await reader->async_read(layer, into, tuple);
    CHECK(n <= good);
    good = n;
    // What is good now may be used now, whatever comes later.
    for (std::uint32_t b = 0; b < good; ++b)
      for (std::size_t i = 0; i < into[b].size(); ++i)
        t.wrong_bytes += into[b].data()[i] != content(prompt, b, layer, i);
    if (rec) co_return rec;
  }
  t.good_blocks += static_cast<int>(good);
  co_return error_code();
}

// Everything of one life of the server; destroyed with the coroutine that holds it.
struct cache_life {
  std::unique_ptr<store> blocks;
  std::unique_ptr<cache::service> service;
  std::unique_ptr<http::server> server;
};

awaitable<void> serve(asio::any_io_executor ex, bool on_disk, tally& t) {
  cache_life life;
  while (on_disk && !life.blocks) {
    auto [ec, opened] = co_await file_store::async_open(
        ex, file_store_options{.directory = "blocks", .limit_bytes = 1 << 20, .max_deferred = 2}, tuple);
    if (ec)
      co_await clock::of(ex).async_wait_for(100ms);
    else
      life.blocks = std::move(opened);
  }
  if (!on_disk) life.blocks = std::make_unique<memory_store>(ex, memory_store_options{.limit_bytes = 1 << 20});
  ++t.starts;
  life.service = std::make_unique<cache::service>(
      *life.blocks, std::vector<cache::service::tier>{{on_disk ? "disk" : "memory", life.blocks.get()}});
  life.server = std::make_unique<http::server>(ex, http::server_options{.observe = life.service->observer()});
  life.service->add_routes(*life.server);
  life.server->listen({"0.0.0.0", 9009});
  co_await life.server->run();
}

awaitable<void> use(asio::any_io_executor ex, std::uint64_t seed, int rounds, tally& t) {
  co_await clock::of(ex).async_wait_for(100ms);  // the server opens its store first
  http_store remote(ex, "http://cache:9009");
  std::uint64_t x = seed;
  auto pick = [&x](std::uint64_t n) { return ((x = x * 6364136223846793005ull + 1442695040888963407ull) >> 33) % n; };
  for (int i = 0; i < rounds; ++i) {
    auto prompt = static_cast<std::uint32_t>(pick(prompts));
    auto count = static_cast<std::uint32_t>(1 + pick(prompt_blocks));
    switch (pick(5)) {
      case 0:
      case 1: {
        error_code ec = co_await write(remote, prompt, count, pick(2) == 0);
        ec ? ++t.failed_writes : ++t.written;
        break;
      }
      case 2: {
        auto [ec, n] = co_await remote.async_match(ns, keys_of(prompt, prompt_blocks), tuple);
        CHECK(n <= prompt_blocks);
        break;
      }
      case 3:
        if (pick(4) == 0) co_await remote.async_remove(ns, keys_of(prompt, 1)[0], tuple);
        [[fallthrough]];
      default: {
        error_code ec = co_await read(remote, prompt, count, t);
        ec ? ++t.failed_reads : ++t.reads;
      }
    }
    co_await clock::of(ex).async_wait_for(duration(pick(50'000'000)));
  }
}

struct plan {
  bool on_disk = false;
  bool kill = false;
  bool partition = false;
  sim::net_faults net;
  sim::disk_faults disk;
};

std::uint64_t run(std::uint64_t seed, const plan& p, tally& t, int rounds = 25) {
  INFO(test::replay_command(seed));
  sim_context context(seed);
  sim::net::of(context).faults = p.net;
  sim::node cache(context, "cache"), client(context, "client");
  cache.disk().faults = p.disk;
  asio::co_spawn(cache.get_executor(), serve(cache.get_executor(), p.on_disk, t), asio::detached);
  bool finished = false;
  std::string problem;
  asio::co_spawn(client.get_executor(), use(client.get_executor(), seed, rounds, t), [&](std::exception_ptr e) {
    finished = true;
    try {
      if (e) std::rethrow_exception(e);
    } catch (const std::exception& x) {
      problem = x.what();
    }
  });
  if (p.kill || p.partition)
    for (int i = 0; i < 3 && !finished; ++i) {
      context.run_for(context.between(1ms, 400ms));
      if (p.partition) sim::net::of(context).clog("cache", "client", context.between(1ms, 3s));
      if (!p.kill) continue;
      cache.kill();
      context.run_for(context.between(1ms, 400ms));
      cache.start();
      asio::co_spawn(cache.get_executor(), serve(cache.get_executor(), p.on_disk, t), asio::detached);
    }
  auto outcome = context.run_for(1h);  // keep-alive timers of idle connections end too
  CHECK(outcome != sim_context::outcome::livelock);
  CHECK(finished);
  CHECK(problem == "");
  CHECK(t.wrong_bytes == 0);
  return context.trace_hash();
}

tally run_all(std::size_t count, const plan& p) {
  tally t;
  for (auto seed : test::seeds(count)) run(seed, p, t);
  MESSAGE(t.written, " writes, ", t.failed_writes, " failed; ", t.reads, " reads, ", t.failed_reads, " failed; ",
          t.good_blocks, " blocks verified; ", t.starts, " server starts");
  CHECK(t.good_blocks >= enough(count));
  CHECK(t.written >= enough(count));
  return t;
}

}  // namespace

TEST_CASE("cache in virtual time: without faults nothing fails") {
  for (bool on_disk : {false, true}) {
    tally t = run_all(500, {.on_disk = on_disk, .net = {.short_transfer = 0.5}});
    CHECK(t.failed_writes == 0);
    CHECK(t.failed_reads == 0);
  }
}

TEST_CASE("cache in virtual time: broken connections") {
  tally t =
      run_all(500, {.net = {.short_transfer = 0.3, .reset = 0.01, .refuse = 0.02, .clog = 0.002, .clog_max = 8s}});
  CHECK(t.failed_writes + t.failed_reads >= enough(100));
}

TEST_CASE("cache in virtual time: bits that flip on the wire") {
  tally t = run_all(500, {.net = {.short_transfer = 0.3, .flip = 0.02}});
  CHECK(t.failed_writes + t.failed_reads >= enough(100));
}

TEST_CASE("cache in virtual time: a disk that fails, fills and flips bits") {
  run_all(500, {.on_disk = true,
                .disk = {.read_error = 0.01,
                         .write_error = 0.01,
                         .no_space = 0.01,
                         .sync_error = 0.01,
                         .flip_read = 0.02,
                         .flip_write = 0.02}});
}

TEST_CASE("cache in virtual time: a server that is killed and comes back with what its disk had synced") {
  tally t = run_all(500, {.on_disk = true, .kill = true, .net = {.reset = 0.002}});
  CHECK(t.starts >= enough(1000));
}

TEST_CASE("cache in virtual time: partitions that heal") { run_all(500, {.partition = true, .net = {.reset = 0.002}}); }

TEST_CASE("cache in virtual time: under any fault plan right blocks or errors, and success when it is over") {
  tally t;
  for (auto seed : test::seeds(500)) {
    INFO(test::replay_command(seed));
    sim::fault_profile profile;
    profile.nodes = {"cache"};
    profile.links = {{"cache", "client"}};
    profile.disks = {"cache"};
    profile.horizon = 5s;
    profile.longest = 1s;
    profile.weight(sim::fault_kind::net_flips) = profile.weight(sim::fault_kind::disk_flips) = 1;
    const auto faults = sim::fault_plan::make(seed, profile);
    INFO(faults.to_string());
    sim_context context(seed);
    sim::node cache(context, "cache", [&](auto ex) { asio::co_spawn(ex, serve(ex, true, t), asio::detached); });
    sim::node client(context, "client");
    bool finished = false;
    error_code written = errc::closed, read_back = errc::closed;
    int whole = 0;
    auto body = [&](asio::any_io_executor ex) -> awaitable<void> {
      co_await use(ex, seed, 40, t);
      co_await clock::of(ex).async_wait_until(time_point(profile.horizon + 60s));  // nobody waits for anything any more
      http_store remote(ex, "http://cache:9009");
      // A block whose file rotted goes when somebody reads it, and is there again once it is written again.
      for (std::uint32_t i = 0; i <= prompt_blocks && whole < static_cast<int>(prompt_blocks); ++i) {
        written = co_await write(remote, 0, prompt_blocks, false);
        const auto before = t.good_blocks;
        read_back = co_await read(remote, 0, prompt_blocks, t);
        whole = t.good_blocks - before;
      }
      finished = true;
    };
    asio::co_spawn(client.get_executor(), body(client.get_executor()), asio::detached);
    faults.apply(context);
    CHECK(context.run_for(1h) != sim_context::outcome::livelock);
    CHECK(finished);
    CHECK(written == error_code());
    CHECK(read_back == error_code());
    CHECK(whole == static_cast<int>(prompt_blocks));
    CHECK(t.wrong_bytes == 0);
  }
  MESSAGE(t.written, " writes, ", t.failed_writes, " failed; ", t.reads, " reads, ", t.failed_reads, " failed; ",
          t.good_blocks, " blocks verified; ", t.starts, " server starts");
  CHECK(t.failed_writes + t.failed_reads >= enough(100));
  CHECK(t.starts >= enough(700));
}

TEST_CASE("cache in virtual time: the same seed gives the same trace, faults and all") {
  plan p{.on_disk = true, .kill = true, .net = {.reset = 0.01, .flip = 0.01}, .disk = {.flip_read = 0.01}};
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    tally a, b;
    CHECK(run(seed, p, a) == run(seed, p, b));
    CHECK(a.good_blocks == b.good_blocks);
  }
}
