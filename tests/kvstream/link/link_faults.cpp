// Links on a simulated network that breaks, lies and stands still: what succeeded is right to the byte, everything
// else is an error, everything ends, and nothing writes memory that was taken back.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "cokv/kvstream/peer_link.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/memory_handle.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/sim_device.hpp"
#include "cokv/runtime/sim_net.hpp"
#include "cokv/runtime/sim_node.hpp"
#include "cokv/runtime/with.hpp"
#include "kvstream/transfers.hpp"
#include "support/enough.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t window_bytes = 256 << 10;

// What links run over: a network, or memory that both sides have, where only a process can fail.
struct transport {
  std::string listen = "tcp://localhost:700", connect = "tcp://server:700";
  bool shared = false;
  bool on_device = false;

  buffer memory(std::size_t n, const asio::any_io_executor& ex = {}) const {
    auto b = shared            ? allocate_shared(n).value()
             : on_device && ex ? any_device(ex).allocate(n).value()
                               : buffer::host(n);
    std::ranges::fill(b.bytes(), std::byte{0xdd});
    return b;
  }
};
const transport tcp, shm{"shm:///run/server", "shm:///run/server", true};
const transport gpu{.on_device = true};

// Little pinned memory, so that it is waited for.
window_table table_of(const asio::any_io_executor& ex, const transport& over) {
  window_table t(ex);
  auto d = over.on_device ? any_device(ex) : device();
  if (d) CHECK(!t.stage(d, {.chunk = 8 << 10, .count = 2}));
  return t;
}

// A worker that offers memory and answers messages, whatever becomes of its links.
struct server {
  transport over;
  buffer memory = over.memory(window_bytes);
  std::optional<window_table> windows;
  link_listener door;
  window offered;
  std::size_t links = 0, ended = 0;
};

link_options small(std::uint32_t connections = 1) {
  return {.connections = connections, .credits = 8, .messages = 4, .chunk = 16 << 10, .greeting = 2s, .silence = 3s};
}

awaitable<void> echo(server& s, peer_link link) {
  ++s.links;
  for (;;) {
    auto m = co_await link.async_receive(as_result);
    if (!m) break;
    if (!co_await link.async_send(std::move(*m), as_result)) break;
  }
  (void)co_await link.async_closed(as_result);
  ++s.ended;
}

awaitable<void> serve(server& s, std::uint32_t connections) {
  auto ex = co_await asio::this_coro::executor;
  s.windows = table_of(ex, s.over);
  if (s.over.on_device) s.memory = s.over.memory(window_bytes, ex);
  s.door = link_listener::listen(*s.windows, s.over.listen, small(connections)).value();
  s.offered =
      s.windows->expose({s.memory.slice(0, 1000), s.memory.slice(1000, window_bytes - 1000)}, window_access::both)
          .value();
  for (;;) {
    auto link = co_await s.door.async_accept(as_result);
    if (!link) co_return;
    asio::co_spawn(ex, echo(s, std::move(*link)), asio::detached);
  }
}

struct tally {
  std::size_t put = 0, got = 0, echoed = 0, failed = 0;
  std::set<std::string> errors;

  tally& operator+=(const tally& o) {
    put += o.put, got += o.got, echoed += o.echoed, failed += o.failed;
    errors.insert(o.errors.begin(), o.errors.end());
    return *this;
  }
};

