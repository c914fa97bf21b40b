// What becomes of streams, waiters and memory when CUDA fails, on fake_cuda.
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <cstring>
#include <optional>

#include "cokv/runtime/device.hpp"
#include "cokv/runtime/progress.hpp"
#include "support/fake_cuda_fixture.hpp"

using namespace cokv;
namespace fake_cuda = cokv::test::fake_cuda;
using cokv::test::filled;
using fake_cuda::fixture, fake_cuda::signals;

TEST_CASE("fake_cuda: a lost device completes its waiters once with CUDA's own text, also while the loop sleeps") {
  for (auto signal : signals) {
    fixture f(signal);
    auto s = f.dev.make_stream().value(), other = f.dev.make_stream().value();
    auto a = filled(f.dev, 64, 1), b = filled(f.dev, 64, 0), c = filled(f.dev, 64, 0);
    s.copy(b, a);
    auto first = s.record();
    fake_cuda::drain();
    s.copy(b, a);
    other.copy(c, a);
    error_code good = errc::closed, bad, elsewhere;
    int called = 0;
    first.async_wait([&](error_code ec) { good = ec, ++called; });
    s.record().async_wait([&](error_code ec) { bad = ec, ++called; });
    other.record().async_wait([&](error_code ec) { elsewhere = ec, ++called; });
    const auto armed = fake_cuda::calls("cudaLaunchHostFunc");
    fake_cuda::lose_device(cudaErrorIllegalAddress);  // no host function is called any more: the heartbeat finds it
    f.ctx.run();
    CHECK(called == 3);
    CHECK(fake_cuda::calls("cudaLaunchHostFunc") == armed);
    CHECK((!good || signal == completion_signal::event));  // an event can't be asked for any more
    CHECK(bad.message() == "cudaErrorIllegalAddress: an illegal memory access was encountered");
    CHECK(elsewhere == bad);
    CHECK(s.status() == bad);
    CHECK(s.copy(b, a) == bad);
    CHECK(s.wait(other.record()) == bad);
    CHECK(s.allocate(8).error() == bad);
    CHECK(s.native_handle() == nullptr);
    CHECK(f.dev.make_stream().error() == errc::device_lost);
    CHECK(f.dev.allocate(8).error() == errc::device_lost);
    CHECK(f.dev.adopt_stream(nullptr).error() == errc::device_lost);
    CHECK(f.dev.adopt_event(nullptr).error() == errc::device_lost);
    f.ctx.restart();
    CHECK(f.ctx.run() == 0);  // nothing goes on ticking
  }
}

TEST_CASE("fake_cuda: a lost device is opened again, and what was being written is kept until then") {
  for (auto signal : signals) {
    fixture f(signal);
    std::weak_ptr<void> watch;
    auto target = std::make_shared<buffer>(filled(f.dev, 64, 0));
    {
      auto s = f.dev.make_stream().value();
      auto a = filled(f.dev, 64, 1);
      auto owner = target;
      watch = owner;
      auto* data = owner->data();
      s.copy(buffer::adopt(data, 64, memory_kind::pinned, std::move(owner)), a);
      error_code bad;
      s.record().async_wait([&](error_code ec) { bad = ec; });
      fake_cuda::lose_device(cudaErrorECCUncorrectable);
      f.ctx.run();
      CHECK(bad.value() == cudaErrorECCUncorrectable);
    }
    target.reset();
    CHECK(!watch.expired());
    const auto resets = fake_cuda::device_resets();
    auto again = open_device(f.ctx.get_executor(), "cuda:0", {.signal = signal}).value();
    CHECK(fake_cuda::device_resets() == resets + 1);
    CHECK(watch.expired());
    f.dev = {};
    auto s = again.make_stream().value();
    auto a = filled(again, 64, 1), b = filled(again, 64, 0);
    CHECK(!s.copy(b, a));
    error_code ended = errc::closed;
    s.record().async_wait([&](error_code ec) { ended = ec; });
    fake_cuda::drain();
    f.ctx.restart();
    run(f.ctx);
    CHECK(!ended);
    CHECK(b.data()[63] == std::byte{1});
    CHECK(fake_cuda::violations().empty());
  }
}

TEST_CASE("fake_cuda: a device lost in one context is not reset under another that has it open") {
  fixture f;
  asio::io_context second{1};
  auto theirs = open_device(second.get_executor(), "cuda:0").value();
  auto s = f.dev.make_stream().value(), t = theirs.make_stream().value();
  auto a = filled(f.dev, 8, 1), b = filled(f.dev, 8, 0);
  s.copy(b, a);
  t.copy(b, a);
  error_code here, there;
  s.record().async_wait([&](error_code ec) { here = ec; });
  t.record().async_wait([&](error_code ec) { there = ec; });
  fake_cuda::lose_device(cudaErrorIllegalAddress);
  f.ctx.run();
  CHECK(here);
  CHECK(open_device(f.ctx.get_executor(), "cuda:0").error() == errc::device_lost);
  second.run();
  CHECK(there == here);
  const auto resets = fake_cuda::device_resets();
  CHECK(open_device(f.ctx.get_executor(), "cuda:0").has_value());
  CHECK(fake_cuda::device_resets() == resets + 1);
  CHECK(fake_cuda::violations().empty());
}

