// How the CUDA backend uses CUDA, step by step, on fake_cuda.
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <atomic>
#include <thread>

#include "cokv/runtime/device.hpp"
#include "cokv/runtime/progress.hpp"
#include "support/allocation_counter.hpp"
#include "support/fake_cuda_fixture.hpp"

using namespace cokv;
namespace fake_cuda = cokv::test::fake_cuda;
using fake_cuda::fixture, fake_cuda::signals;

TEST_CASE("fake_cuda: a copy is done when its event is, and not before") {
  for (auto signal : signals)
    for (auto kind : {memory_kind::device, memory_kind::pinned}) {
      fixture f(signal);
      auto s = f.dev.make_stream().value();
      auto a = f.filled(64, 1), b = f.dev.allocate(64, kind).value();
      b.data()[0] = {};
      CHECK(!s.copy(b, a));
      auto e = s.record();
      bool done = false;
      e.async_wait([&](error_code ec) { done = !ec; });
      while (b.data()[0] != std::byte{1}) {
        f.ctx.poll();
        CHECK(!e.ready());
        CHECK(!done);
        REQUIRE(fake_cuda::step());
      }
      fake_cuda::drain();
      CHECK(run(f.ctx) > 0);
      CHECK(done);
      CHECK(e.ready());
    }
}

TEST_CASE("fake_cuda: a word costs one write an operation and no event; polling it calls CUDA not at all") {
  fixture f(completion_signal::word);
  auto s = f.dev.make_stream().value();
  auto a = f.filled(64, 1), b = f.filled(64, 0);
  const auto recorded = fake_cuda::calls("cudaEventRecord");
  for (int i = 0; i < 10; ++i) CHECK(!s.copy(b, a));
  auto e = s.record();
  CHECK(fake_cuda::calls("cuStreamWriteValue64") == 10);
  CHECK(fake_cuda::calls("cudaEventRecord") == recorded);
  const auto before = fake_cuda::calls("");
  auto& loop = progress::of(f.ctx.get_executor());
  for (int i = 0; i < 1000; ++i) CHECK(loop.poll() == 0);
  CHECK(fake_cuda::calls("") == before);
  fake_cuda::drain();
  CHECK(loop.poll() == 10);
  CHECK(fake_cuda::calls("") == before);
  CHECK(e.ready());
}

TEST_CASE(
    "fake_cuda: copies in a row share a write of the word, which is made when somebody looks, or they are many bytes") {
  fixture f(completion_signal::word);
  auto s = f.dev.make_stream().value();
  constexpr std::size_t n = 1 << 20;
  auto a = f.filled(n, 1), b = f.dev.allocate(n).value();
  const auto writes = [] { return fake_cuda::calls("cuStreamWriteValue64"); };
  for (int i = 0; i < 3; ++i) CHECK(!s.copy(b, a));
  CHECK(writes() == 0);
  const auto third = s.record();
  CHECK(writes() == 1);
  for (int i = 0; i < 9; ++i) CHECK(!s.copy(b, a));
  CHECK(writes() == 3);  // behind the fourth and the eighth
  progress::of(f.ctx.get_executor()).poll();
  CHECK(writes() == 4);
  CHECK(!third.ready());
  CHECK(!s.copy(b, a));
  auto other = f.dev.make_stream().value();
  CHECK(!other.wait(s.record()));
  CHECK(!s.copy(b.slice(0, 64), a.slice(0, 64)));
  CHECK(writes() == 7);  // what waits, and a small one, by themselves
  CHECK(!s.copy(b, a));
  fake_cuda::drain();
  progress::of(f.ctx.get_executor()).poll();  // writes, and then sees
  fake_cuda::drain();
  progress::of(f.ctx.get_executor()).poll();
  CHECK(third.ready());
  CHECK(s.in_flight() == 0);
}

