// Links and memory of a device that the host can't reach.
#include <doctest/doctest.h>

#include "cokv/kvstream/peer_link.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/sim_device.hpp"
#include "cokv/runtime/sim_net.hpp"
#include "cokv/runtime/with.hpp"
#include "kvstream/transfers.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

constexpr auto visible = completion_level::visible;

struct workers {
  explicit workers(const asio::any_io_executor& ex) : here(ex), there(ex), gpu(any_device(ex)) {}

  window_table here, there;
  device gpu;
  peer_link near, far;

  buffer memory(std::size_t n, std::uint64_t seed) const {
    auto b = gpu.backend()->allocate(n, memory_kind::device).value();
    for (std::size_t i = 0; i < n; ++i) b.bytes()[i] = byte_at(i, seed);
    return b;
  }
  awaitable<void> connect(link_options o = {}) {
    auto door = link_listener::listen(there, "tcp://localhost:0", o).value();
    auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      group.spawn([&]() -> awaitable<void> { far = co_await door.async_accept(); });
      near = co_await async_connect(here, door.url(), o);
    });
    CHECK(!v.error());
  }
};

void simulated(const co_body& body, std::size_t seeds = 20) {
  co_test(body, {.real = false, .seeds = seeds, .setup = {}});
}

}  // namespace

TEST_CASE("device memory over links: refused until it is staged, once, with chunks that are some") {
  simulated([](asio::any_io_executor ex) -> awaitable<void> {
    workers w(ex);
    auto memory = w.memory(1000, 1);
    CHECK(w.there.expose({memory}, window_access::put).error() == errc::wrong_device);
    CHECK(w.there.stage(w.gpu, {.chunk = 4095}) == errc::invalid_argument);
    CHECK(w.there.stage(w.gpu, {.count = 0}) == errc::invalid_argument);
    CHECK(!w.there.stage(w.gpu));
    CHECK(w.there.stage(w.gpu) == errc::already_exists);
    CHECK(w.there.size() == 0);
    co_await w.connect();
    auto at = w.there.expose({memory}, window_access::both).value();
    CHECK((co_await async_flush(memory, w.near.to(at.ref()), 0, {}, visible, as_result)).error() ==
          errc::wrong_device);  // this side has not staged
    CHECK((co_await async_flush(patterned(1000, 2), w.near.to(at.ref()), 0, {}, visible, as_result)).has_value());
    CHECK(same(memory, patterned(1000, 2)));
  });
}

TEST_CASE("device memory over links: both ways at once through one chunk, pieces of both kinds in one transfer") {
  for (std::uint32_t connections : {1u, 3u})
    simulated([connections](asio::any_io_executor ex) -> awaitable<void> {
      workers w(ex);
      for (auto* table : {&w.here, &w.there}) CHECK(!table->stage(w.gpu, {.chunk = 4096, .count = 1}));
      co_await w.connect({.connections = connections});
      const std::size_t n = 100'000;
      auto left = w.memory(n, 1), right = w.memory(n, 2), mixed = w.memory(n, 3), host = patterned(n, 4);
      auto back = w.memory(2 * n, 0);
      auto into_left = w.here.expose({left}, window_access::both).value();
      auto into_right =
          w.there.expose({right.slice(0, 777), host.slice(0, 9000), right.slice(777, n - 777)}, window_access::both)
              .value();
      const auto whole = n + 9000;
      auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
        group.spawn([&]() -> awaitable<void> { co_await async_flush(mixed, w.far.to(into_left.ref()), 0); });
        group.spawn([&]() -> awaitable<void> {
          co_await async_flush(w.memory(n, 5), w.near.to(into_right.ref()), 0);
          co_await async_flush(patterned(9000, 6), w.near.to(into_right.ref()), n);
        });
        co_return;
      });
      CHECK(!v.error());
      CHECK(same(left, mixed));
      auto got = co_await async_fetch(w.near.from(into_right.ref()), 0, back.slice(0, whole), {}, as_result);
      CHECK(got.has_value());
      CHECK(same(back.slice(0, n), w.memory(n, 5)));
      CHECK(same(back.slice(n, 9000), patterned(9000, 6)));
      CHECK(into_right.bytes_put() == whole);
      CHECK(into_right.bytes_got() == whole);
      auto empty = co_await async_flush(left.slice(0, 0), w.near.to(into_right.ref()), 0, {}, visible, as_result);
      CHECK(empty.has_value());
    });
}

