// Cancellation and destruction in the middle of transfers, on fake_cuda with copies that take their time.
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <cstring>

#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/device.hpp"
#include "cokv/runtime/progress.hpp"
#include "cokv/runtime/staging_pool.hpp"
#include "cokv/runtime/with.hpp"
#include "support/fake_cuda_fixture.hpp"

using namespace cokv;
namespace fake_cuda = cokv::test::fake_cuda;
using fake_cuda::signals;

namespace {

// Layers go from the device through staging into memory that the scope owns; each wait can be cancelled.
awaitable<void> stream_out(device d) {
  auto compute = d.make_stream({.name = "compute"}).value(), copies = d.make_stream({.name = "copies"}).value();
  auto staging = staging_pool::make(d, 256, 2).value();
  auto verdict = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    for (int layer = 0; layer < 4; ++layer) {
      auto kv = compute.allocate(256).value();
      auto from = d.allocate(256, memory_kind::pinned).value();
      std::memset(from.data(), layer + 1, 256);
      if (auto ec = compute.copy(kv, from)) throw boost::system::system_error(ec);
      auto piece = co_await staging.async_acquire();
      if (auto ec = copies.wait(compute.record())) throw boost::system::system_error(ec);
      if (auto ec = copies.copy(piece, kv)) throw boost::system::system_error(ec);
      group.spawn([copied = copies.record(), piece, layer]() -> awaitable<void> {
        co_await copied.async_wait();
        for (auto x : piece.bytes()) CHECK(x == std::byte(layer + 1));
      });
    }
  });
  if (!verdict) throw boost::system::system_error(verdict.error());
}

struct run_of {
  bool ended = false;
  std::exception_ptr error;
};

// The device goes on while the loop does; after `step` rounds something happens.
template <class Happens>
bool drive(asio::io_context& ctx, run_of& r, std::size_t step, Happens happens) {
  for (std::size_t i = 0; !r.ended && i < 20000; ++i) {
    if (i == step && !happens()) return false;
    ctx.poll();
    ctx.restart();
    progress::of(ctx.get_executor()).poll();
    fake_cuda::step();
  }
  return r.ended;
}

void check_clean() {
  CHECK(fake_cuda::first_violation() == "");
  CHECK(fake_cuda::live_allocations() == 0);
  CHECK(fake_cuda::live_streams() == 0);
  CHECK(fake_cuda::live_events() == 0);
}

}  // namespace

TEST_CASE("fake_cuda: cancelled at every step, a scope ends, and no memory goes before its copy is done") {
  for (auto signal : signals)
    for (auto type : {asio::cancellation_type::terminal, asio::cancellation_type::total}) {
      bool whole = false;
      for (std::size_t step = 0; !whole; ++step) {
        CAPTURE(step);
        REQUIRE(step < 2000);
        fake_cuda::reset({.seed = step + 1, .max_delay = 4});
        run_of r;
        {
          asio::io_context ctx{1};
          asio::cancellation_signal cancel;
          auto d = open_device(ctx.get_executor(), "cuda:0", {.signal = signal}).value();
          asio::co_spawn(ctx, stream_out(d), asio::bind_cancellation_slot(cancel.slot(), [&](std::exception_ptr e) {
                           r.ended = true;
                           r.error = e;
                         }));
          ctx.poll();
          whole = true;
          CHECK(drive(ctx, r, step, [&] {
            whole = false;
            cancel.emit(type);
            return true;
          }));
          if (whole) CHECK(!r.error);
        }
        check_clean();
      }
    }
}

TEST_CASE("fake_cuda: destroyed at every step, nothing leaks and no memory goes before its copy is done") {
  for (auto signal : signals) {
    bool whole = false;
    for (std::size_t step = 0; !whole; ++step) {
      CAPTURE(step);
      REQUIRE(step < 2000);
      fake_cuda::reset({.seed = step + 1, .max_delay = 4});
      run_of r;
      {
        asio::io_context ctx{1};
        auto d = open_device(ctx.get_executor(), "cuda:0", {.signal = signal}).value();
        asio::co_spawn(ctx, stream_out(d), [&](std::exception_ptr e) {
          r.ended = true;
          r.error = e;
        });
        whole = drive(ctx, r, step, [] { return false; });
      }
      check_clean();
    }
  }
}

TEST_CASE("fake_cuda: a deadline that passes while a copy is in flight leaves the copy its memory") {
  for (auto signal : signals) {
    fake_cuda::reset();
    std::weak_ptr<void> watch;
    {
      asio::io_context ctx{1};
      auto d = open_device(ctx.get_executor(), "cuda:0", {.signal = signal}).value();
      auto s = d.make_stream().value();
      error_code ended;
      asio::co_spawn(
          ctx,
          [](device d, stream s, std::weak_ptr<void>& watch, error_code& ended) -> awaitable<void> {
            auto owner = std::make_shared<buffer>(d.allocate(64, memory_kind::pinned).value());
            watch = owner;
            auto* data = owner->data();
            auto target = buffer::adopt(data, 64, memory_kind::pinned, std::move(owner));
            CHECK(!s.copy(target, d.allocate(64, memory_kind::pinned).value()));
            target = {};
            auto copied = co_await with_deadline(s.record().async_wait(), std::chrono::microseconds(1));
            ended = copied.error();
          }(d, s, watch, ended),
          asio::detached);
      run(ctx);
      CHECK(ended == errc::deadline);
      CHECK(!watch.expired());
      fake_cuda::drain();
      progress::of(ctx.get_executor()).poll();
      CHECK(watch.expired());
    }
    check_clean();
  }
}

