// What a caller can get wrong with devices, streams and memory: an error code, or for a bug in the caller's code an end
// of the process that names the rule.
#include <doctest/doctest.h>

#include <atomic>
#include <functional>
#include <latch>
#include <limits>
#include <memory>
#include <stdexcept>
#include <vector>

#include "cokv/runtime/device.hpp"
#include "cokv/runtime/sim_context.hpp"
#include "cokv/runtime/task_group.hpp"
#include "support/death.hpp"

using namespace cokv;
using cokv::test::last_words;

namespace {

// The same questions to a CPU and to a simulated device.
struct machine {
  std::string name;
  std::shared_ptr<void> context;  // its destructor is not virtual
  asio::any_io_executor ex;
  std::function<void()> run;
};

machine real() {
  auto ctx = std::make_shared<asio::io_context>(1);
  auto* c = ctx.get();
  return {"cpu", std::move(ctx), c->get_executor(), [c] { c->restart(), c->run(); }};
}

machine simulated() {
  auto ctx = std::make_shared<sim_context>(1);
  auto* c = ctx.get();
  return {"sim:h100", std::move(ctx), c->get_executor(), [c] { c->run(); }};
}

error_code settle(const machine& m, const event& e) {
  error_code got = errc::closed;
  e.async_wait([&](error_code ec) { got = ec; });
  m.run();
  return got;
}

constexpr auto most = std::numeric_limits<std::size_t>::max();

}  // namespace

TEST_CASE("bad input: names that no device has") {
  for (auto make : {real, simulated}) {
    auto m = make();
    for (std::string name : {"", "tpu", "CPU", "cpu ", "cpu:0", "sim", "sim:", "sim:tpu", "sim:h100:", "sim:h100:x",
                             "sim:h100:-1", "cuda", "cuda:", "cuda:-1", "cuda:x", "cuda:0x", "cuda:99999999999999"}) {
      CAPTURE(name);
      CHECK(open_device(m.ex, name).error() == errc::unknown_device);
      CHECK(explain_device(name).find('\n') == std::string::npos);
      CHECK(!explain_device(name).empty());
    }
  }
  CHECK(open_device(real().ex, "sim:h100").error() == errc::unsupported);
  CHECK(open_device(simulated().ex, "cpu").error() == errc::unsupported);
}

TEST_CASE("bad input: more memory than there is, none at all, and kinds that a device hasn't") {
  for (auto make : {real, simulated}) {
    auto m = make();
    auto dev = open_device(m.ex, m.name).value();
    for (auto kind : {memory_kind::device, memory_kind::pinned, memory_kind::host})
      for (std::size_t bytes : {most, most / 2 + 1, most - 4096})
        CHECK(dev.allocate(bytes, kind).error() == errc::out_of_memory);
    auto none = dev.allocate(0).value();
    CHECK(none.empty());
    CHECK(none.slice(0, 0).empty());
    CHECK_THROWS_AS(none.slice(0, 1), std::out_of_range);
    CHECK(dev.allocate(64, memory_kind::exportable).error() == errc::unsupported);
    CHECK(dev.allocate(64).has_value());  // what failed has taken nothing
  }
}

TEST_CASE("bad input: host memory that no machine has throws, also where rounding it up would wrap around") {
  for (std::size_t bytes : {most, most - 4095, most / 2 + 1, most / 2 - 4095})
    CHECK_THROWS_AS(buffer::host(bytes), std::bad_alloc);
}

TEST_CASE("bad input: a slice beyond its buffer, also where the sum wraps around") {
  auto b = buffer::host(100);
  CHECK(b.slice(100, 0).empty());
  CHECK(b.slice(0, 100).size() == 100);
  for (auto [offset, n] : {std::pair<std::size_t, std::size_t>{0, 101},
                           {101, 0},
                           {100, 1},
                           {1, most},
                           {most, 1},
                           {most, most},
                           {50, most - 49}})
    CHECK_THROWS_AS(b.slice(offset, n), std::out_of_range);
  CHECK_THROWS_AS(b.slice(90, 10).slice(0, 11), std::out_of_range);
}

TEST_CASE("bad input: copies of unequal sizes, onto themselves, of memory that is nobody's; nothing is enqueued") {
  for (auto make : {real, simulated}) {
    auto m = make();
    auto dev = open_device(m.ex, m.name).value();
    auto s = dev.make_stream().value();
    auto a = dev.allocate(100).value(), b = dev.allocate(100).value();
    CHECK(s.copy(a, b.slice(0, 99)) == errc::invalid_argument);
    CHECK(s.copy(buffer(), b) == errc::invalid_argument);
    CHECK(s.copy(a, a) == errc::invalid_argument);
    CHECK(s.copy(a.slice(0, 60), a.slice(40, 60)) == errc::invalid_argument);
    CHECK(s.copy(a.slice(40, 60), a.slice(0, 60)) == errc::invalid_argument);
    std::vector<copy_op> batch{{a, b}, {a.slice(0, 41), a.slice(40, 41)}};
    CHECK(s.copy_batch(batch) == errc::invalid_argument);
    CHECK(s.copy(a, buffer::adopt(nullptr, 100, memory_kind::device, nullptr)) == errc::wrong_device);
    CHECK(s.copy(buffer::adopt(nullptr, 100, memory_kind::exportable, nullptr), a) == errc::wrong_device);
    CHECK(s.record().position() == 0);
    CHECK(!s.status());
    CHECK(!s.copy(a.slice(0, 50), a.slice(50, 50)));  // neighbours
    CHECK(!s.copy(buffer(), buffer()));
    CHECK(!s.copy(a.slice(10, 0), a.slice(10, 0)));
    CHECK(!s.copy_batch({}));
    CHECK(!settle(m, s.record()));
  }
}

