// Where a backend for CUDA goes wrong in ways that only show later: loss found by an enqueue, words taken over, buffers
// whose owners come back, captures of others, memory of before a reset.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <cstring>
#include <optional>

#include "cokv/runtime/device.hpp"
#include "cokv/runtime/progress.hpp"
#include "support/death.hpp"
#include "support/fake_cuda_fixture.hpp"

using namespace cokv;
namespace fake_cuda = cokv::test::fake_cuda;
using fake_cuda::first_violation, fake_cuda::fixture, fake_cuda::signals;

namespace {

// Calls f when the last reference is gone.
template <class F>
buffer with_owner(buffer b, F f) {
  auto* data = b.data();
  const auto n = b.size();
  auto owner = std::shared_ptr<void>(data, [b = std::move(b), f](void*) mutable { f(); });
  return buffer::adopt(data, n, memory_kind::pinned, std::move(owner));
}

// The stream does nothing until the host writes a word.
class word_gate {
 public:
  explicit word_gate(stream& s) {
    REQUIRE(cudaHostAlloc(reinterpret_cast<void**>(&word_), sizeof *word_, 0) == cudaSuccess);
    *word_ = 0;
    void* found = nullptr;
    cudaDriverEntryPointQueryResult status;
    REQUIRE(cudaGetDriverEntryPointByVersion("cuStreamWaitValue64", &found, 12000, 0, &status) == cudaSuccess);
    auto* wait_value = reinterpret_cast<CUresult (*)(CUstream, CUdeviceptr, cuuint64_t, unsigned)>(found);
    REQUIRE(!s.launch_native("held", {}, [&](void* native) {
      REQUIRE(wait_value(static_cast<CUstream>(native), reinterpret_cast<CUdeviceptr>(word_), 1, 0) == CUDA_SUCCESS);
    }));
  }
  ~word_gate() {
    open();
    fake_cuda::drain();
    CHECK(cudaFreeHost(word_) == cudaSuccess);
  }
  word_gate(const word_gate&) = delete;
  void open() { __atomic_store_n(word_, 1, __ATOMIC_RELEASE); }

 private:
  std::uint64_t* word_ = nullptr;
};

}  // namespace

TEST_CASE("fake_cuda: a loss that an enqueue finds completes who waits for what came before it") {
  for (auto signal : signals) {
    fixture f(signal);
    auto s = f.dev.make_stream().value();
    auto a = f.filled(64, 1), b = f.filled(64, 0);
    CHECK(!s.copy(b, a));
    int called = 0;
    s.record().async_wait([&](error_code) { ++called; });
    fake_cuda::lose_device(cudaErrorIllegalAddress);
    CHECK(s.copy(b, a));
    f.look();
    CHECK(called == 1);
  }
}

TEST_CASE("fake_cuda: an operation whose end can't be marked fails when it is over, and what came before it is well") {
  for (auto signal : signals) {
    fixture f(signal);
    auto s = f.dev.make_stream().value();
    auto a = f.filled(64, 1), b = f.dev.allocate(64).value();
    CHECK(!s.copy(b, a));
    const auto first = s.record();
    fake_cuda::fail_call(signal == completion_signal::word ? "cuStreamWriteValue64" : "cudaEventRecord", 1,
                         cudaErrorInvalidValue);
    auto c = f.dev.allocate(64).value();
    std::weak_ptr<void> kept;
    {
      auto owner = std::make_shared<buffer>(c);
      kept = owner;
      CHECK(!s.copy(buffer::adopt(c.data(), 64, c.kind(), std::move(owner)), a));
    }
    const auto unmarked = s.record();
    CHECK(s.copy(b, a).value() == cudaErrorInvalidValue);
    CHECK(!unmarked.ready());
    bool done = false;
    first.async_wait([&](error_code ec) { done = !ec; });
    CHECK(progress::of(f.ctx.get_executor()).awaited());
    CHECK(fake_cuda::calls("cudaLaunchHostFunc") == 1);  // nobody polls: it must be armed
    f.look();
    CHECK(!done);
    CHECK(!unmarked.ready());
    CHECK(!kept.expired());
    fake_cuda::drain();
    f.look();
    CHECK(done);
    CHECK(unmarked.ready());
    CHECK(unmarked.status().value() == cudaErrorInvalidValue);
    CHECK(kept.expired());
  }
}