TEST_CASE("fake_cuda: where the driver writes no words, events tell; asked for words it says so") {
  fixture f(completion_signal::automatic, {.words = false});
  auto s = f.dev.make_stream().value();
  auto a = f.filled(64, 1), b = f.filled(64, 0);
  CHECK(!s.copy(b, a));
  fake_cuda::drain();
  progress::of(f.ctx.get_executor()).poll();
  CHECK(s.record().ready());
  CHECK(fake_cuda::calls("cuStreamWriteValue64") == 0);
  CHECK(open_device(f.ctx.get_executor(), "cuda:0", {.signal = completion_signal::word}).error() == errc::unsupported);
}

TEST_CASE("fake_cuda: a batch is one call, or one a copy where the driver is older") {
  for (bool batches : {true, false}) {
    fixture f(completion_signal::automatic, {.batches = batches});
    auto s = f.dev.make_stream().value();
    constexpr std::size_t each = 32 << 10;
    auto a = f.filled(8 * each, 1), b = f.dev.allocate(8 * each).value();
    std::vector<copy_op> pieces;
    for (std::size_t i = 0; i < 8; ++i) pieces.push_back({b.slice(i * each, each), a.slice(i * each, each)});
    CHECK(!s.copy_batch(pieces));
    CHECK(s.in_flight() == 1);
    CHECK(fake_cuda::calls("cudaMemcpyAsync") == (batches ? 0 : 8));
    fake_cuda::drain();
    CHECK(std::ranges::equal(a.bytes(), b.bytes()));
    // Small ones are the moving kernel's.
    const auto before = fake_cuda::calls("cudaLaunchKernel");
    for (auto& p : pieces) p = {p.dst.slice(0, 8), p.src.slice(0, 8)};
    CHECK(!s.copy_batch(pieces));
    CHECK(fake_cuda::calls("cudaMemcpyAsync") == (batches ? 0 : 8));
    CHECK(fake_cuda::calls("cudaLaunchKernel") == before + 1);
    fake_cuda::drain();
  }
}

TEST_CASE(
    "fake_cuda: small copies are CUDA's where there is no kernel for the device, and a refused launch is an error") {
  for (auto refused : {cudaErrorNoKernelImageForDevice, cudaErrorInvalidValue}) {
    fixture f;
    auto s = f.dev.make_stream().value();
    auto a = f.filled(64, 1), b = f.dev.allocate(64).value();
    std::vector<copy_op> pieces;
    for (std::size_t i = 0; i < 8; ++i) pieces.push_back({b.slice(i * 8, 8), a.slice(i * 8, 8)});
    fake_cuda::fail_call("cudaLaunchKernel", 1, refused);
    if (refused == cudaErrorInvalidValue) {
      CHECK(s.copy_batch(pieces).value() == refused);
      CHECK(s.status().value() == refused);
      continue;
    }
    const auto launches = fake_cuda::calls("cudaLaunchKernel");
    for (int i = 0; i < 2; ++i) CHECK(!s.copy_batch(pieces));
    CHECK(fake_cuda::calls("cudaLaunchKernel") == launches + 1);  // it is not tried again
    CHECK(fake_cuda::calls("cudaMemcpyBatchAsync") == 2);
    fake_cuda::drain();
    CHECK(std::ranges::equal(a.bytes(), b.bytes()));
  }
}

TEST_CASE("fake_cuda: what a batch copies between host memory is one host function, the rest CUDA's copies") {
  for (bool batches : {true, false}) {
    fixture f(completion_signal::automatic, {.batches = batches});
    auto s = f.dev.make_stream().value();
    constexpr std::size_t each = 32 << 10, n = 8 * each;
    auto a = f.filled(n, 1), b = f.filled(n, 0);
    auto there = f.dev.allocate(n).value();
    std::vector<copy_op> pieces;
    for (std::size_t i = 0; i < 8; ++i)
      pieces.push_back({(i % 2 ? there : b).slice(i * each, each), a.slice(i * each, each)});
    pieces.push_back({b.slice(8, 0), a.slice(8, 0)});
    CHECK(!s.copy_batch(pieces));
    CHECK(s.in_flight() == 1);
    CHECK(fake_cuda::calls("cudaLaunchHostFunc") == 1);
    CHECK(fake_cuda::calls("cudaMemcpyAsync") == (batches ? 0 : 4));
    CHECK(fake_cuda::would_use(b.data(), 8));
    fake_cuda::drain();
    for (std::size_t i = 0; i < n; i += 1000) CHECK((i / each % 2 ? there : b).data()[i] == std::byte{1});
    CHECK(!s.copy_batch({&pieces[8], 1}));  // nothing to copy
    CHECK(fake_cuda::calls("cudaLaunchHostFunc") == 1);
    CHECK(fake_cuda::violations().empty());
  }
}

