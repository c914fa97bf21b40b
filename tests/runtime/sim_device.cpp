#include "cokv/runtime/sim_device.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "cokv/runtime/compute.hpp"
#include "cokv/runtime/device.hpp"
#include "cokv/runtime/sim_context.hpp"
#include "cokv/runtime/sim_node.hpp"
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

TEST_CASE("sim device: a spec that was defined has its name, on its context") {
  sim_context ctx(1), another(1);
  CHECK(open_device(ctx.get_executor(), "sim:mine:1").error() == errc::unknown_device);
  const sim::device_spec spec{.name = "mine",
                              .memory_bytes = 1e6,
                              .memory_bytes_per_second = 1e9,
                              .flops_per_second = 1e9,
                              .launch_seconds = 0};
  sim::device::define(ctx, spec);
  auto dev = open_device(ctx.get_executor(), "sim:mine:1").value();
  CHECK(dev.allocate(2'000'000).error() == errc::out_of_memory);
  auto s = dev.make_stream().value();
  CHECK(!s.launch("kernel", [] {}, {.flops = 5e6}));
  CHECK(ctx.run() == sim_context::outcome::done);
  CHECK(ctx.now() == time_point(5ms));  // exactly: its launches cost nothing
  CHECK(open_device(another.get_executor(), "sim:mine:1").error() == errc::unknown_device);
  CHECK_THROWS_WITH_AS(sim::device::define(ctx, spec), "sim:mine: is there already", config_error);
  CHECK_THROWS_WITH_AS(sim::device::define(ctx, {.name = "h100"}), "sim:h100: is there already", config_error);
}

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

TEST_CASE("sim device: everybody who opens a name has the same device, a number tells two of them apart") {
  fixture f(1, "sim:h100:1");
  CHECK(f.dev.name() == "sim:h100:1");
  auto same = open_device(f.ctx.get_executor(), "sim:h100:01").value();
  auto other = open_device(f.ctx.get_executor(), "sim:h100").value();
  CHECK(other.name() == "sim:h100");
  CHECK(open_device(f.ctx.get_executor(), "sim:h100:0").value().name() == "sim:h100");
  auto memory = f.dev.allocate(1 << 20).value();
  CHECK(sim::device::of(f.ctx, same.name()).allocated() == 1 << 20);
  CHECK(sim::device::of(f.ctx, other.name()).allocated() == 0);
  auto s = f.dev.make_stream().value(), t = same.make_stream().value(), u = other.make_stream().value();
  for (auto* one : {&s, &t, &u}) one->launch("k", [] {}, {.flops = 989e9});  // 1 ms
  f.ctx.run();
  CHECK(f.ctx.now().time_since_epoch() == 2006us);
  memory = {};
  CHECK(sim::device::of(f.ctx, "sim:h100:1").allocated() == 0);
}

TEST_CASE("sim device: a stream outlives the handle of its device, also when another is opened") {
  fixture f;
  auto s = f.dev.make_stream().value();
  f.dev = {};
  auto other = open_device(f.ctx.get_executor(), "sim:h100:7").value();
  bool ran = false;
  CHECK(!s.launch("k", [&] { ran = true; }));
  s = {};
  f.ctx.run();
  CHECK(ran);
}

TEST_CASE("sim device: the more urgent stream goes first when an engine comes free, and interrupts nobody") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    fixture f(seed);
    auto decode = f.dev.make_stream({.priority = -1}).value(), prefill = f.dev.make_stream().value(),
         other = f.dev.make_stream().value();
    std::string order;
    auto note = [&](char c) { return [&order, c] { order += c; }; };
    prefill.launch("p", note('1'), {.flops = 989e9});
    prefill.launch("p", note('4'), {.flops = 989e9});
    other.launch("o", note('3'), {.flops = 989e9});
    decode.launch("d", note('2'), {.flops = 989e9});
    f.ctx.run();
    CHECK(order == "1234");  // 4 asks when 1 is over, behind 3
  }
}

TEST_CASE("sim device: copies between devices go over NVLink, each way by itself, within both ends' bounds") {
  fixture f;
  auto& ctx = f.ctx;
  auto a100 = open_device(ctx.get_executor(), "sim:a100").value();
  auto other = open_device(ctx.get_executor(), "sim:h100:1").value();
  constexpr std::size_t n = 45'000'000;  // 0.1 ms at 450 GB/s, 0.15 ms at 300 GB/s
  auto here = f.dev.allocate(n).value(), there = other.allocate(n).value(), slow = a100.allocate(n).value();
  auto s = f.dev.make_stream().value(), t = other.make_stream().value(), u = f.dev.make_stream().value();
  fill(here, 7);
  auto took = [&](auto&& enqueue) {
    const auto start = ctx.now();
    enqueue();
    ctx.run();
    return ctx.now() - start;
  };
  CHECK(took([&] { CHECK(!s.copy(there, here)); }) == 103us);
  CHECK(all(there, 7));
  CHECK(took([&] { CHECK(!t.copy(there, here)); }) == 103us);  // pulled instead of pushed
  CHECK(took([&] { CHECK(!s.copy(slow, here)); }) == 153us);
  auto here2 = f.dev.allocate(n).value(), there2 = other.allocate(n).value();
  CHECK(took([&] { CHECK((!s.copy(there, here) && !u.copy(here2, there2))); }) == 103us);  // both ways at once
  CHECK(took([&] { CHECK((!s.copy(there, here) && !t.copy(there2, here))); }) == 206us);  // one link, one after another
  // The first device's link is taken while the third's isn't: who waits for both takes neither before.
  CHECK(took([&] { CHECK((!s.copy(there, here) && !u.copy(slow, here2))); }) == 256us);
  CHECK(sim::device::of(ctx, "sim:h100").counts.bytes >= 6 * n);
}