TEST_CASE("bad input: a kernel that is no function, and a stream that may hold nothing") {
  for (auto make : {real, simulated}) {
    auto m = make();
    auto dev = open_device(m.ex, m.name).value();
    CHECK(dev.make_stream({.max_in_flight = 0}).error() == errc::invalid_argument);
    auto s = dev.make_stream().value();
    s.launch("none", std::function<void()>());
    CHECK(settle(m, s.record()) == errc::device_failed);
    CHECK(s.launch("behind", [] {}) == errc::device_failed);
    CHECK(s.copy(buffer(), buffer()) == errc::device_failed);
    CHECK(s.wait(event()) == errc::device_failed);
  }
}

TEST_CASE("bad input: events of other contexts: a simulated device refuses them, a CPU waits") {
  asio::io_context elsewhere(1);
  auto theirs = open_device(elsewhere.get_executor(), "cpu").value().make_stream().value();
  sim_context other_time(2);
  auto sims = open_device(other_time.get_executor(), "sim:h100").value().make_stream().value();
  sims.launch("never, as nobody runs it", [] {});

  auto m = simulated();
  auto s = open_device(m.ex, m.name).value().make_stream().value();
  CHECK(s.wait(sims.record()) == errc::wrong_device);
  CHECK(s.record().position() == 0);
  CHECK(!s.status());

  auto here = real();
  auto mine = open_device(here.ex, "cpu").value().make_stream().value();
  std::atomic<bool> first{false}, saw{false};
  theirs.launch("first", [&] { first = true; });
  CHECK(!mine.wait(theirs.record()));
  mine.launch("then", [&] { saw = first.load(); });
  CHECK(!settle(here, mine.record()));
  CHECK(saw);
}

TEST_CASE("bad input: an event of a context that goes under it is closed, and so is the stream that waits for it") {
  std::latch entered(1), open(1);  // outlive the kernel
  auto here = real();
  auto mine = open_device(here.ex, "cpu").value().make_stream().value();
  {
    asio::io_context elsewhere(1);
    auto held = open_device(here.ex, "cpu").value().make_stream().value();
    auto theirs = open_device(elsewhere.get_executor(), "cpu").value().make_stream().value();
    held.launch("gate", [&] { entered.count_down(), open.wait(); });
    entered.wait();
    theirs.wait(held.record());
    theirs.launch("never", [] { FAIL_CHECK("it ran"); });
    CHECK(!mine.wait(theirs.record()));
    mine.launch("never", [] { FAIL_CHECK("it ran"); });
  }
  CHECK(settle(here, mine.record()) == errc::closed);
  open.count_down();
}

TEST_CASE("bad input: used after its context has gone, everything says closed") {
  for (auto make : {real, simulated}) {
    stream s;
    device dev;
    buffer a, b;
    event done;
    {
      auto m = make();
      dev = open_device(m.ex, m.name).value();
      s = dev.make_stream().value();
      a = dev.allocate(64).value(), b = dev.allocate(64).value();
      s.copy(a, b);
      CHECK(!settle(m, s.record()));
      done = s.record();
    }
    CHECK(s.copy(a, b) == errc::closed);
    CHECK(s.launch("late", [] {}) == errc::closed);
    CHECK(dev.make_stream().error() == errc::closed);
    CHECK(done.ready());
    CHECK(!done.status());
  }
}

TEST_CASE("bad input: a stream or device that nobody made breaks a rule that is named") {
  const auto said = [](const std::string& words, const char* rule) {
    INFO(words);
    return words.find(std::string("broken rule: ") + rule) != std::string::npos;
  };
  const char* no_stream = "a stream is made by device::make_stream before it is used";
  CHECK(said(last_words([] { stream().record(); }), no_stream));
  CHECK(said(last_words([] { (void)stream().copy(buffer(), buffer()); }), no_stream));
  CHECK(said(last_words([] { stream().launch("k", [] {}); }), no_stream));
  CHECK(said(last_words([] { stream().wait(event()); }), no_stream));
  CHECK(said(last_words([] { (void)stream().status(); }), no_stream));
  CHECK(said(last_words([] { (void)stream().get_executor(); }), no_stream));
  const char* no_device = "a device is opened by open_device before it is used";
  CHECK(said(last_words([] { (void)device().make_stream(); }), no_device));
  CHECK(said(last_words([] { (void)device().allocate(1); }), no_device));
  CHECK(said(last_words([] { (void)device().name(); }), no_device));
  CHECK(said(last_words([] { task_group().spawn([]() -> awaitable<void> { co_return; }); }),
             "a task_group runs children only inside with()"));
}
