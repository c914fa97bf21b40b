#include "cokv/runtime/stream.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <boost/asio/use_future.hpp>
#include <latch>
#include <stdexcept>
#include <thread>

#include "cokv/runtime/device.hpp"
#include "cokv/runtime/trace.hpp"
#include "support/counting_allocator.hpp"

using namespace cokv;

namespace {

// Holds a stream up until it is opened: another thread's event, without a sleep.
struct gate {
  std::latch open{1};
  std::latch entered{1};
  auto kernel() {
    return [this] {
      entered.count_down();
      open.wait();
    };
  }
};

struct fixture {
  asio::io_context ctx{1};
  device dev = open_device(ctx.get_executor(), "cpu", {.threads = 2}).value();
  stream make(std::string name = "s", std::size_t bound = 1024) {
    return dev.make_stream({.name = std::move(name), .max_in_flight = bound}).value();
  }
  // Runs the context until the event is over, and says how.
  error_code settle(const event& e) {
    error_code got = errc::closed;
    e.async_wait([&](error_code ec) { got = ec; });
    ctx.restart();
    ctx.run();
    return got;
  }
};

buffer filled(std::size_t n, int value) {
  auto b = buffer::host(n);
  std::fill(b.bytes().begin(), b.bytes().end(), std::byte(value));
  return b;
}

}  // namespace

TEST_CASE("stream: copies and kernels run in the order they were enqueued") {
  fixture f;
  auto s = f.make();
  auto a = filled(1 << 16, 1), b = filled(1 << 16, 0), c = filled(1 << 16, 0);
  bool saw = false;
  CHECK(!s.copy(b, a));
  CHECK(!s.launch("add", [b] {
    for (auto& x : b.bytes()) x = std::byte(int(x) + 1);
  }));
  CHECK(!s.copy(c, b));
  CHECK(!s.launch("look", [c, &saw] { saw = c.data()[0] == std::byte{2} && c.data()[65535] == std::byte{2}; }));
  CHECK(s.record().position() == 4);
  CHECK(!f.settle(s.record()));
  CHECK(saw);
  CHECK(s.in_flight() == 0);
  CHECK(s.record().ready());
}

TEST_CASE("stream: a small copy that is alone is made by its caller, and keeps its place behind what is not over") {
  fixture f;
  auto s = f.make();
  auto from = filled(32 << 10, 1), to = filled(32 << 10, 0);
  CHECK(!s.copy(to, from));
  CHECK(s.record().ready());
  CHECK(!s.record().status());
  CHECK(to.bytes()[(32 << 10) - 1] == std::byte{1});

  gate g;
  CHECK(!s.launch("held up", g.kernel()));
  g.entered.wait();
  auto last = filled(4, 0);
  CHECK(!s.copy(last, to.slice(0, 4)));
  const auto done = s.record();
  CHECK(!done.ready());
  CHECK(last.bytes()[0] == std::byte{0});
  g.open.count_down();
  CHECK(!f.settle(done));
  CHECK(last.bytes()[0] == std::byte{1});

  // Whether the thread that computed has just found nothing more to do, or not.
  auto counted = filled(sizeof(int), 0), copied = filled(sizeof(int), 0);
  int& count = *reinterpret_cast<int*>(counted.data());
  int wrong = 0;
  for (int i = 1; i <= 3000; ++i) {
    CHECK(!s.launch("count", [&count] { ++count; }));
    for (int pause = i % 7; pause > 0; --pause) std::this_thread::yield();
    CHECK(!s.copy(copied, counted));
    CHECK(!s.launch("compare", [&, i] { wrong += *reinterpret_cast<const int*>(copied.data()) != i; }));
    if (i % 100 == 0) CHECK(!f.settle(s.record()));
  }
  CHECK(!f.settle(s.record()));
  CHECK(wrong == 0);
}

TEST_CASE("stream: events become ready one after the other, for every kind of token") {
  gate g;  // outlives the kernels that wait at it
  fixture f;
  auto s = f.make();
  auto before = s.record();
  CHECK(before.ready());
  s.launch("gate", g.kernel());
  auto held = s.record();
  s.launch("after", [] {});
  auto after = s.record();
  int done = 0;
  held.async_wait([&](error_code ec) { done += !ec; });
  auto future = held.async_wait(asio::use_future);
  asio::co_spawn(
      f.ctx,
      [](event held, event after, int& done) -> awaitable<void> {
        co_await held.async_wait();
        co_await after.async_wait(asio::use_awaitable);
        ++done;
      }(held, after, done),
      asio::detached);
  g.entered.wait();
  CHECK(!held.ready());
  CHECK(!after.ready());
  CHECK(s.in_flight() == 2);
  g.open.count_down();
  f.ctx.run();
  CHECK(done == 2);
  future.get();
}

