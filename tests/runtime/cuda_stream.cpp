#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <atomic>
#include <thread>

#include "cokv/runtime/device.hpp"
#include "cokv/runtime/progress.hpp"
#include "cokv/runtime/trace.hpp"
#include "support/fake_cuda.hpp"

using namespace cokv;
namespace fake_cuda = cokv::test::fake_cuda;

namespace {

buffer filled(const device& from, std::size_t n, int value) {
  auto d = from;
  auto b = d.allocate(n, memory_kind::pinned).value();
  std::fill(b.bytes().begin(), b.bytes().end(), std::byte(value));
  return b;
}

// The device goes on by itself, as a real one does.
class stepping {
 public:
  stepping()
      : thread_([this] {
          while (!stop_)
            if (!fake_cuda::step()) std::this_thread::yield();
        }) {}
  ~stepping() {
    stop_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

struct fixture {
  fixture() { fake_cuda::reset(); }
  asio::io_context ctx{1};
  device dev = [this] {
    fake_cuda::reset();
    return open_device(ctx.get_executor(), "cuda:0").value();
  }();
};

}  // namespace

TEST_CASE("fake_cuda: a copy is done when its event is, and not before; the loop finds out by polling") {
  fixture f;
  auto s = f.dev.make_stream().value();
  auto a = filled(f.dev, 64, 1), b = filled(f.dev, 64, 0);
  CHECK(!s.copy(b, a));
  auto e = s.record();
  bool done = false;
  e.async_wait([&](error_code ec) { done = !ec; });
  f.ctx.poll();
  CHECK(!e.ready());
  CHECK(b.data()[0] == std::byte{0});
  fake_cuda::step();
  CHECK(b.data()[0] == std::byte{1});
  fake_cuda::step();
  CHECK(run(f.ctx) > 0);
  CHECK(done);
  CHECK(e.ready());
}

TEST_CASE("fake_cuda: cokv::run polls while the device works, and is woken when it slept") {
  fixture f;
  auto s = f.dev.make_stream().value();
  auto a = filled(f.dev, 64, 1), b = filled(f.dev, 64, 0);
  int done = 0;
  asio::co_spawn(
      f.ctx,
      [](stream s, buffer a, buffer b, int& done) -> awaitable<void> {
        for (int i = 0; i < 500; ++i) {
          s.copy(b, a);
          co_await s.record().async_wait();
          ++done;
        }
      }(s, a, b, done),
      asio::detached);
  stepping device_goes_on;
  run(f.ctx);
  CHECK(done == 500);
}

TEST_CASE("fake_cuda: under a plain io_context::run a side stream wakes the loop, armed once a waiter") {
  fixture f;
  auto s = f.dev.make_stream().value();
  auto a = filled(f.dev, 64, 1), b = filled(f.dev, 64, 0);
  for (int i = 0; i < 10; ++i) s.copy(b, a);
  bool done = false;
  s.record().async_wait([&](error_code ec) { done = !ec; });
  CHECK(fake_cuda::host_functions() == 1);
  {
    stepping device_goes_on;
    f.ctx.run();
  }
  CHECK(done);
  CHECK(fake_cuda::host_functions() == 1);
}

TEST_CASE("fake_cuda: a device that fails completes its waiters with CUDA's own text, also while the loop sleeps") {
  fixture f;
  auto s = f.dev.make_stream().value();
  auto a = filled(f.dev, 64, 1), b = filled(f.dev, 64, 0);
  s.copy(b, a);
  auto first = s.record();
  s.copy(b, a);
  error_code good = errc::closed, bad;
  first.async_wait([&](error_code ec) { good = ec; });
  s.record().async_wait([&](error_code ec) { bad = ec; });
  fake_cuda::step(), fake_cuda::step();
  fake_cuda::fail_from_now(cudaErrorIllegalAddress);  // no host function is called any more: the heartbeat finds it
  f.ctx.run();
  CHECK(!good);
  CHECK(bad.message() == "cudaErrorIllegalAddress: an illegal memory access was encountered");
  CHECK(s.status() == bad);
  CHECK(s.copy(b, a) == bad);
}

TEST_CASE("fake_cuda: a refused copy fails the stream, and what was enqueued keeps its buffers") {
  fixture f;
  std::weak_ptr<void> watch;
  auto s = f.dev.make_stream().value();
  {
    auto owner = std::make_shared<std::vector<std::byte>>(8);
    watch = owner;
    auto b = buffer::adopt(owner->data(), 8, memory_kind::pinned, owner);
    fake_cuda::refuse_next_copy(cudaErrorIllegalAddress);
    CHECK(s.copy(b, b).value() == cudaErrorIllegalAddress);
  }
  CHECK(!watch.expired());
  CHECK(s.record().ready());
  CHECK(s.record().status().value() == cudaErrorIllegalAddress);
}

TEST_CASE("fake_cuda: an edge holds another stream up on the device; a foreign event is refused") {
  fixture f;
  auto a = f.dev.make_stream().value(), b = f.dev.make_stream().value();
  auto x = filled(f.dev, 8, 1), y = filled(f.dev, 8, 0), z = filled(f.dev, 8, 0);
  CHECK(!a.copy(y, x));
  CHECK(!b.wait(a.record()));
  CHECK(!b.copy(z, y));
  auto e = b.record();
  bool done = false;
  e.async_wait([&](error_code ec) { done = !ec; });
  {
    stepping device_goes_on;
    run(f.ctx);
  }
  CHECK(done);
  CHECK(z.data()[0] == std::byte{1});
  CHECK(!b.wait(event()));
  auto cpu = open_device(f.ctx.get_executor(), "cpu", {.threads = 1}).value();
  auto c = cpu.make_stream().value();
  std::atomic<bool> open{false};
  c.launch("held", [&] {
    while (!open) std::this_thread::yield();
  });
  CHECK(b.wait(c.record()) == errc::wrong_device);
  // The other way round the CPU waits for the CUDA device.
  a.copy(y, x);
  auto d = cpu.make_stream().value();
  CHECK(!d.wait(a.record()));
  bool waited = false;
  d.launch("after", [&] { waited = true; });
  open = true;
  bool all = false;
  d.record().async_wait([&](error_code ec) { all = !ec; });
  f.ctx.restart();
  stepping device_goes_on;
  f.ctx.run();
  CHECK(all);
  CHECK(waited);
}

TEST_CASE("fake_cuda: the bound, and a cancelled wait that leaves the work alone") {
  fixture f;
  auto s = f.dev.make_stream({.max_in_flight = 2}).value();
  auto a = filled(f.dev, 8, 1), b = filled(f.dev, 8, 0);
  CHECK(!s.copy(b, a));
  CHECK(!s.copy(b, a));
  CHECK(s.copy(b, a) == errc::queue_full);
  CHECK(s.launch("kernel", [] {}) == errc::unsupported);
  asio::cancellation_signal signal;
  error_code aborted, room = errc::closed;
  s.record().async_wait(asio::bind_cancellation_slot(signal.slot(), [&](error_code ec) { aborted = ec; }));
  s.async_room([&](error_code ec) { room = ec; });
  signal.emit(asio::cancellation_type::terminal);
  fake_cuda::step(), fake_cuda::step();
  f.ctx.run();
  CHECK(aborted == asio::error::operation_aborted);
  CHECK(!room);
  CHECK(!s.copy(b, a));
}

TEST_CASE("fake_cuda: handles may go, the context may go: buffers stay until the device is done, nothing leaks") {
  std::weak_ptr<void> watch;
  auto dst = std::make_shared<std::vector<std::byte>>(8);
  {
    fixture f;
    {
      auto s = f.dev.make_stream().value();
      auto owner = std::make_shared<std::vector<std::byte>>(8, std::byte{6});
      watch = owner;
      auto* from = owner->data();
      s.copy(buffer::adopt(dst->data(), 8, memory_kind::pinned, dst),
             buffer::adopt(from, 8, memory_kind::pinned, std::move(owner)));
      s.record().async_wait([](error_code) { FAIL("called"); });
    }
    f.dev = {};
    f.ctx.poll();
    CHECK(!watch.expired());
    CHECK(dst->at(0) == std::byte{0});
  }
  CHECK(watch.expired());
  CHECK(dst->at(0) == std::byte{6});
  CHECK(fake_cuda::live_streams() == 0);
  CHECK(fake_cuda::live_events() == 0);
  CHECK(fake_cuda::live_allocations() == 0);
}

TEST_CASE("fake_cuda: memory, its kinds and its end; no driver is no device, in one line") {
  fixture f;
  auto block = f.dev.allocate(100).value();
  CHECK(block.kind() == memory_kind::device);
  CHECK(!block.host_accessible());
  CHECK(f.dev.allocate(std::size_t{2} << 30).error() == errc::out_of_memory);
  CHECK(f.dev.allocate(1, memory_kind::exportable).error() == errc::unsupported);
  CHECK(explain_device("cuda:0") == "cuda:0: fake, 1024 MiB");
  CHECK(open_device(f.ctx.get_executor(), "cuda:1").error() == errc::no_device);
  fake_cuda::reset(0);
  CHECK(open_device(f.ctx.get_executor(), "cuda:0").error() == errc::no_device);
  CHECK(explain_device("cuda:0") == "cuda:0: no device: some error");
}

TEST_CASE("fake_cuda: copies leave spans with the device's times") {
  fixture f;
  auto& recorder = trace::of(f.ctx.get_executor());
  recorder.enable();
  auto s = f.dev.make_stream({.name = "copies"}).value();
  s.copy(filled(f.dev, 8, 1), filled(f.dev, 8, 1), "load");
  s.record().async_wait([](error_code) {});
  stepping device_goes_on;
  run(f.ctx);
  auto spans = recorder.spans("copies");
  REQUIRE(spans.size() == 1);
  CHECK(spans[0].name == "load");
  CHECK(std::get<std::int64_t>(spans[0].args.at(0).value) == 8);
}