TEST_CASE("fake_cuda: a context that ends with its lost device unnoticed leaves it to be opened again") {
  {
    fixture f;
    auto s = f.dev.make_stream().value();
    s.copy(filled(f.dev, 8, 1), filled(f.dev, 8, 1));
    fake_cuda::lose_device(cudaErrorIllegalAddress);
  }
  asio::io_context ctx{1};
  const auto resets = fake_cuda::device_resets();
  auto again = open_device(ctx.get_executor(), "cuda:0");
  CHECK(again.has_value());
  CHECK(fake_cuda::device_resets() == resets + 1);
  CHECK(fake_cuda::violations().empty());
}

TEST_CASE("fake_cuda: a copy that fails when it may have begun fails its stream alone, and not before it is over") {
  for (auto signal : signals) {
    fixture f(signal);
    auto s = f.dev.make_stream().value(), other = f.dev.make_stream().value();
    std::weak_ptr<void> watch;
    auto a = f.dev.allocate(8).value(), b = filled(f.dev, 8, 0);
    CHECK(!s.copy(b, a));
    const auto before = s.record();
    {
      auto owner = std::make_shared<buffer>(filled(f.dev, 8, 0));
      watch = owner;
      auto* data = owner->data();
      auto kept = buffer::adopt(data, 8, memory_kind::pinned, std::move(owner));
      const copy_op two[] = {{kept, a}, {b, a}};
      fake_cuda::fail_call("cudaMemcpyBatchAsync", 1, cudaErrorLaunchOutOfResources);
      CHECK(!s.copy_batch(two));
    }
    CHECK(!watch.expired());
    const auto failed = s.record();
    CHECK(!failed.ready());
    CHECK(s.copy(b, a).value() == cudaErrorLaunchOutOfResources);
    CHECK(!before.ready());
    auto waits = f.dev.make_stream().value();
    CHECK(!waits.wait(failed));  // what is known to fail is not waited for
    CHECK(waits.copy(b, a).value() == cudaErrorLaunchOutOfResources);
    error_code good = errc::closed;
    before.async_wait([&](error_code ec) { good = ec; });
    fake_cuda::drain();
    run(f.ctx);
    CHECK(!good);  // it was before the failure
    progress::of(f.ctx.get_executor()).poll();
    CHECK(watch.expired());
    CHECK(failed.ready());
    CHECK(failed.status().value() == cudaErrorLaunchOutOfResources);
    CHECK(!other.copy(b, a));
    CHECK(!other.status());
  }
}

TEST_CASE("fake_cuda: a host function that CUDA refuses fails its stream, not before what had begun is over") {
  for (auto signal : signals)
    for (bool alone : {true, false}) {
      fixture f(signal);
      auto s = f.dev.make_stream().value();
      auto a = f.filled(8, 1), b = f.filled(8, 0);
      auto there = f.dev.allocate(8).value();
      CHECK(!s.copy(b, a));
      const auto before = s.record();
      fake_cuda::fail_call("cudaLaunchHostFunc", 1, cudaErrorLaunchOutOfResources);
      const copy_op both[] = {{b, a}, {there, a}};
      const auto refused = s.copy_batch({both, alone ? 1u : 2u});
      CHECK(refused.value() == (alone ? cudaErrorLaunchOutOfResources : cudaSuccess));
      const auto failed = s.record();
      CHECK(failed.ready() == alone);
      CHECK(!before.ready());
      error_code good = errc::closed;
      before.async_wait([&](error_code ec) { good = ec; });
      fake_cuda::drain();
      run(f.ctx);
      progress::of(f.ctx.get_executor()).poll();
      CHECK(!good);
      CHECK(failed.status().value() == cudaErrorLaunchOutOfResources);
      CHECK(s.copy(b, a).value() == cudaErrorLaunchOutOfResources);
      CHECK(b.data()[7] == std::byte{1});
      CHECK(fake_cuda::first_violation() == "");
    }
}

