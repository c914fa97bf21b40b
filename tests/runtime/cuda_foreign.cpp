// How the CUDA backend lives with other engines and processes: on fake_cuda in every build, and unchanged on a device
// (label gpu).
#include <doctest/doctest.h>

#include <cstring>
#include <memory>

#include "support/cuda_machine.hpp"

using namespace cokv;
using namespace cokv::test;

TEST_CASE("cuda: another engine's stream is waited for, with what it enqueued by itself, and waits for ours") {
  on_cuda([](cuda_machine& m) {
    cudaStream_t native = nullptr;
    REQUIRE(cudaStreamCreateWithFlags(&native, cudaStreamNonBlocking) == cudaSuccess);
    {
      auto theirs = m.device.adopt_stream(native, {.name = "theirs"}).value();
      CHECK(theirs.native_handle() == native);
      auto ours = m.device.make_stream().value();
      auto a = m.pinned(64, 1), d = m.pinned(64, 0);
      auto b = m.device.allocate(64).value(), c = m.device.allocate(64).value();
      gate held(ours);
      CHECK(!ours.copy(b, a));
      CHECK(!theirs.wait(ours.record()));
      REQUIRE(cudaMemcpyAsync(c.data(), b.data(), 64, cudaMemcpyDefault, native) == cudaSuccess);
      const auto done = theirs.record();  // behind what was enqueued past us
      CHECK(!ours.wait(done));
      CHECK(!ours.copy(d, c));
      m.context.poll();
      CHECK(!done.ready());
      held.open();
      CHECK(!m.wait(ours.record()));
      CHECK(all_are(d, 1));
      CHECK(!m.wait(done));
    }
    m.device = {};
    m.context.poll();
    CHECK(cudaStreamSynchronize(native) == cudaSuccess);  // still theirs
    CHECK(cudaStreamDestroy(native) == cudaSuccess);
  });
}

TEST_CASE("cuda: another engine's event stands for what it was recorded behind, also when it is recorded again") {
  on_cuda([](cuda_machine& m) {
    auto s = m.device.make_stream().value();
    auto a = m.pinned(64, 1), b = m.pinned(64, 0);
    cudaEvent_t theirs = nullptr;
    REQUIRE(cudaEventCreateWithFlags(&theirs, cudaEventDisableTiming) == cudaSuccess);
    auto* native = static_cast<cudaStream_t>(s.native_handle());
    gate first(s);
    CHECK(!s.copy(b, a));
    REQUIRE(cudaEventRecord(theirs, native) == cudaSuccess);
    const auto adopted = m.device.adopt_event(theirs).value();
    CHECK(!adopted.ready());
    gate second(s);
    REQUIRE(cudaEventRecord(theirs, native) == cudaSuccess);
    first.open();
    CHECK(!m.wait(adopted));  // while the second is closed
    CHECK(all_are(b, 1));
    second.open();
    auto other = m.device.make_stream().value();
    const auto again = m.device.adopt_event(theirs).value();
    CHECK(!other.wait(again));
    CHECK(!m.wait(other.record()));
    CHECK(!m.wait(s.record()));
    CHECK(cudaEventDestroy(theirs) == cudaSuccess);
  });
}

TEST_CASE("cuda: another engine's memory is what CUDA says it is; pageable memory is refused") {
  on_cuda([](cuda_machine& m) {
    auto s = m.device.make_stream().value();
    void* tensor = nullptr;
    REQUIRE(cudaMalloc(&tensor, 4096) == cudaSuccess);
    {
      auto there = m.device.adopt_memory(tensor, 4096, std::shared_ptr<void>(tensor, [](void* p) { cudaFree(p); }));
      REQUIRE(there.has_value());
      CHECK(there->kind() == memory_kind::device);
      CHECK(!there->host_accessible());
      auto a = m.pinned(4096, 4), b = m.pinned(4096, 0);
      CHECK(m.device.adopt_memory(a.data(), 64, {}).value().kind() == memory_kind::pinned);
      CHECK(!s.copy(*there, a));
      CHECK(!s.copy(b, *there));
      CHECK(!m.wait(s.record()));
      CHECK(all_are(b, 4));
      auto pageable = buffer::host(4096);
      CHECK(m.device.adopt_memory(pageable.data(), 64, {}).error() == errc::wrong_device);
      CHECK(s.copy(pageable, a) == errc::wrong_device);
      CHECK(s.copy(a, pageable) == errc::wrong_device);
      CHECK(s.copy(a, a.slice(0, 5)) == errc::invalid_argument);
      CHECK(!s.status());
    }
  });
}