TEST_CASE("fake_cuda: under a plain io_context::run the loop is woken once a waiter, not once an operation") {
  for (auto signal : signals) {
    fixture f(signal, {.mode = fake_cuda::mode::threaded});
    auto s = f.dev.make_stream().value();
    auto a = f.filled(64, 1), b = f.dev.allocate(64).value();
    for (int i = 0; i < 10; ++i) s.copy(b, a);
    bool done = false;
    s.record().async_wait([&](error_code ec) { done = !ec; });
    f.ctx.run();
    CHECK(done);
    CHECK(fake_cuda::calls("cudaLaunchHostFunc") <= 1);  // none, if the device was faster
  }
}

TEST_CASE("fake_cuda: who comes later and waits for less is not woken later") {
  for (auto signal : signals) {
    fixture f(signal);
    auto s = f.dev.make_stream().value();
    auto a = f.filled(64, 1), b = f.dev.allocate(64).value();
    s.copy(b, a);
    auto first = s.record();
    s.copy(b, a);
    bool last_done = false, first_done = false;
    s.record().async_wait([&](error_code) { last_done = true; });
    CHECK(fake_cuda::calls("cudaLaunchHostFunc") == 1);
    first.async_wait([&](error_code) { first_done = true; });
    CHECK(fake_cuda::calls("cudaLaunchHostFunc") == 2);
    first.async_wait([](error_code) {});
    CHECK(fake_cuda::calls("cudaLaunchHostFunc") == 2);
    while (!first_done) {
      REQUIRE(fake_cuda::step());
      f.ctx.poll();
    }
    CHECK(!last_done);
    fake_cuda::drain();
    f.ctx.run();
    CHECK(last_done);
  }
}

TEST_CASE("fake_cuda: a loop that polls arms nothing; one that sleeps at once arms") {
  for (auto spin : {duration::max(), duration(0)}) {
    const bool polls = spin == duration::max();
    fixture f(completion_signal::word, {.mode = polls ? fake_cuda::mode::threaded : fake_cuda::mode::stepped});
    auto s = f.dev.make_stream().value();
    auto a = f.filled(64, 1), b = f.dev.allocate(64).value();
    int done = 0;
    asio::co_spawn(
        f.ctx,
        [](stream s, buffer a, buffer b, int& done) -> awaitable<void> {
          for (int i = 0; i < 100; ++i) {
            s.copy(b, a);
            co_await s.record().async_wait();
            ++done;
          }
        }(s, a, b, done),
        asio::detached);
    // A device that begins when it has been armed: one that is faster than the loop need not be.
    std::atomic<bool> over = polls;
    std::jthread device([&] {
      while (!over && fake_cuda::calls("cudaLaunchHostFunc") == 0) std::this_thread::yield();
      while (!over)
        if (!fake_cuda::step()) std::this_thread::yield();
    });
    run(f.ctx, {.spin = spin});
    over = true;
    CHECK(done == 100);
    CHECK((fake_cuda::calls("cudaLaunchHostFunc") == 0) == polls);
  }
}