TEST_CASE("stream: the first error sticks; events before it succeed, at and behind it they fail") {
  gate g;  // outlives the kernels that wait at it
  fixture f;
  auto s = f.make();
  bool ran_behind = false;
  s.launch("gate", g.kernel());
  auto before = s.record();
  s.launch("bad", []() -> error_code { return errc::out_of_range; });
  auto at = s.record();
  s.launch("behind", [&] { ran_behind = true; });
  auto behind = s.record();
  g.open.count_down();
  CHECK(!f.settle(before));
  CHECK(f.settle(at) == errc::out_of_range);
  CHECK(f.settle(behind) == errc::out_of_range);
  CHECK(f.settle(s.record()) == errc::out_of_range);
  CHECK(!ran_behind);
  CHECK(s.status() == errc::out_of_range);
  CHECK(s.in_flight() == 0);
  CHECK(s.launch("more", [] {}) == errc::out_of_range);
  CHECK(s.copy(filled(1, 0), filled(1, 0)) == errc::out_of_range);
  CHECK(s.wait(before) == errc::out_of_range);
}

TEST_CASE("stream: exceptions of a kernel become errors") {
  fixture f;
  auto failing = [&](auto fn) {
    auto s = f.make();
    s.launch("bad", std::move(fn));
    return f.settle(s.record());
  };
  CHECK(failing([] { throw boost::system::system_error(make_error_code(errc::protocol)); }) == errc::protocol);
  CHECK(failing([] { throw std::bad_alloc(); }) == errc::out_of_memory);
  CHECK(failing([] { throw std::runtime_error("x"); }) == errc::device_failed);
}

TEST_CASE("stream: another stream's event holds it up without a thread, and its failure travels") {
  gate g, g2;  // outlive the kernels that wait at them
  fixture f;
  std::vector<stream> waiting;
  auto source = f.make("source");
  source.launch("gate", g.kernel());
  auto e = source.record();
  int n = 0;
  std::mutex m;
  for (int i = 0; i < 8; ++i) {  // more than there are threads
    waiting.push_back(f.make());
    CHECK(!waiting.back().wait(e));
    waiting.back().launch("count", [&] {
      std::lock_guard lock(m);
      ++n;
    });
  }
  auto free = f.make();
  free.launch("free", [] {});
  CHECK(!f.settle(free.record()));
  g.open.count_down();
  for (auto& s : waiting) CHECK(!f.settle(s.record()));
  CHECK(n == 8);

  auto bad = f.make(), dependent = f.make();
  bad.launch("gate", g2.kernel());
  bad.launch("bad", []() -> error_code { return errc::device_lost; });
  bool ran = false;
  dependent.wait(bad.record());
  dependent.launch("never", [&] { ran = true; });
  g2.open.count_down();
  CHECK(f.settle(dependent.record()) == errc::device_lost);
  CHECK(!ran);
  CHECK(dependent.wait(event()) == errc::device_lost);
}

TEST_CASE("stream: chains of edges across streams, a thousand times") {
  fixture f;
  auto a = f.make(), b = f.make(), c = f.make();
  auto x = filled(64, 0), y = filled(64, 0);
  int value = 0;
  bool right = true;
  for (int i = 0; i < 1000; ++i) {
    while (a.in_flight() > 1000 || b.in_flight() > 1000 || c.in_flight() > 1000) CHECK(!f.settle(a.record()));
    a.wait(c.record());
    a.launch("produce", [&value, i, x] { x.data()[0] = std::byte(value = i); });
    b.wait(a.record());
    b.copy(y, x);
    c.wait(b.record());
    c.launch("check", [&right, i, y] { right = right && y.data()[0] == std::byte(i); });
    if (c.in_flight() > 900) CHECK(!f.settle(c.record()));
  }
  CHECK(!f.settle(c.record()));
  CHECK(value == 999);
  CHECK(right);
}

TEST_CASE("stream: work in flight is bounded, and async_room says when there is room") {
  gate g;  // outlives the kernels that wait at it
  fixture f;
  auto s = f.make("s", 4);
  s.launch("gate", g.kernel());
  for (int i = 0; i < 3; ++i) CHECK(!s.launch("n", [] {}));
  CHECK(s.launch("n", [] {}) == errc::queue_full);
  CHECK(s.copy(filled(1, 0), filled(1, 0)) == errc::queue_full);
  CHECK(s.in_flight() == 4);
  asio::cancellation_signal signal;
  error_code room = errc::closed, cancelled;
  s.async_room([&](error_code ec) { room = ec; });
  s.async_room(asio::bind_cancellation_slot(signal.slot(), [&](error_code ec) { cancelled = ec; }));
  signal.emit(asio::cancellation_type::total);
  f.ctx.poll();
  CHECK(room == errc::closed);
  CHECK(cancelled == asio::error::operation_aborted);
  g.open.count_down();
  f.ctx.run();
  CHECK(!room);
  CHECK(!s.launch("n", [] {}));
  CHECK(!f.dev.make_stream({.max_in_flight = 0}).has_value());
  error_code drained = errc::closed;
  s.async_drain([&](error_code ec) { drained = ec; });
  f.ctx.restart();
  f.ctx.run();
  CHECK(!drained);
  CHECK(s.in_flight() == 0);
}