TEST_CASE("cuda: shared memory is mapped twice, once by its handle, and both see one") {
  on_cuda([](cuda_machine& m) {
    auto s = m.device.make_stream().value();
    auto pool = m.device.allocate(1 << 16, memory_kind::shared).value();
    CHECK(pool.kind() == memory_kind::shared);
    std::memset(pool.data(), 0, pool.size());
    auto handle = m.device.export_memory(pool.slice(4096, 8192)).value();
    CHECK(handle.offset == 4096);
    CHECK(handle.bytes == 8192);
    auto mapped = m.device.import_memory(handle).value();
    CHECK(mapped.data() != pool.data() + 4096);
    auto from = m.pinned(8192, 6);
    CHECK(!s.copy(mapped, from));
    CHECK(!m.wait(s.record()));
    CHECK(all_are(pool.slice(4096, 8192), 6));
    CHECK(pool.data()[0] == std::byte{0});
    CHECK(m.device.export_memory(from).error() == errc::unsupported);
  });
}

TEST_CASE("cuda: work that a library enqueues is an operation; what it says is the stream's error") {
  on_cuda([](cuda_machine& m) {
    auto s = m.device.make_stream().value();
    auto a = m.pinned(64, 1), b = m.device.allocate(64).value(), seen = m.pinned(64, 0);
    const buffer uses[] = {a, b};
    CHECK(!s.launch_native("kernel", uses, [&](void* native) {
      return cudaMemcpyAsync(b.data(), a.data(), 64, cudaMemcpyDefault, static_cast<cudaStream_t>(native)) ==
                     cudaSuccess
                 ? error_code()
                 : error_code(errc::device_failed);
    }));
    CHECK(!s.copy(seen, b));
    CHECK(!m.wait(s.record()));
    CHECK(all_are(seen, 1));
    CHECK(s.launch("host kernel", [] {}) == errc::unsupported);
    CHECK(s.launch_native("refused", uses, [](void*) { return error_code(errc::device_failed); }) ==
          errc::device_failed);
    CHECK(m.wait(s.record()) == errc::device_failed);
    CHECK(s.copy(b, a) == errc::device_failed);
  });
}

TEST_CASE("cuda: what a library had enqueued before it failed is done when its error is told") {
  on_cuda([](cuda_machine& m) {
    auto s = m.device.make_stream().value();
    auto a = m.pinned(64, 1), there = m.device.allocate(64).value(), b = m.pinned(64, 0);
    const buffer uses[] = {a, there, b};
    gate held(s);
    CHECK(s.launch_native("half", uses, [&](void* native) {
      auto* on = static_cast<cudaStream_t>(native);
      cudaMemcpyAsync(there.data(), a.data(), 64, cudaMemcpyDefault, on);
      cudaMemcpyAsync(b.data(), there.data(), 64, cudaMemcpyDefault, on);
      return error_code(errc::device_failed);
    }) == errc::device_failed);
    const auto over = s.record();
    CHECK(s.copy(b, a) == errc::device_failed);
    m.context.restart();
    m.context.poll();
    CHECK(!over.ready());
    held.open();
    CHECK(m.wait(over) == errc::device_failed);
    CHECK(all_are(b, 1));
  });
}