TEST_CASE("sim device: what can't reach what is refused before anything is enqueued") {
  fixture f;
  sim_context elsewhere(1);
  auto stranger = open_device(elsewhere.get_executor(), "sim:h100").value();
  auto a = f.dev.allocate(8).value(), foreign = stranger.allocate(8).value();
  auto second = open_device(f.ctx.get_executor(), "sim:h100:1").value();
  auto third = open_device(f.ctx.get_executor(), "sim:h100:2").value();
  auto s = f.dev.make_stream().value(), x = stranger.make_stream().value();
  CHECK(s.copy(a, foreign) == errc::wrong_device);
  CHECK(s.copy(foreign, a) == errc::wrong_device);
  CHECK(s.copy(a, buffer::adopt(nullptr, 8, memory_kind::device, nullptr)) == errc::wrong_device);
  CHECK(s.copy(second.allocate(8).value(), third.allocate(8).value()) == errc::wrong_device);  // neither is its own
  CHECK(s.copy(a, buffer::host(7)) == errc::invalid_argument);
  x.launch("k", [] {}, {.flops = 1e12});
  CHECK(s.wait(x.record()) == errc::wrong_device);
  sim::node host(f.ctx, "host");
  auto remote = open_device(host.get_executor(), "sim:h100").value();
  CHECK(s.copy(a, remote.allocate(8).value()) == errc::wrong_device);  // another host's
  CHECK(s.record().position() == 0);
  CHECK(!s.status());
}

TEST_CASE("sim device: a spec of one's own from a file, and what is wrong with it in one line") {
  const auto folder = std::filesystem::temp_directory_path() / ("cokv_spec_" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  struct cleanup {
    std::filesystem::path at;
    ~cleanup() { std::filesystem::remove_all(at); }
  } remove{folder};
  const auto name = "sim:" + (folder / "mine.json").string();
  auto write = [&](std::string text) { std::ofstream(folder / "mine.json") << text; };
  auto spec_with = [](std::string more, std::string memory = "1000000") {
    return R"({"memory_bytes": )" + memory + R"(, "memory_bytes_per_second": 1e9, "pcie_bytes_per_second": 1e6,)" +
           R"( "flops_per_second": 1e9)" + more + "}";
  };

  write(spec_with(R"(, "launch_seconds": 0.001)"));
  fixture f(1, name + ":3");
  CHECK(f.dev.name() == name + ":3");
  CHECK(explain_device(name).find("PCIe 0.001 GB/s") != std::string::npos);
  CHECK(f.dev.allocate(1'000'001).error() == errc::out_of_memory);
  auto s = f.dev.make_stream().value();
  auto block = f.dev.allocate(1000).value(), host = buffer::host(1000);
  CHECK(!s.copy(host, block));
  f.ctx.run();
  CHECK(f.ctx.now().time_since_epoch() == 2ms);
  auto peer = open_device(f.ctx.get_executor(), name).value().allocate(1000).value();
  CHECK(s.copy(peer, block) == errc::wrong_device);  // no NVLink

  auto refused = [&](const std::string& text, const std::string& says) {
    write(text);
    sim_context fresh(1);
    CHECK(open_device(fresh.get_executor(), name).error() == errc::invalid_argument);
    const auto line = explain_device(name);
    CAPTURE(line);
    CHECK(line.find("mine.json: " + says) != std::string::npos);
    CHECK(line.find('\n') == std::string::npos);
  };
  refused("", "not valid JSON");
  refused("[]", "expected an object");
  refused(spec_with(R"(, "warp_speed": 9)"), "warp_speed: no such field");
  refused(spec_with("", "-5"), "memory_bytes: -5 is not in");
  refused(spec_with("", "0"), "memory_bytes: 0 is not in");
  refused(spec_with("", "1e99"), "memory_bytes: 1e+99 is not in");
  refused(spec_with("", "\"80\""), "memory_bytes: expected a number");
  refused(spec_with(R"(, "nvlink_bytes_per_second": -1)"), "nvlink_bytes_per_second: -1 is not in");
  refused(spec_with(R"(, "memory_bytes": 1000000)"), "memory_bytes: given twice");
  refused(R"({"memory_bytes": 1000000})", "memory_bytes_per_second: missing");
  std::filesystem::remove(folder / "mine.json");
  sim_context fresh(1);
  CHECK(open_device(fresh.get_executor(), name).error() == errc::invalid_argument);
  CHECK(explain_device(name).find("mine.json: No such file") != std::string::npos);
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
  CHECK(open_device(virtual_time.get_executor(), "sim:").error() == errc::unknown_device);
  CHECK(open_device(virtual_time.get_executor(), "sim:h100:").error() == errc::unknown_device);
  CHECK(open_device(virtual_time.get_executor(), "sim:h100:99999999999999999999").error() == errc::unknown_device);
  CHECK(explain_device("sim:abacus").find("unknown simulated device") != std::string::npos);
  CHECK(explain_device("sim:h200").find("141 GB at 4800 GB/s") != std::string::npos);
}