TEST_CASE("stream: what can't be copied is refused before anything is enqueued") {
  fixture f;
  auto s = f.make();
  auto a = filled(8, 1), b = filled(4, 0);
  CHECK(s.copy(b, a) == errc::invalid_argument);
  CHECK(s.copy(b, buffer::adopt(nullptr, 4, memory_kind::device, nullptr)) == errc::wrong_device);
  std::vector<copy_op> batch{{b, a.slice(0, 4)}, {b, a}};
  CHECK(s.copy_batch(batch) == errc::invalid_argument);
  CHECK(s.record().position() == 0);
  batch.pop_back();
  CHECK(!s.copy_batch(batch));
  CHECK(!f.settle(s.record()));
  CHECK(b.data()[3] == std::byte{1});
  CHECK(!s.copy(buffer(), buffer()));
  CHECK(!f.settle(s.record()));
}

TEST_CASE("stream: cancelling a wait ends it at once; the work goes on and keeps its buffers") {
  for (auto type :
       {asio::cancellation_type::total, asio::cancellation_type::partial, asio::cancellation_type::terminal}) {
    gate g;  // outlives the kernels that wait at it
    fixture f;
    auto s = f.make();
    auto dst = filled(32, 0);
    std::weak_ptr<void> watch;
    {
      auto owner = std::make_shared<std::vector<std::byte>>(32, std::byte{5});
      watch = owner;
      auto* data = owner->data();
      s.launch("gate", g.kernel());
      s.copy(dst, buffer::adopt(data, 32, memory_kind::host, std::move(owner)));
    }
    asio::cancellation_signal signal;
    error_code got;
    s.record().async_wait(asio::bind_cancellation_slot(signal.slot(), [&](error_code ec) { got = ec; }));
    signal.emit(type);
    f.ctx.run();
    CHECK(got == asio::error::operation_aborted);
    CHECK(!watch.expired());
    auto e = s.record();
    s = {};
    g.open.count_down();
    CHECK(!f.settle(e));
    CHECK(watch.expired());
    CHECK(dst.data()[31] == std::byte{5});
  }
}

TEST_CASE("stream: handles may go while work is in flight; what was enqueued still runs, its event completes") {
  gate g;  // outlives the kernels that wait at it
  fixture f;
  auto dst = filled(32, 0);
  event e;
  {
    auto s = f.make();
    s.launch("gate", g.kernel());
    s.copy(dst, filled(32, 9));
    e = s.record();
  }
  f.dev = {};
  CHECK(!e.ready());
  g.open.count_down();
  CHECK(!f.settle(e));
  CHECK(dst.data()[0] == std::byte{9});
  // Opening another one takes the idle one's threads back.
  CHECK(open_device(f.ctx.get_executor(), "cpu", {.threads = 1}).has_value());
}

TEST_CASE("stream: a context destroyed with work in flight waits for what runs and drops what has not begun") {
  std::optional<stream> outlives;
  std::optional<device> dev;
  std::weak_ptr<int> captured;
  bool finished = false, ran = false, called = false;
  event e;
  std::thread opener;
  gate g;
  {
    asio::io_context ctx(1);
    dev = open_device(ctx.get_executor(), "cpu", {.threads = 1}).value();
    outlives = dev->make_stream().value();
    auto other = dev->make_stream().value();
    outlives->launch("runs", [&finished, k = g.kernel()]() mutable {
      k();
      finished = true;
    });
    auto token = std::make_shared<int>(1);
    captured = token;
    outlives->launch("dropped", [&ran, token = std::move(token)] { ran = true; });
    e = outlives->record();
    other.wait(e);
    other.launch("dropped too", [&ran] { ran = true; });
    e.async_wait([&](error_code) { called = true; });
    asio::co_spawn(ctx, [](event e) -> awaitable<void> { co_await e.async_wait(); }(other.record()), asio::detached);
    ctx.poll();
    g.entered.wait();
    opener = std::thread([&g, captured] {  // goes on when the shutdown has dropped what was queued
      while (!captured.expired()) std::this_thread::yield();
      g.open.count_down();
    });
  }
  opener.join();
  CHECK(finished);
  CHECK(!ran);
  CHECK(captured.expired());
  CHECK(!called);
  CHECK(e.ready());
  CHECK(outlives->launch("late", [] {}) == errc::closed);
  CHECK(outlives->copy(buffer::host(1), buffer::host(1)) == errc::closed);
  CHECK(!dev->make_stream().has_value());
}