// Puts a range, gets it back, over and over; another range each, so that success can be compared with bytes.
awaitable<void> client(sim_context& context, server& s, tally& t, std::uint32_t connections, int rounds) {
  auto ex = co_await asio::this_coro::executor;
  window_table here = table_of(ex, s.over);
  peer_link link;
  for (int round = 0; round < rounds; ++round) {
    if (!link || link.error()) {
      auto made = co_await async_connect(here, s.over.connect, small(connections), as_result);
      if (!made) {
        ++t.failed;
        t.errors.insert(made.error().message());
        (void)co_await clock::of(ex).async_wait_for(100ms, as_result);
        continue;
      }
      link = std::move(*made);
    }
    std::vector<std::size_t> cuts{0, window_bytes};
    for (int i = 0; i < 5; ++i) cuts.push_back(context.below(window_bytes));
    std::ranges::sort(cuts);
    (void)co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      for (std::size_t i = 0; i + 1 < cuts.size(); ++i)
        group.spawn([&, at = cuts[i], n = cuts[i + 1] - cuts[i], i]() -> awaitable<void> {
          auto data = s.over.on_device ? s.over.memory(n, ex) : buffer::host(n);
          const auto seed = context.seed() * 1000 + static_cast<std::uint64_t>(round) * 10 + i;
          for (std::size_t k = 0; k < n; ++k) data.bytes()[k] = byte_at(k, seed);
          error_code put;
          if (i % 2 == 0 || n == 0) {
            put = (co_await async_flush(data, link.to(s.offered.ref()), at, {}, completion_level::visible, as_result))
                      .error();
          } else {  // into a window of its own, which is committed
            auto own = s.windows->expose({s.memory.slice(at, n)}, window_access::put).value();
            auto to = link.to(own.ref());
            auto sent = s.over.on_device ? s.over.memory(n, ex) : buffer::host(n);
            std::ranges::copy(data.bytes(), sent.bytes().begin());
            put = (co_await async_flush(sent, to, 0, {}, completion_level::local, as_result)).error();
            if (!put) {
              std::ranges::fill(sent.bytes(), std::byte{0xee});
              put = (co_await to.async_commit(as_result)).error();
              if (!put) CHECK(own.committed());
            }
          }
          if (put) {
            ++t.failed;
            t.errors.insert(put.message());
            co_return;
          }
          ++t.put;
          CHECK(same(data.bytes(), s.memory.slice(at, n).bytes()));
          auto back = s.over.on_device ? s.over.memory(n, ex) : blank(n);
          auto got = co_await async_fetch(link.from(s.offered.ref()), at, back, {}, as_result);
          t.got += got.has_value();
          if (!got) ++t.failed, t.errors.insert(got.error().message());
          if (got) CHECK(same(data.bytes(), back.bytes()));
          link_message said(i + 1, static_cast<std::byte>(round));
          if (co_await link.async_send(said, as_result))
            if (auto heard = co_await link.async_receive(as_result)) t.echoed += heard->front() == said.front();
        });
      co_return;
    });
  }
  link.close();
  if (link) (void)co_await link.async_closed(as_result);
}

template <class Faults>
tally run(std::uint64_t seed, std::uint32_t connections, int rounds, Faults faults, const transport& over = tcp) {
  sim_context context(seed);
  auto& net = sim::net::of(context);
  net.faults.socket_buffer = 20 << 10;
  server s{over};
  tally t;
  sim::node host(context, "server", [&](auto ex) { asio::co_spawn(ex, serve(s, connections), asio::detached); });
  sim::node peer(context, "client",
                 [&](auto ex) { asio::co_spawn(ex, client(context, s, t, connections, rounds), asio::detached); });
  faults(context, net);
  (void)context.run_for(5min);
  CHECK(s.links == s.ended);
  s.door.close();
  s.offered = {};
  CHECK(context.run() == sim_context::outcome::done);  // no timer, no task left
  CHECK(s.windows->size() == 0);
  CHECK(s.memory.use_count() == 1);
  return t;
}

}  // namespace

TEST_CASE("link faults: on a sound network everything succeeds") {
  for (auto seed : seeds(30)) {
    INFO(replay_command(seed));
    const auto t = run(seed, 1 + seed % 3, 5, [](sim_context&, sim::net&) {});
    CHECK(t.failed == 0);
    CHECK(t.put == 30);
    CHECK(t.got == 30);
    CHECK(t.echoed == 30);
  }
}

TEST_CASE("link faults: in shared memory everything succeeds, whatever the network does") {
  for (auto seed : seeds(30)) {
    INFO(replay_command(seed));
    const auto t = run(
        seed, 1, 5, [](sim_context&, sim::net& net) { net.faults.flip = net.faults.reset = net.faults.refuse = 0.3; },
        shm);
    CHECK(t.failed == 0);
    CHECK(t.put == 30);
    CHECK(t.got == 30);
    CHECK(t.echoed == 30);
  }
}