TEST_CASE("fake_cuda: it notices memory that goes under a copy, work left on a stream, and handles of before a reset") {
  fake_cuda::reset();
  void *a = nullptr, *b = nullptr;
  cudaStream_t s = nullptr;
  REQUIRE(cudaMalloc(&a, 64) == cudaSuccess);
  REQUIRE(cudaMalloc(&b, 64) == cudaSuccess);
  REQUIRE(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) == cudaSuccess);
  REQUIRE(cudaMemcpyAsync(b, a, 64, cudaMemcpyDefault, s) == cudaSuccess);
  fake_cuda::step();  // begun, not done
  CHECK(*static_cast<std::byte*>(b) == std::byte{0xDB});
  // What a backend must never do.
  CHECK(cudaFree(b) == cudaSuccess);
  CHECK(fake_cuda::violations().size() == 1);
  fake_cuda::reset();  // before the copy goes on
  REQUIRE(cudaMalloc(&a, 64) == cudaSuccess);
  void* other = nullptr;
  REQUIRE(cudaMalloc(&other, 64) == cudaSuccess);
  cudaStream_t t = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&t, cudaStreamNonBlocking) == cudaSuccess);
  REQUIRE(cudaMemcpyAsync(other, a, 64, cudaMemcpyDefault, t) == cudaSuccess);
  CHECK(cudaStreamDestroy(t) == cudaSuccess);
  CHECK(fake_cuda::violations().size() == 1);
  cudaEvent_t e = nullptr;
  REQUIRE(cudaEventCreateWithFlags(&e, cudaEventDisableTiming) == cudaSuccess);
  REQUIRE(cudaDeviceReset() == cudaSuccess);
  CHECK(cudaEventQuery(e) != cudaSuccess);
  CHECK(fake_cuda::violations().size() == 2);
  fake_cuda::reset();
  REQUIRE(cudaMalloc(&a, 64) == cudaSuccess);
  REQUIRE(cudaMalloc(&b, 64) == cudaSuccess);
  REQUIRE(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) == cudaSuccess);
  REQUIRE(cudaMemcpyAsync(b, a, 64, cudaMemcpyDefault, s) == cudaSuccess);
  CHECK(fake_cuda::would_use(b, 64));
  CHECK(!fake_cuda::would_use(static_cast<std::byte*>(b) + 64, 64));
  fake_cuda::drain();
  CHECK(!fake_cuda::would_use(b, 64));
  CHECK(cudaFree(a) == cudaSuccess);
  CHECK(cudaFree(b) == cudaSuccess);
  CHECK(cudaFree(b) == cudaErrorInvalidValue);  // twice
  CHECK(fake_cuda::violations().size() == 1);
  CHECK(cudaStreamDestroy(s) == cudaSuccess);
}

TEST_CASE("fake_cuda: it notices a copy between host memory, for which CUDA would hold its caller up") {
  fake_cuda::reset();
  void *a = nullptr, *b = nullptr, *there = nullptr;
  cudaStream_t s = nullptr;
  REQUIRE(cudaHostAlloc(&a, 64, 0) == cudaSuccess);
  REQUIRE(cudaHostAlloc(&b, 64, 0) == cudaSuccess);
  REQUIRE(cudaMalloc(&there, 64) == cudaSuccess);
  REQUIRE(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) == cudaSuccess);
  const std::byte pageable[64] = {};
  const auto copied = [&](void* to, const void* from) {
    const auto before = fake_cuda::violations().size();
    REQUIRE(cudaMemcpyAsync(to, from, 64, cudaMemcpyDefault, s) == cudaSuccess);
    return fake_cuda::violations().size() == before;
  };
  CHECK(copied(there, a));
  CHECK(copied(b, there));
  CHECK(!copied(b, a));
  CHECK(!copied(b, pageable));
  CHECK(fake_cuda::first_violation() ==
        "cudaMemcpyAsync between host memory holds its caller up until the stream gets there");
#if CUDART_VERSION >= 13000
  const auto before = fake_cuda::violations().size();
  void* const to[] = {there, b};
  const void* const from[] = {a, a};
  const std::size_t sizes[] = {64, 64};
  cudaMemcpyAttributes attributes{};
  std::size_t first = 0;
  REQUIRE(cudaMemcpyBatchAsync(to, from, sizes, 2, &attributes, &first, 1, s) == cudaSuccess);
  CHECK(fake_cuda::violations().size() == before + 1);
#endif
  fake_cuda::drain();
  for (auto* p : {a, b}) CHECK(cudaFreeHost(p) == cudaSuccess);
  CHECK(cudaFree(there) == cudaSuccess);
  CHECK(cudaStreamDestroy(s) == cudaSuccess);
}
