#include "cokv/runtime/device.hpp"
#include "cokv/runtime/sim_device.hpp"
#include "cokv/runtime/sim_node.hpp"
#include "support/co_test.hpp"
#include "support/enough.hpp"

using namespace cokv;
using namespace std::chrono_literals;

namespace {

constexpr auto tuple = asio::as_tuple(asio::deferred);

void fill(const buffer& b, int value) { std::fill(b.bytes().begin(), b.bytes().end(), std::byte(value)); }
bool all(const buffer& b, int value) {
  return std::all_of(b.bytes().begin(), b.bytes().end(), [&](std::byte x) { return x == std::byte(value); });
}

struct fixture {
  sim_context ctx;
  device dev;
  sim::device& gpu;
  explicit fixture(std::uint64_t seed = 1)
      : ctx(seed), dev(open_device(ctx.get_executor(), "sim:h100").value()), gpu(sim::device::of(ctx, "sim:h100")) {}
};

// Bytes through the device and back, opening it again as often as it is lost.
awaitable<void> round_trips(asio::any_io_executor ex, int rounds, int& lost, int& failed, bool cancelled = false) {
  auto& time = clock::of(ex);
  for (int i = 0; i < rounds;) {
    auto opened = open_device(ex, "sim:h100");
    if (!opened) {
      CHECK(opened.error() == errc::device_lost);
      co_await time.async_wait_for(1ms);
      continue;
    }
    auto s = opened->make_stream().value();
    for (; i < rounds; ++i) {
      auto block = opened->allocate(300'000);
      if (!block) {
        CHECK(block.error() == errc::device_lost);
        break;
      }
      auto from = buffer::host(block->size()), to = buffer::host(block->size());
      fill(from, i + 1);
      auto ran = std::make_shared<bool>(false);
      s.copy(*block, from);
      s.launch("k", [ran, b = *block] { *ran = true; });
      s.copy(to, *block);
      auto [ec] = co_await s.async_drain(tuple);
      if (ec) {
        const bool aborted = cancelled && ec == asio::error::operation_aborted;
        CHECK((ec == errc::device_lost || ec == errc::device_failed || aborted));
        if (aborted) co_return;
        ec == errc::device_lost ? ++lost : ++failed;
        break;
      }
      CHECK(*ran);
      CHECK(all(to, i + 1));
    }
  }
}

}  // namespace

TEST_CASE("device faults: the k-th operation fails, its bytes are not there, and its stream fails with it") {
  for (auto seed : test::seeds(500)) {
    INFO(test::replay_command(seed));
    fixture f(seed);
    f.gpu.faults.fail_at = 3;
    f.gpu.faults.error = errc::out_of_range;
    auto s = f.dev.make_stream().value(), healthy = f.dev.make_stream().value();
    auto block = f.dev.allocate(300'000).value();
    auto from = buffer::host(block.size()), to = buffer::host(block.size());
    fill(from, 7);
    fill(to, 1);
    int ran = 0;
    s.copy(block, from);
    s.launch("k", [&] { ++ran; });
    s.copy(to, block);
    const auto before = s.record();
    s.launch("k", [&] { ++ran; });
    CHECK(f.ctx.run() == sim_context::outcome::done);
    CHECK(ran == 1);
    CHECK(all(block, 7));
    CHECK(!all(to, 7));
    CHECK(!all(to, 1));
    CHECK(before.status() == errc::out_of_range);
    CHECK(s.copy(block, from) == errc::out_of_range);
    CHECK(!healthy.copy(to, block));
    f.ctx.run();
    CHECK(!healthy.status());
    CHECK(all(to, 7));
    CHECK(f.gpu.counts.failed == 1);
    CHECK(f.gpu.counts.operations == 4);
  }
}

TEST_CASE("device faults: a kernel that fails has not run, and one that returns an error is no fault") {
  fixture f;
  auto s = f.dev.make_stream().value(), t = f.dev.make_stream().value();
  f.gpu.faults.fail = 1;
  bool ran = false;
  s.launch("k", [&] { ran = true; });
  f.ctx.run();
  CHECK(!ran);
  CHECK(s.status() == errc::device_failed);
  f.gpu.faults.fail = 0;
  t.launch("k", []() -> error_code { return errc::protocol; });
  f.ctx.run();
  CHECK(t.status() == errc::protocol);
  CHECK(f.gpu.counts.failed == 1);
}

TEST_CASE("device faults: slow operations take longer and hold up who shares their engine") {
  fixture f;
  f.gpu.faults.slowdown = 2;
  auto s = f.dev.make_stream().value(), t = f.dev.make_stream().value();
  s.launch("k", [] {}, {.flops = 989e9});  // 1 ms
  f.ctx.run();
  CHECK(f.ctx.now().time_since_epoch() == 2006us);
  f.gpu.faults = {.slow = 1, .slow_factor = 5};
  s.launch("k", [] {}, {.flops = 989e9});
  t.launch("k", [] {}, {.flops = 989e9});
  f.ctx.run();
  CHECK(f.ctx.now().time_since_epoch() == 2006us + 2 * 5015us);
  CHECK(f.gpu.counts.slowed == 2);
}

TEST_CASE("device faults: a lost device fails everything on it once and is empty when it is opened again") {
  for (auto seed : test::seeds(500)) {
    INFO(test::replay_command(seed));
    fixture f(seed);
    auto other = open_device(f.ctx.get_executor(), "sim:h100:1").value();
    auto a = f.dev.make_stream().value(), b = f.dev.make_stream().value(), idle = f.dev.make_stream().value(),
         peer = other.make_stream().value(), healthy = other.make_stream().value();
    constexpr std::size_t n = 400'000;  // 9.25 us over PCIe
    auto block = f.dev.allocate(n).value(), there = other.allocate(n).value(), there2 = other.allocate(n).value();
    auto host = buffer::host(n);
    std::vector<error_code> ends;
    auto note = [&](error_code ec) { ends.push_back(ec); };
    bool ran = false;
    a.copy(block, host);
    b.launch("k", [&] { ran = true; }, {.flops = 1e12});
    b.copy(host, block);
    healthy.copy(there2, there);
    a.async_drain(note);
    b.async_drain(note);
    b.record().async_wait(note);
    f.ctx.run_for(6us);
    peer.copy(there, block);  // waits for nobody: its engines are its own
    peer.async_drain(note);
    f.ctx.run_for(2us);
    f.gpu.lose(5ms);
    const auto lost_at = f.ctx.now();
    CHECK(f.gpu.lost());
    CHECK(f.ctx.run() == sim_context::outcome::done);
    CHECK(ends == std::vector<error_code>(4, errc::device_lost));
    CHECK(!ran);
    CHECK(!healthy.status());
    CHECK(idle.copy(buffer::host(n), host) == errc::device_lost);
    CHECK(f.dev.make_stream().error() == errc::device_lost);
    CHECK(f.dev.allocate(1).error() == errc::device_lost);
    CHECK(healthy.copy(there, block) == errc::wrong_device);
    CHECK(f.gpu.allocated() == 0);

    f.ctx.run_until(lost_at + 4ms);
    CHECK(open_device(f.ctx.get_executor(), "sim:h100").error() == errc::device_lost);
    f.ctx.run_until(lost_at + 5ms);
    auto again = open_device(f.ctx.get_executor(), "sim:h100").value();
    auto s = again.make_stream().value();
    auto fresh = again.allocate(n).value();
    CHECK(s.copy(fresh, block) == errc::wrong_device);  // memory of its earlier life
    fill(host, 9);
    CHECK(!s.copy(fresh, host));
    CHECK(!s.copy(there, fresh));
    f.ctx.run();
    CHECK(!s.status());
    CHECK(all(there, 9));
    block = {};
    CHECK(f.gpu.allocated() == n);
  }
}

TEST_CASE("device faults: a program that opens its device again gets its work done, and never a wrong byte") {
  int lost = 0, failed = 0;
  for (auto seed : test::seeds(500)) {
    INFO(test::replay_command(seed));
    fixture f(seed);
    f.gpu.faults.fail = f.gpu.faults.lose = 0.03;
    f.gpu.faults.lost_for = 3ms;
    bool finished = false;
    asio::co_spawn(f.ctx.get_executor(), round_trips(f.ctx.get_executor(), 10, lost, failed),
                   [&](std::exception_ptr e) { finished = !e; });
    CHECK(f.ctx.run() == sim_context::outcome::done);
    CHECK(finished);
  }
  if (!test::one_seed()) {
    CHECK(lost >= test::enough(100));
    CHECK(failed >= test::enough(100));
  }
}

TEST_CASE("device faults: cancelled and destroyed at every step") {
  int lost = 0, failed = 0;
  auto body = [&](asio::any_io_executor ex) { return round_trips(ex, 4, lost, failed, true); };
  const test::co_options options{.setup = [](sim_context& c) {
    auto& gpu = sim::device::of(c, "sim:h100");
    gpu.faults.lose = 0.2;
    gpu.faults.fail_at = 2;
  }};
  test::cancel_at_every_step(body, options);
  test::destroy_at_every_step(body, options);
}

TEST_CASE("device faults: a killed host leaves its devices free for its next life") {
  for (auto seed : test::seeds(500)) {
    INFO(test::replay_command(seed));
    sim_context context(seed);
    sim::node host(context, "host");
    auto& gpu = sim::device::of(context, "sim:h100", "host");
    bool never = false, ran = false;
    {
      auto d = open_device(host.get_executor(), "sim:h100").value();
      auto s = d.make_stream().value(), t = d.make_stream().value();
      auto block = d.allocate(1'000'000).value(), memory = buffer::host(1'000'000);
      s.launch("k", [&never] { never = true; }, {.flops = 1e12});
      t.launch("k", [&never] { never = true; }, {.flops = 1e12});  // waits for the engine
      s.copy(memory, block);
      context.run_for(10us);
    }
    host.kill();
    context.run();
    CHECK(!never);
    CHECK(gpu.allocated() == 0);
    host.start();
    auto d = open_device(host.get_executor(), "sim:h100").value();
    auto s = d.make_stream().value();
    s.launch("k", [&] { ran = true; });
    context.run();
    CHECK(ran);
  }
}