TEST_CASE("fake_cuda: an event of another device is refused; a CPU stream waits for a CUDA stream") {
  fixture f(completion_signal::automatic, {.mode = fake_cuda::mode::threaded});
  auto a = f.dev.make_stream().value(), b = f.dev.make_stream().value();
  auto x = f.filled(8, 1), y = f.filled(8, 0);
  CHECK(!b.wait(event()));
  auto cpu = open_device(f.ctx.get_executor(), "cpu", {.threads = 1}).value();
  auto c = cpu.make_stream().value();
  std::atomic<bool> open{false};
  c.launch("held", [&] {
    while (!open) std::this_thread::yield();
  });
  CHECK(b.wait(c.record()) == errc::wrong_device);
  CHECK(!b.status());
  CHECK(a.copy(y, cpu.allocate(8).value()) == errc::wrong_device);
  CHECK(!a.copy(y, x));
  auto d = cpu.make_stream().value();
  CHECK(!d.wait(a.record()));
  bool waited = false;
  d.launch("after", [&] { waited = y.data()[0] == std::byte{1}; });
  open = true;
  bool all = false;
  d.record().async_wait([&](error_code ec) { all = !ec; });
  f.ctx.run();
  CHECK(all);
  CHECK(waited);
}

TEST_CASE("fake_cuda: a stream that is being captured is not adopted, nor recorded, nor enqueued on") {
  fixture f;
  cudaStream_t native = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&native, cudaStreamNonBlocking) == cudaSuccess);
  {
    auto s = f.dev.adopt_stream(native).value();
    auto a = f.filled(8, 1), b = f.filled(8, 0);
    fake_cuda::set_capturing(native, true);
    CHECK(f.dev.adopt_stream(native).error() == errc::unsupported);
    CHECK(s.copy(b, a) == errc::unsupported);
    CHECK(s.allocate(8).error() == errc::unsupported);
    auto e = s.record();
    CHECK(e.ready());
    CHECK(e.status() == errc::unsupported);
    CHECK(s.in_flight() == 0);
    fake_cuda::set_capturing(native, false);
    CHECK(!s.copy(b, a));
    fake_cuda::drain();
    error_code ended = errc::closed;
    s.record().async_wait([&](error_code ec) { ended = ec; });
    fake_cuda::drain();
    run(f.ctx);
    CHECK(!ended);
  }
  CHECK(cudaStreamDestroy(native) == cudaSuccess);
}

TEST_CASE("fake_cuda: events are adopted up to a bound") {
  fixture f;
  cudaEvent_t e = nullptr;
  REQUIRE(cudaEventCreateWithFlags(&e, cudaEventDisableTiming) == cudaSuccess);
  auto s = f.dev.make_stream().value();
  auto a = f.filled(8, 1), b = f.filled(8, 0);
  CHECK(!s.copy(b, a));
  REQUIRE(cudaEventRecord(e, static_cast<cudaStream_t>(s.native_handle())) == cudaSuccess);
  std::vector<event> adopted;
  for (int i = 0; i < 64; ++i) adopted.push_back(f.dev.adopt_event(e).value());
  CHECK(f.dev.adopt_event(e).error() == errc::queue_full);
  fake_cuda::drain();
  progress::of(f.ctx.get_executor()).poll();
  for (auto& one : adopted) CHECK(one.ready());
  CHECK(f.dev.adopt_event(e).has_value());
  CHECK(cudaEventDestroy(e) == cudaSuccess);
}

TEST_CASE("fake_cuda: in its steady state, copying, recording and waiting allocate nothing") {
  if (!test::allocation_counter::available()) return;
  for (auto signal : signals) {
    fixture f(signal);
    auto compute = f.dev.make_stream().value(), copies = f.dev.make_stream().value();
    auto a = f.filled(64, 1), b = f.filled(64, 0);
    std::size_t made = 1;
    asio::co_spawn(
        f.ctx,
        [](stream compute, stream copies, buffer a, buffer b, std::size_t& made) -> awaitable<void> {
          for (int round = 0; round < 2; ++round) {  // once to warm up
            auto own = fake_cuda::own_allocations();
            test::allocation_counter count;
            for (int i = 0; i < 300; ++i) {
              compute.copy(b, a);
              copies.wait(compute.record());
              copies.copy(a, b);
              const auto copied = copies.record();
              test::allocation_counter theirs;
              fake_cuda::drain();
              own -= theirs.made();
              co_await copied.async_wait();
            }
            made = count.made() - (fake_cuda::own_allocations() - own);
          }
        }(compute, copies, a, b, made),
        asio::detached);
    run(f.ctx);
    CHECK(made == 0);
  }
}