TEST_CASE("fake_cuda: a word is not given to another stream while a stream waits for it") {
  fixture f(completion_signal::word);
  auto b = f.dev.make_stream().value();
  auto x = f.filled(64, 1), y = f.filled(64, 0);
  word_gate held(b);
  event done;
  {
    auto a = f.dev.make_stream().value();
    CHECK(!a.copy(y, x));
    const auto first = a.record();
    CHECK(!a.copy(y, x));
    CHECK(!b.wait(first));  // not the last of a: by the word
    CHECK(!b.copy(y, x));
    done = b.record();
    fake_cuda::drain();  // a is done, b is held
    f.look();
    CHECK(a.record().ready());
    CHECK(!done.ready());
  }
  auto c = f.dev.make_stream().value();  // lets go of a
  auto d = f.dev.make_stream().value();  // takes its word
  held.open();
  fake_cuda::drain();
  f.look();
  CHECK(done.ready());
  CHECK(!d.copy(y, x));
}

TEST_CASE("fake_cuda: words are not freed with a device while another one's stream waits for them") {
  fixture f(completion_signal::word);
  auto b = f.dev.make_stream().value();
  auto x = f.filled(64, 1), y = f.filled(64, 0);
  word_gate held(b);
  {
    auto second = open_device(f.ctx.get_executor(), "cuda:0", {.signal = completion_signal::word}).value();
    auto a = second.make_stream().value();
    CHECK(!a.copy(y, x));
    const auto first = a.record();
    CHECK(!a.copy(y, x));
    CHECK(!b.wait(first));
    fake_cuda::drain();
    f.look();
  }
  auto third = open_device(f.ctx.get_executor(), "cuda:0").value();  // lets go of the second
  CHECK(first_violation() == "");
}

TEST_CASE("fake_cuda: a context that ends keeps buffers of copies that it could not wait for") {
  for (auto signal : signals) {
    {
      fixture f(signal);
      auto s = f.dev.make_stream().value();
      CHECK(!s.copy(f.filled(64, 0), f.filled(64, 1)));
      fake_cuda::step();
      fake_cuda::fail_call("cudaStreamSynchronize", 1, cudaErrorStreamCaptureUnsupported);
    }
    CHECK(first_violation() == "");
  }
}

TEST_CASE("fake_cuda: what enqueues while its stream closes is refused, or waited for") {
  for (auto signal : signals) {
    {
      fixture f(signal);
      auto s = f.dev.make_stream().value();
      auto x = f.filled(64, 1);
      auto late = std::make_shared<std::optional<stream>>(s);
      {
        auto to = with_owner(f.filled(64, 0), [late, x]() mutable {
          auto s = std::exchange(*late, std::nullopt);
          // Memory of its own, so that only the stream keeps it.
          void* p = nullptr;
          if (cudaHostAlloc(&p, 64, 0) != cudaSuccess) return;
          auto own =
              buffer::adopt(p, 64, memory_kind::pinned, std::shared_ptr<void>(p, [](void* p) { cudaFreeHost(p); }));
          (void)s->copy(own, x);
        });
        CHECK(!s.copy(to, x));
      }
      late->emplace(s);
    }
    CHECK(first_violation() == "");
  }
}

TEST_CASE("fake_cuda: a buffer that makes a stream when it goes does not destroy the stream that lets go of it") {
  for (auto signal : signals) {
    fixture f(signal);
    auto x = f.filled(64, 1);
    bool made = false;
    std::size_t destroyed = 0;
    {
      auto s = f.dev.make_stream().value();
      auto to = with_owner(f.filled(64, 0), [&] {
        made = f.dev.make_stream().has_value();
        destroyed = fake_cuda::calls("cudaStreamDestroy");
      });
      CHECK(!s.copy(to, x));
    }
    fake_cuda::drain();
    f.look();  // under ASan: a use after free
    CHECK(made);
    CHECK(destroyed == 0);
  }
}

TEST_CASE("fake_cuda: a handle may outlive its context") {
  std::optional<stream> s;
  {
    fixture f;
    s = f.dev.make_stream().value();
    CHECK(!s->copy(f.filled(8, 0), f.filled(8, 1)));
  }
  s.reset();  // under ASan: a use after free of the context's directory
}

TEST_CASE("fake_cuda: what others enqueued on a lost stream is no success") {
  for (auto signal : signals) {
    fixture f(signal);
    cudaStream_t native = nullptr;
    REQUIRE(cudaStreamCreateWithFlags(&native, cudaStreamNonBlocking) == cudaSuccess);
    auto theirs = f.dev.adopt_stream(native).value();
    auto other = f.dev.make_stream().value();
    auto a = f.filled(8, 1), b = f.dev.allocate(8).value();
    REQUIRE(cudaMemcpyAsync(b.data(), a.data(), 8, cudaMemcpyDefault, native) == cudaSuccess);
    CHECK(!other.copy(b, a));
    other.record().async_wait([](error_code) {});
    fake_cuda::lose_device(cudaErrorIllegalAddress);
    f.ctx.run();
    const auto e = theirs.record();
    CHECK((!e.ready() || e.status()));
    CHECK(theirs.status().value() == cudaErrorIllegalAddress);
  }
}

