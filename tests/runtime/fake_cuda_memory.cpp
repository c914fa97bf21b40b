// Memory of the CUDA backend on fake_cuda: its kinds, its end, and what other processes say about theirs.
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include "cokv/runtime/device.hpp"
#include "support/fake_cuda_fixture.hpp"

using namespace cokv;
namespace fake_cuda = cokv::test::fake_cuda;
using fake_cuda::fixture;

TEST_CASE("fake_cuda: memory, its kinds and its end; no driver is no device, in one line") {
  {
    fixture f;
    auto block = f.dev.allocate(100).value();
    CHECK(block.kind() == memory_kind::device);
    CHECK(!block.host_accessible());
    CHECK(f.dev.allocate(std::size_t{2} << 30).error() == errc::out_of_memory);
    CHECK(f.dev.allocate(~std::size_t{0}, memory_kind::exportable).error() == errc::out_of_memory);
    CHECK(f.dev.allocate(10, memory_kind::host).value().kind() == memory_kind::host);
    CHECK(f.dev.allocate(0).value().empty());
    CHECK(explain_device("cuda:0") == "cuda:0: fake, 1024 MiB, completion by pinned words");
    CHECK(open_device(f.ctx.get_executor(), "cuda:1").error() == errc::no_device);
  }
  CHECK(fake_cuda::live_allocations() == 0);
  asio::io_context ctx;
  fake_cuda::reset({.devices = 0});
  CHECK(open_device(ctx.get_executor(), "cuda:0").error() == errc::no_device);
  CHECK(explain_device("cuda:0") == "cuda:0: no device: some error");
}

TEST_CASE("fake_cuda: exportable memory is whole granules; its handle is what the other process checks") {
  {
    fixture f;
    auto pool = f.dev.allocate(3 << 20, memory_kind::exportable).value();
    CHECK(pool.kind() == memory_kind::exportable);
    CHECK(!pool.host_accessible());
    auto handle = f.dev.export_memory(pool.slice(4096, 100)).value();
    CHECK(handle.kind == memory_kind::exportable);
    CHECK(handle.offset == 4096);
    auto mapped = f.dev.import_memory(handle).value();
    CHECK(mapped.size() == 100);
    CHECK(mapped.data() == pool.data() + 4096);
    auto lying = handle;
    lying.bytes = 4 << 20;
    CHECK(f.dev.import_memory(lying).error() == errc::out_of_range);
    lying.offset = ~std::size_t{0};
    CHECK(f.dev.import_memory(lying).error() == errc::out_of_range);
    auto forged = handle;
    forged.ipc = {};
    CHECK(f.dev.import_memory(forged).error() == errc::invalid_argument);
    auto plain = f.dev.allocate(100).value();
    CHECK(f.dev.export_memory(plain).error() == errc::unsupported);
    auto disguised = buffer::adopt(plain.data(), 100, memory_kind::exportable, {});
    CHECK(f.dev.export_memory(disguised).error() == errc::unsupported);
  }
  CHECK(fake_cuda::live_allocations() == 0);
  CHECK(fake_cuda::violations().empty());
}

TEST_CASE("fake_cuda: memory that can't be registered is an error, and goes") {
  {
    fixture f;
    fake_cuda::fail_call("cudaHostRegister", 1, cudaErrorMemoryAllocation);
    CHECK(f.dev.allocate(4096, memory_kind::shared).error() == errc::out_of_memory);
    fake_cuda::fail_call("cudaHostRegister", 1, cudaErrorIllegalAddress);
    CHECK(f.dev.allocate(4096, memory_kind::shared).error().value() == cudaErrorIllegalAddress);
    CHECK(f.dev.allocate(4096, memory_kind::shared).has_value());
  }
  CHECK(fake_cuda::live_allocations() == 0);
}

TEST_CASE("fake_cuda: buffers outlive the device, its context, and its streams") {
  buffer block, scratch;
  {
    fixture f;
    block = f.dev.allocate(100).value();
    scratch = f.dev.make_stream().value().allocate(100).value();
  }
  CHECK(fake_cuda::live_allocations() == 2);
  block = {};
  scratch = {};
  CHECK(fake_cuda::live_allocations() == 0);
  CHECK(fake_cuda::live_streams() == 0);
  CHECK(fake_cuda::violations().empty());
}
