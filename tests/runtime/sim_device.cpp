#include <doctest/doctest.h>

#include "cokv/runtime/compute.hpp"
#include "cokv/runtime/device.hpp"
#include "cokv/runtime/sim_context.hpp"
#include "cokv/runtime/trace.hpp"

using namespace cokv;
using namespace std::chrono_literals;

namespace {

struct fixture {
  sim_context ctx;
  device dev;
  explicit fixture(std::uint64_t seed = 1, std::string_view name = "sim:h100")
      : ctx(seed), dev(open_device(ctx.get_executor(), name).value()) {}
};

void fill(const buffer& b, int value) { std::fill(b.bytes().begin(), b.bytes().end(), std::byte(value)); }
bool all(const buffer& b, int value) {
  return std::all_of(b.bytes().begin(), b.bytes().end(), [&](std::byte x) { return x == std::byte(value); });
}

}  // namespace

TEST_CASE("sim device: a copy takes what the link takes, poisons its destination and arrives in pieces") {
  fixture f;
  auto s = f.dev.make_stream().value();
  constexpr std::size_t n = 64'000'000 / 4;  // 0.25 ms at 64 GB/s
  auto host = buffer::host(n);
  auto block = f.dev.allocate(n).value();
  CHECK(!block.host_accessible());
  fill(host, 7);
  fill(block, 1);
  CHECK(!s.copy(block, host));
  f.ctx.run_for(1us);
  CHECK(!all(block, 1));
  CHECK(!all(block, 7));
  f.ctx.run_for(150us);
  CHECK(std::count(block.bytes().begin(), block.bytes().end(), std::byte{7}) == n / 2);
  CHECK(!s.record().ready());
  f.ctx.run();
  CHECK(s.record().ready());
  CHECK(all(block, 7));
  CHECK(f.ctx.now().time_since_epoch() == 253us);
}

TEST_CASE("sim device: kernels are priced by the slower of arithmetic and memory, and share the compute engine") {
  fixture f;
  auto a = f.dev.make_stream({.name = "a"}).value(), b = f.dev.make_stream({.name = "b"}).value();
  std::vector<std::pair<int, duration>> ends;
  auto end = [&](int id) { return [&, id] { ends.emplace_back(id, f.ctx.now().time_since_epoch()); }; };
  a.launch("flops", end(1), {.flops = 989e9});  // 1 ms
  b.launch("bytes", end(2), {.flops = 1, .bytes = 3.35e9});
  auto host = buffer::host(64'000'000);
  auto block = f.dev.allocate(host.size()).value();
  auto c = f.dev.make_stream({.name = "c"}).value();
  trace::of(f.ctx.get_executor()).enable();
  c.copy(block, host, "load");  // beside the kernels: another engine
  f.ctx.run();
  CHECK(ends == std::vector<std::pair<int, duration>>{{1, 1003us}, {2, 2006us}});
  CHECK(f.ctx.now().time_since_epoch() == 2006us);
  auto spans = trace::of(f.ctx.get_executor()).spans("c");
  REQUIRE(spans.size() == 1);
  CHECK(spans[0].end - spans[0].start == 1003us);
}

TEST_CASE("sim device: edges, errors, the bound and cancellation are those of every stream") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    fixture f(seed, "sim:a100");
    auto a = f.dev.make_stream({.max_in_flight = 3}).value(), b = f.dev.make_stream().value();
    std::vector<int> order;
    a.launch("1", [&] { order.push_back(1); }, {.flops = 1e9});
    b.wait(a.record());
    b.launch("2", [&] { order.push_back(2); });
    a.launch("bad", []() -> error_code { return errc::device_lost; });
    a.launch("3", [&] { order.push_back(3); });
    CHECK(a.launch("full", [] {}) == errc::queue_full);
    b.wait(a.record());
    b.launch("4", [&] { order.push_back(4); });
    error_code room = errc::closed, aborted, failed;
    asio::cancellation_signal signal;
    a.async_room([&](error_code ec) { room = ec; });
    b.async_drain(asio::bind_cancellation_slot(signal.slot(), [&](error_code ec) { aborted = ec; }));
    b.record().async_wait([&](error_code ec) { failed = ec; });
    signal.emit(asio::cancellation_type::partial);
    CHECK(f.ctx.run() == sim_context::outcome::done);
    CHECK(order == std::vector<int>{1, 2});
    CHECK(!room);
    CHECK(aborted == asio::error::operation_aborted);
    CHECK(failed == errc::device_lost);
    CHECK(a.copy(buffer::host(1), buffer::host(1)) == errc::device_lost);
  }
}

TEST_CASE("sim device: memory runs out where the device's would, and comes back") {
  fixture f;
  CHECK(f.dev.allocate(std::size_t{81'000'000'000}).error() == errc::out_of_memory);
  auto b = f.dev.allocate(100).value();
  CHECK(all(b, 0xDB));
  CHECK(f.dev.allocate(1, memory_kind::exportable).error() == errc::unsupported);
}

TEST_CASE("sim device: submitted work runs in virtual time, and a context destroyed with work in flight drops it") {
  bool never = false;
  std::weak_ptr<int> captured;
  {
    fixture f;
    int n = 0;
    asio::co_spawn(
        f.ctx.get_executor(),
        [](device dev, int& n) -> awaitable<void> { n = co_await on(dev, [] { return 5; }); }(f.dev, n),
        asio::detached);
    f.ctx.run();
    CHECK(n == 5);
    auto s = f.dev.make_stream().value();
    auto token = std::make_shared<int>();
    captured = token;
    s.launch("a", [&never, token] { never = true; }, {.flops = 1e12});
    s.launch("b", [&never, token = std::move(token)] { never = true; });
    asio::co_spawn(
        f.ctx.get_executor(), [](stream s) -> awaitable<void> { co_await s.async_drain(); }(s), asio::detached);
    f.ctx.run_for(1us);
  }
  CHECK(!never);
  CHECK(captured.expired());
}

TEST_CASE("sim device: only in virtual time, and the CPU only in real time") {
  asio::io_context real(1);
  sim_context virtual_time(1);
  CHECK(open_device(real.get_executor(), "sim:h100").error() == errc::unsupported);
  CHECK(open_device(virtual_time.get_executor(), "cpu").error() == errc::unsupported);
  CHECK(open_device(virtual_time.get_executor(), "sim:abacus").error() == errc::unknown_device);
}