TEST_CASE("fake_cuda: a call that another engine's capture forbids does not lose the device") {
  fixture f;
  fake_cuda::fail_call("cudaMalloc", 1, cudaErrorStreamCaptureUnsupported);
  fake_cuda::fail_call("cudaEventQuery", 1, cudaErrorStreamCaptureUnsupported);
  CHECK(!f.dev.allocate(64).has_value());
  CHECK(f.dev.allocate(64).has_value());
}

TEST_CASE("fake_cuda: a buffer of an earlier context is not freed after a reset") {
  buffer old;
  {
    fixture f;
    old = f.filled(64, 1);
  }
  {
    asio::io_context ctx{1};
    auto d = open_device(ctx.get_executor(), "cuda:0").value();
    auto s = d.make_stream().value();
    fake_cuda::lose_device(cudaErrorIllegalAddress);
    CHECK(s.copy(d.allocate(8, memory_kind::host).value(), {}));
    CHECK(!d.allocate(8).has_value());
    progress::of(ctx.get_executor()).poll();
    CHECK(open_device(ctx.get_executor(), "cuda:0").has_value());
  }
  old = {};
  CHECK(first_violation() == "");
}

TEST_CASE("fake_cuda: a device that was lost while nothing was in flight can be opened again") {
  {
    fixture f;
    fake_cuda::lose_device(cudaErrorIllegalAddress);  // another engine's kernel
  }
  asio::io_context ctx{1};
  CHECK(open_device(ctx.get_executor(), "cuda:0").has_value());
}

TEST_CASE("fake_cuda: pinned memory that somebody holds is there after the device was reset") {
  fixture f;
  auto held = f.filled(4096, 7);
  auto* bytes = held.data();
  fake_cuda::lose_device(cudaErrorIllegalAddress);
  CHECK(!f.dev.allocate(8).has_value());
  progress::of(f.ctx.get_executor()).poll();
  f.dev = {};
  auto again = open_device(f.ctx.get_executor(), "cuda:0");
  if (again) {  // or refused while it is held
    bool same = true;
    for (int i = 0; i < 4096; ++i) same = same && bytes[i] == std::byte{7};
    CHECK(same);
  }
}

TEST_CASE("fake_cuda: a stream of ours that is captured through its native handle is refused as an adopted one") {
  fixture f;
  auto s = f.dev.make_stream().value();
  auto a = f.filled(8, 1), b = f.filled(8, 0);
  auto* native = s.native_handle();
  fake_cuda::set_capturing(native, true);
  CHECK(s.copy(b, a) == errc::unsupported);
  CHECK(s.record().status() == errc::unsupported);
  CHECK(s.allocate(8).error() == errc::unsupported);
  fake_cuda::set_capturing(native, false);
}

TEST_CASE("fake_cuda: records count for the bound on work in flight") {
  fixture f;
  cudaStream_t native = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&native, cudaStreamNonBlocking) == cudaSuccess);
  {
    auto s = f.dev.adopt_stream(native, {.max_in_flight = 2}).value();
    for (int i = 0; i < 50; ++i) (void)s.record();
    CHECK(s.in_flight() <= 2);
  }
}

TEST_CASE("fake_cuda: memory that CUDA doesn't know is refused whatever it calls itself") {
  fixture f;
  auto s = f.dev.make_stream().value();
  auto cpu = open_device(f.ctx.get_executor(), "cpu", {.threads = 1}).value();
  auto a = f.filled(8, 1);
  auto pinned = cpu.allocate(8, memory_kind::pinned), shared = cpu.allocate(8, memory_kind::shared);
  if (pinned) CHECK(s.copy(*pinned, a) == errc::wrong_device);
  if (shared) CHECK(s.copy(*shared, a) == errc::wrong_device);
}

TEST_CASE("fake_cuda: making a stream does not wait for the device") {
  for (auto signal : signals) {
    fixture f(signal);
    {
      auto s = f.dev.make_stream().value();
      CHECK(!s.copy(f.filled(8, 0), f.filled(8, 1)));
      s.record().async_wait([](error_code) {});
      // Done, but another engine's host function is before ours: CUDA runs them one after the other.
      for (int i = 0; i < 3; ++i) fake_cuda::step();
      progress::of(f.ctx.get_executor()).poll();
      REQUIRE(s.record().ready());
    }
    f.ctx.poll();
    const auto before = fake_cuda::calls("cudaStreamSynchronize");
    auto t = f.dev.make_stream().value();
    CHECK(fake_cuda::calls("cudaStreamSynchronize") == before);
  }
}