TEST_CASE("device memory over links: a link that was made before takes what fits into a chunk") {
  simulated([](asio::any_io_executor ex) -> awaitable<void> {
    workers w(ex);
    co_await w.connect();
    CHECK(!w.there.stage(w.gpu, {.chunk = 4096, .count = 1}));
    auto memory = w.memory(10'000, 1);
    auto at = w.there.expose({memory}, window_access::both).value();
    auto back = blank(10'000);
    CHECK((co_await async_flush(back, w.near.to(at.ref()), 0, {}, visible, as_result)).error() == errc::too_large);
    CHECK((co_await async_fetch(w.near.from(at.ref()), 0, back, {}, as_result)).error() == errc::too_large);
    CHECK(same(memory, w.memory(10'000, 1)));
    CHECK((co_await async_fetch(w.near.from(at.ref()), 0, back.slice(0, 4096), {}, as_result)).has_value());
    CHECK(same(back.slice(0, 4096), memory.slice(0, 4096)));
    CHECK(!w.near.error());
  });
}

TEST_CASE("device memory over links: a link that is made behind a door which was open before it was staged takes all") {
  simulated([](asio::any_io_executor ex) -> awaitable<void> {
    workers w(ex);
    auto door = link_listener::listen(w.there, "tcp://localhost:0").value();
    CHECK(!w.there.stage(w.gpu, {.chunk = 4096, .count = 1}));
    auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      group.spawn([&]() -> awaitable<void> { w.far = co_await door.async_accept(); });
      w.near = co_await async_connect(w.here, door.url());
    });
    CHECK(!v.error());
    auto memory = w.memory(10'000, 1);
    auto at = w.there.expose({memory}, window_access::both).value();
    CHECK((co_await async_flush(patterned(10'000, 2), w.near.to(at.ref()), 0, {}, visible, as_result)).has_value());
    CHECK(same(memory, patterned(10'000, 2)));
    auto back = blank(10'000);
    CHECK((co_await async_fetch(w.near.from(at.ref()), 0, back, {}, as_result)).has_value());
    CHECK(same(back, memory));
  });
}

TEST_CASE("device memory over links: a device that is lost fails its transfers, and the link lives on") {
  for (auto seed : seeds(100)) {
    INFO(replay_command(seed));
    sim_context context(seed);
    auto body = [&]() -> awaitable<void> {
      auto ex = context.get_executor();
      workers w(ex);
      for (auto* table : {&w.here, &w.there}) CHECK(!table->stage(w.gpu, {.chunk = 4096, .count = 2}));
      co_await w.connect();
      auto memory = w.memory(50'000, 1);
      auto at = w.there.expose({memory}, window_access::both).value();
      auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
        for (int i = 0; i < 3; ++i) {
          group.spawn([&]() -> awaitable<void> {
            (void)co_await async_flush(patterned(50'000), w.near.to(at.ref()), 0, {}, visible, as_result);
          });
          group.spawn([&]() -> awaitable<void> {
            (void)co_await async_fetch(w.near.from(at.ref()), 0, blank(50'000), {}, as_result);
          });
        }
        co_await clock::of(ex).async_wait_for(duration(context.below(300'000)));
        sim::device::of(context, "sim:h200").lose();
      });
      CHECK(!v.error());
      CHECK(!(co_await async_flush(patterned(100), w.near.to(at.ref()), 0, {}, visible, as_result)).has_value());
      CHECK((co_await at.async_revoke(as_result)).has_value());
      CHECK(!w.near.error());
      auto host = blank(100);
      auto still = w.there.expose({host}, window_access::put).value();
      CHECK((co_await async_flush(patterned(100), w.near.to(still.ref()), 0, {}, visible, as_result)).has_value());
      CHECK(same(host, patterned(100)));
    };
    bool ended = false;
    asio::co_spawn(context.get_executor(), body(), [&](std::exception_ptr e) { ended = !e; });
    (void)context.run();
    CHECK(ended);
  }
}

TEST_CASE("device memory over links: when the next link is there, nothing of the one before still comes in") {
  sim_context context(1);
  auto body = [&]() -> awaitable<void> {
    auto ex = context.get_executor();
    auto& time = clock::of(ex);
    auto& gpu = sim::device::of(context, "sim:h200");
    auto& net = sim::net::of(context);
    workers w(ex);
    CHECK(!w.there.stage(w.gpu));
    auto door = link_listener::listen(w.there, "tcp://localhost:0").value();
    w.near = co_await async_connect(w.here, door.url());
    w.far = co_await door.async_accept();
    auto memory = w.memory(100'000, 1);
    auto at = w.there.expose({memory}, window_access::both).value();
    gpu.faults.slowdown = 1e5;
    auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      group.spawn([&]() -> awaitable<void> {
        auto put = co_await async_flush(patterned(100'000, 2), w.near.to(at.ref()), 0, {}, visible, as_result);
        CHECK(put.error() == errc::unavailable);
      });
      while (gpu.counts.operations == 0) co_await time.async_wait_for(std::chrono::microseconds(10));
      net.faults.reset = 1;
      (void)co_await w.far.async_send({}, as_result);
    });
    CHECK(!v.error());
    net.faults.reset = 0;
    CHECK(!same(memory, patterned(100'000, 2)));  // still on its way
    w.near = co_await async_connect(w.here, door.url());
    std::ranges::fill(memory.bytes(), std::byte{0x55});
    co_await time.async_wait_for(std::chrono::minutes(1));
    CHECK(std::ranges::all_of(memory.bytes(), [](std::byte b) { return b == std::byte{0x55}; }));
  };
  bool ended = false;
  asio::co_spawn(context.get_executor(), body(), [&](std::exception_ptr e) { ended = !e; });
  (void)context.run();
  CHECK(ended);
}