// A small pipeline: two streams, an edge, memory in a stream's order, a batch, of which CUDA copies a part and a host
// function the rest. True when it came to its end.
static bool pipeline(asio::io_context& ctx, completion_signal signal, error_code& ec) {
  auto device = open_device(ctx.get_executor(), "cuda:0", {.signal = signal});
  if (!device) return ec = device.error(), true;
  auto ended = std::make_shared<std::optional<error_code>>();
  asio::co_spawn(
      ctx,
      [](cokv::device d, std::shared_ptr<std::optional<error_code>> ended) -> awaitable<void> {
        auto work = [&]() -> awaitable<error_code> {
          auto compute = d.make_stream({.name = "compute"}), copies = d.make_stream({.name = "copies"});
          if (!compute) co_return compute.error();
          if (!copies) co_return copies.error();
          auto from = d.allocate(256, memory_kind::pinned), to = d.allocate(256, memory_kind::pinned);
          if (!from) co_return from.error();
          if (!to) co_return to.error();
          std::memset(from->data(), 7, 256);
          std::memset(to->data(), 0, 256);
          for (int round = 0; round < 2; ++round) {
            auto scratch = compute->allocate(256);
            if (!scratch) co_return scratch.error();
            if (auto e = compute->copy(*scratch, *from)) co_return e;
            if (auto e = copies->wait(compute->record())) co_return e;
            const copy_op parts[] = {{to->slice(0, 128), scratch->slice(0, 128)},
                                     {to->slice(128, 64), scratch->slice(128, 64)},
                                     {to->slice(192, 64), from->slice(192, 64)}};
            if (auto e = copies->copy_batch(parts)) co_return e;
            auto [e] = co_await copies->record().async_wait(asio::as_tuple(asio::deferred));
            if (e) co_return e;
            for (auto x : to->bytes())
              if (x != std::byte{7}) co_return errc::digest_mismatch;
            std::memset(to->data(), 0, 256);
          }
          co_return error_code();
        };
        *ended = co_await work();
      }(std::move(*device), ended),
      asio::detached);
  // The device moves while the loop runs.
  for (int i = 0; i < 2000 && !*ended; ++i) {
    ctx.poll();
    progress::of(ctx.get_executor()).poll();
    fake_cuda::step();
  }
  if (!*ended) ctx.run_for(std::chrono::milliseconds(200));  // the heartbeat's turn
  if (*ended) ec = **ended;
  return ended->has_value();
}

TEST_CASE("fake_cuda: whichever call fails, the pipeline ends: right, or with that error; nothing leaks") {
  for (auto signal : signals) {
    for (std::size_t k = 1;; ++k) {
      CAPTURE(k);
      fake_cuda::reset({.seed = k, .max_delay = 2});
      fake_cuda::fail_call("", k, cudaErrorInvalidValue);
      error_code ec;
      {
        asio::io_context ctx{1};
        REQUIRE(pipeline(ctx, signal, ec));
      }
      CHECK((!ec || (ec.value() == cudaErrorInvalidValue && ec.category().name() == std::string("cuda")) ||
             ec == errc::wrong_device));
      CHECK(fake_cuda::first_violation() == "");
      const bool all_tried = fake_cuda::calls("") < k;
      // What nobody could say of that it was done is kept until a lost device is opened again.
      fake_cuda::lose_device(cudaErrorIllegalAddress);
      asio::io_context ctx{1};
      (void)open_device(ctx.get_executor(), "cuda:0");
      CHECK(open_device(ctx.get_executor(), "cuda:0").has_value());
      if (all_tried) {
        CHECK(!ec);
        CHECK(k > 30);
        break;
      }
    }
  }
}

TEST_CASE("fake_cuda: whenever the device is lost, the pipeline ends with that error and can be opened again") {
  for (auto signal : signals) {
    int lost = 0;
    for (std::size_t k = 1; k < 120; ++k) {
      CAPTURE(k);
      fake_cuda::reset({.seed = k, .max_delay = 2});
      fake_cuda::lose_after(k, cudaErrorIllegalAddress);
      error_code ec;
      {
        asio::io_context ctx{1};
        REQUIRE(pipeline(ctx, signal, ec));
      }
      CHECK((!ec || ec.value() == cudaErrorIllegalAddress || ec == errc::device_lost));
      lost += ec ? 1 : 0;
      CHECK(fake_cuda::violations().empty());
      fake_cuda::lose_after(0, 0);
      asio::io_context ctx{1};
      REQUIRE(pipeline(ctx, signal, ec));
      CHECK((!ec || fake_cuda::device_is_lost()));
      CHECK(fake_cuda::violations().empty());
    }
    CHECK(lost > 20);
  }
}

TEST_CASE("fake_cuda: whenever the device is lost, a loop that sleeps ends too") {
  for (auto signal : signals)
    for (std::size_t k = 1; k < 80; ++k) {
      CAPTURE(k);
      fake_cuda::reset({.mode = fake_cuda::mode::threaded, .seed = k, .max_delay = 2});
      fake_cuda::lose_after(k, cudaErrorIllegalAddress);
      {
        asio::io_context ctx{1};
        auto device = open_device(ctx.get_executor(), "cuda:0", {.signal = signal});
        if (!device) continue;
        int ended = 0;
        asio::co_spawn(
            ctx,
            [](cokv::device d, int& ended) -> awaitable<void> {
              auto s = d.make_stream();
              auto a = d.allocate(64, memory_kind::pinned), b = d.allocate(64, memory_kind::pinned);
              for (int i = 0; s && a && b && i < 10; ++i) {
                if (s->copy(*b, *a)) break;
                auto [ec] = co_await s->record().async_wait(asio::as_tuple(asio::deferred));
                if (ec) break;
              }
              ++ended;
            }(*device, ended),
            asio::detached);
        run(ctx, {.spin = duration(0)});
        CHECK(ended == 1);
      }
      CHECK(fake_cuda::violations().empty());
    }
}