TEST_CASE("fake_cuda: absurd sizes of shared memory are out_of_memory") {
  fixture f;
  CHECK(f.dev.allocate(~std::size_t{0}, memory_kind::shared).error() == errc::out_of_memory);
}

TEST_CASE("fake_cuda: memory in an adopted stream's order goes back also when its owner destroyed the stream") {
  {
    fixture f;
    cudaStream_t native = nullptr;
    REQUIRE(cudaStreamCreateWithFlags(&native, cudaStreamNonBlocking) == cudaSuccess);
    buffer scratch;
    {
      auto s = f.dev.adopt_stream(native).value();
      scratch = s.allocate(64).value();
    }
    (void)f.dev.make_stream();
    CHECK(cudaStreamSynchronize(native) == cudaSuccess);
    CHECK(cudaStreamDestroy(native) == cudaSuccess);
    scratch = {};
    fake_cuda::drain();
    CHECK(first_violation() == "");
  }
  CHECK(fake_cuda::live_allocations() == 0);
}

TEST_CASE("fake_cuda: a stream of another device is waited for with an event of that device") {
  for (auto signal : signals) {
    fixture f(signal, {.devices = 2});
    auto other = open_device(f.ctx.get_executor(), "cuda:1", {.signal = signal}).value();
    auto a = other.make_stream().value();
    auto b = f.dev.make_stream().value();
    auto x = f.filled(8, 1), y = f.filled(8, 0);
    CHECK(!a.copy(y, x));
    const auto ec = b.wait(a.record());
    CHECK((!ec || ec == errc::wrong_device));
    CHECK(!b.status());
    CHECK(first_violation() == "");
  }
}

TEST_CASE("fake_cuda: asking leaves no error behind for the next kernel launch on this thread") {
  for (auto signal : signals) {
    fixture f(signal);
    auto s = f.dev.make_stream().value();
    CHECK(!s.copy(f.filled(8, 0), f.filled(8, 1)));
    for (int i = 0; i < 10000; ++i) progress::of(f.ctx.get_executor()).poll();
    CHECK(cudaGetLastError() == cudaSuccess);
  }
}

TEST_CASE("fake_cuda: a stream that its owner captures is not asked, which would end the capture") {
  fixture f(completion_signal::word);
  cudaStream_t native = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&native, cudaStreamNonBlocking) == cudaSuccess);
  {
    auto s = f.dev.adopt_stream(native).value();
    CHECK(!s.copy(f.filled(8, 0), f.filled(8, 1)));
    fake_cuda::set_capturing(native, true);
    const auto before = fake_cuda::calls("cudaStreamQuery");
    for (int i = 0; i < 10000; ++i) progress::of(f.ctx.get_executor()).poll();
    CHECK(fake_cuda::calls("cudaStreamQuery") == before);
    fake_cuda::set_capturing(native, false);
  }
}

TEST_CASE("fake_cuda: exportable memory of before a reset takes no entry of what came after it") {
  fixture f;
  std::vector<buffer> old;
  for (int i = 0; i < 8; ++i) old.push_back(f.dev.allocate(100, memory_kind::exportable).value());
  fake_cuda::lose_device(cudaErrorIllegalAddress);
  CHECK(!f.dev.allocate(8).has_value());
  progress::of(f.ctx.get_executor()).poll();
  f.dev = {};
  auto again = open_device(f.ctx.get_executor(), "cuda:0").value();
  std::vector<buffer> fresh;
  for (int i = 0; i < 8; ++i) fresh.push_back(again.allocate(100, memory_kind::exportable).value());
  old.clear();
  for (auto& b : fresh) CHECK(again.export_memory(b).has_value());
}

TEST_CASE("fake_cuda: what launch_native() calls may not use the cokv stream: that is a rule, and names itself") {
  for (auto signal : signals) {
    fixture f(signal);
    auto s = f.dev.make_stream().value();
    auto a = f.filled(8, 1), b = f.filled(8, 0);
    const auto rule = "uses the native stream";
    CHECK(test::last_words([&] { (void)s.launch_native("k", {}, [&](void*) { (void)s.copy(b, a); }); }).find(rule) !=
          std::string::npos);
    (void)s.native_handle();
    CHECK(test::last_words([&] { (void)s.launch_native("k", {}, [&](void*) { (void)s.record(); }); }).find(rule) !=
          std::string::npos);
  }
}