TEST_CASE(
    "link faults: in shared memory a process that dies or stands still is an error, and its next life is served") {
  tally all;
  for (auto seed : seeds(500)) {
    INFO(replay_command(seed));
    all += run(
        seed, 1, 4,
        [&](sim_context& context, sim::net&) {
          const auto when = duration(context.below(20'000'000));
          const auto how = context.below(3);
          clock::of(context.get_executor()).async_wait_for(when, [&, how](error_code) {
            auto& node = *sim::node::find(context, how == 2 ? "server" : "client");
            how == 1 ? node.restart() : node.pause();
          });
          clock::of(context.get_executor()).async_wait_for(when + 30s, [&, how](error_code) {
            if (how != 1) sim::node::find(context, how == 2 ? "server" : "client")->resume();
          });
        },
        shm);
  }
  CHECK(all.put >= enough(1000));
  CHECK(all.failed >= enough(100));
}

TEST_CASE("link faults: memory of a device on both sides, on a sound network, moves through a chunk or two") {
  for (auto seed : seeds(30)) {
    INFO(replay_command(seed));
    const auto t = run(seed, 1 + seed % 3, 5, [](sim_context&, sim::net&) {}, gpu);
    CHECK(t.failed == 0);
    CHECK(t.put == 30);
    CHECK(t.got == 30);
  }
}

TEST_CASE("link faults: memory of a device is right or an error, whatever network and device do") {
  tally all;
  for (auto seed : seeds(500)) {
    INFO(replay_command(seed));
    all += run(
        seed, 1 + seed % 3, 4,
        [&](sim_context& context, sim::net& net) {
          if (context.chance(0.5)) net.faults.flip = 0.02;
          if (context.chance(0.3)) net.faults.reset = 0.01;
          for (auto host : {"client", "server"}) {
            auto& device = sim::device::of(context, "sim:h200", host);
            if (context.chance(0.3)) device.faults.slow = 0.2, device.faults.slow_factor = 1000;
            if (context.chance(0.2)) device.faults.fail_at = 1 + context.below(100);
            if (context.chance(0.1))
              clock::of(context.get_executor())
                  .async_wait_for(duration(context.below(20'000'000)), [&device](error_code) { device.lose(); });
          }
        },
        gpu);
  }
  CHECK(all.put >= enough(500));
  CHECK(all.got >= enough(500));
  CHECK(all.failed >= enough(500));
  CHECK(all.errors.size() >= 4);
}

TEST_CASE("link faults: wrong bits, broken connections and delays give the right bytes or an error") {
  tally all;
  for (auto seed : seeds(500)) {
    INFO(replay_command(seed));
    all += run(seed, 1 + seed % 3, 5, [&](sim_context& context, sim::net& net) {
      if (context.chance(0.5)) net.faults.flip = 0.02;
      if (context.chance(0.5)) net.faults.reset = 0.01;
      if (context.chance(0.3)) net.faults.clog = 0.02;
      if (context.chance(0.3)) net.faults.refuse = 0.3;
    });
  }
  CHECK(all.put >= enough(500));
  CHECK(all.got >= enough(500));
  CHECK(all.failed >= enough(500));
  CHECK(all.errors.size() >= 3);
}

TEST_CASE("link faults: partitions, one-way too, and a host that stands still end in an error, and later links work") {
  tally all;
  for (auto seed : seeds(500)) {
    INFO(replay_command(seed));
    all += run(seed, 1 + seed % 2, 4, [&](sim_context& context, sim::net& net) {
      const auto when = duration(context.below(200'000'000));
      const auto how = context.below(4);
      clock::of(context.get_executor()).async_wait_for(when, [&, how](error_code) {
        if (how == 0) net.partition("client", "server");
        if (how == 1) net.partition_one_way("client", "server");
        if (how == 2) net.partition_one_way("server", "client");
        if (how == 3) sim::node::find(context, "server")->pause();
      });
      clock::of(context.get_executor()).async_wait_for(when + 30s, [&, how](error_code) {
        how == 3 ? sim::node::find(context, "server")->resume() : net.heal();
      });
    });
  }
  CHECK(all.put >= enough(1000));
  CHECK(all.failed >= enough(100));
}