TEST_CASE("stream: a copy overlaps a kernel of another stream, and two copies overlap each other") {
  gate compute;  // outlives the kernels that wait at it
  fixture f;
  auto kernels = f.make("compute"), copies = f.make("copies"), more = f.make("more");
  for (int i = 0; i < 2; ++i) f.make("busy").launch("busy", [&compute] { compute.open.wait(); });
  kernels.launch("gate", [&compute] { compute.open.wait(); });
  auto dst = filled(1 << 20, 0), dst2 = filled(1 << 20, 0);
  copies.copy(dst, filled(1 << 20, 3));
  more.copy(dst2, filled(1 << 20, 4));
  CHECK(!f.settle(copies.record()));
  CHECK(!f.settle(more.record()));
  CHECK(!kernels.record().ready());
  CHECK(dst.data()[77] == std::byte{3});
  compute.open.count_down();
  CHECK(!f.settle(kernels.record()));
}

TEST_CASE("stream: named work leaves spans while tracing is on, and nothing while it is off" *
          doctest::skip(!trace::compiled)) {
  fixture f;
  auto& recorder = trace::of(f.ctx.get_executor());
  auto s = f.make("compute");
  s.launch("unseen", [] {});
  CHECK(!f.settle(s.record()));
  recorder.enable();
  s.launch("layer 0", [] {}, {.flops = 10, .bytes = 20});
  s.copy(filled(100, 0), filled(100, 0), "flush 0");
  s.launch("layer 1", [] {});
  CHECK(!f.settle(s.record()));
  auto spans = recorder.spans("compute");
  REQUIRE(spans.size() == 3);
  CHECK(spans[0].name == "layer 0");
  CHECK(spans[0].args.size() == 2);
  CHECK(spans[1].name == "flush 0");
  CHECK(std::get<std::int64_t>(spans[1].args.at(0).value) == 100);
  CHECK(spans[0].end >= spans[0].start);
  CHECK(spans[1].start >= spans[0].end);
}

TEST_CASE("device: names, kinds of memory, and what isn't there") {
  fixture f;
  CHECK(f.dev.name() == "cpu");
  CHECK(f.dev.concurrency() == 2);
  for (auto kind : {memory_kind::device, memory_kind::host, memory_kind::pinned}) {
    auto b = f.dev.allocate(100, kind).value();
    CHECK(b.size() == 100);
    CHECK(b.kind() == kind);
    CHECK(b.host_accessible());
  }
  CHECK(f.dev.allocate(1, memory_kind::exportable).error() == errc::unsupported);
  CHECK(f.dev.allocate(std::size_t{1} << 60).error() == errc::out_of_memory);
  CHECK(open_device(f.ctx.get_executor(), "tpu").error() == errc::unknown_device);
  CHECK(explain_device("cpu").find("hardware threads") != std::string::npos);
}

TEST_CASE("device: a CUDA device that isn't there says so in one line") {
  asio::io_context ctx(1);
  auto missing = open_device(ctx.get_executor(), "cuda:4711");
  CHECK(!missing.has_value());
  CHECK((missing.error() == errc::no_device || missing.error() == errc::unsupported));
  const auto line = explain_device("cuda:4711");
  CHECK(line.starts_with("cuda:4711: "));
  CHECK(line.find('\n') == std::string::npos);
  CHECK(open_device(ctx.get_executor(), "cuda:x").error() == errc::unknown_device);
}

TEST_CASE("stream: a context that ends under a kernel: what was dropped is closed, the kernel's event waits for it") {
  std::latch entered{1}, told{1};
  std::atomic<bool> early{true};
  event running, dropped;
  {
    asio::io_context ctx{1};
    auto dev = open_device(ctx.get_executor(), "cpu", {.threads = 1}).value();
    auto s = dev.make_stream({.name = "s"}).value();
    s.launch("runs", [&] {
      entered.count_down();
      told.wait();
      while (!dropped.ready()) std::this_thread::yield();  // the stream is closed by now
      early = running.ready();
    });
    running = s.record();
    s.launch("never", [] {});
    dropped = s.record();
    told.count_down();
    entered.wait();
  }
  CHECK(!early);
  CHECK(running.ready());
  CHECK(!running.status());
  CHECK(dropped.status() == errc::closed);
}