TEST_CASE("link faults: after a window is revoked nothing writes into it or reads from it") {
  std::size_t cut_off = 0;
  for (auto seed : seeds(500)) {
    INFO(replay_command(seed));
    sim_context context(seed);
    auto& net = sim::net::of(context);
    net.faults.socket_buffer = 20 << 10;
    net.faults.bytes_per_second = 1e8;
    auto body = [&]() -> awaitable<void> {
      auto ex = co_await asio::this_coro::executor;
      const auto& over = context.seed() % 2 ? tcp : gpu;
      auto here = table_of(ex, over), there = table_of(ex, over);
      auto door = link_listener::listen(there, "tcp://localhost:0", small()).value();
      peer_link far, near;
      (void)co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
        group.spawn([&]() -> awaitable<void> { far = co_await door.async_accept(); });
        near = co_await async_connect(here, door.url(), small());
      });
      auto memory = over.memory(window_bytes, ex), data = patterned(window_bytes), back = over.memory(window_bytes, ex);
      auto w = there.expose({memory}, window_access::both).value();
      const auto ref = w.ref();
      (void)co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
        std::size_t ended = 0;
        group.spawn([&]() -> awaitable<void> {
          auto put = co_await async_flush(data, near.to(ref), 0, {}, completion_level::visible, as_result);
          cut_off += !put;
          if (!put) CHECK(put.error() == errc::stale_reference);
          ++ended;
        });
        group.spawn([&]() -> awaitable<void> {
          auto got = co_await async_fetch(near.from(ref), 0, back, {}, as_result);
          if (!got) CHECK(got.error() == errc::stale_reference);
          ++ended;
        });
        co_await clock::of(ex).async_wait_for(duration(context.below(6'000'000)));
        CHECK((co_await w.async_revoke(as_result)).has_value());
        CHECK(memory.use_count() == 1);
        std::ranges::fill(memory.bytes(), std::byte{0x55});
        while (ended < 2) co_await clock::of(ex).async_wait_for(1ms);
        CHECK(std::ranges::all_of(memory.bytes(), [](std::byte b) { return b == std::byte{0x55}; }));
      });
      CHECK(!near.error());
      near.close();
      (void)co_await near.async_closed();
      (void)co_await far.async_closed();
    };
    bool ended = false;
    asio::co_spawn(context.get_executor(), body(), [&](std::exception_ptr e) { ended = !e; });
    CHECK(context.run() == sim_context::outcome::done);
    CHECK(ended);
  }
  CHECK(cut_off >= enough(100));
}

namespace {

awaitable<void> whole_exchange(asio::any_io_executor ex, const transport& over, std::string url, std::size_t bytes) {
  auto here = table_of(ex, over), there = table_of(ex, over);
  auto memory = over.memory(bytes, ex);
  auto door = link_listener::listen(there, url, small(2)).value();
  peer_link far, near;
  (void)co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    group.spawn([&]() -> awaitable<void> { far = co_await door.async_accept(); });
    near = co_await async_connect(here, door.url(), small(2));
  });
  if (!far || !near) co_return;
  auto data = patterned(memory.size());
  auto w = there.expose({memory}, window_access::both).value();
  co_await async_flush(data, near.to(w.ref()), 0);
  CHECK(same(memory.bytes(), data.bytes()));
  co_await async_fetch(near.from(w.ref()), 0, memory.slice(0, 100));
  co_await near.async_send(link_message(10));
  co_await far.async_receive();
  co_await w.async_revoke();
  near.close();
  co_await far.async_closed();
}

}  // namespace

TEST_CASE("link faults: cancelled or destroyed at any step, everything ends") {
  co_options o;
  o.seeds = 50;
  auto over_tcp = [](auto ex) { return whole_exchange(ex, tcp, "tcp://localhost:0", 40'000); };
  auto over_shm = [](auto ex) { return whole_exchange(ex, shm, "shm:///run/x", 100'000); };
  auto on_gpu = [](auto ex) { return whole_exchange(ex, gpu, "tcp://localhost:0", 40'000); };
  for (const co_body& body : {co_body(over_tcp), co_body(over_shm), co_body(on_gpu)}) {
    if (body.target_type() == typeid(on_gpu)) o.real = false;
    cancel_at_every_step(body, o);
    destroy_at_every_step(body, o);
  }
}
