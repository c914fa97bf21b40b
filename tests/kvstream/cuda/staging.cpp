// Stores behind memory of a CUDA device, by way of staging: on fake_cuda in every build, and unchanged on a device
// (label gpu).
#include <doctest/doctest.h>

#include "cokv/kvstream/memory_store.hpp"
#include "cokv/kvstream/staged_store.hpp"
#include "cokv/runtime/with.hpp"
#include "kvstream/cuda/staging_bed.hpp"
#include "support/cuda_machine.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

void run_on_loop(cuda_machine& m, awaitable<void> body) {
  bool over = false;
  asio::co_spawn(m.context, std::move(body), [&](std::exception_ptr failed) {
    CHECK(!failed);
    over = true;
  });
  m.run();
  CHECK(over);
}

awaitable<void> there_and_back(device dev, std::size_t keys_a_chunk, std::size_t buffers) {
  auto bed = staging_bed::make(dev, keys_a_chunk, buffers).value();
  CHECK(!co_await bed.write(0, 7));
  CHECK(co_await bed.read(0, 9) == 7);
  CHECK(co_await bed.read(3, 1) == 1);
  CHECK((co_await bed.staged->async_remove(bed.ns, contract_keys(4, 1)[0], as_result)).has_value());
  CHECK(co_await bed.read(0, 7) == 4);
  CHECK(!co_await bed.write(0, 7));
  bed.behind->stored_segment(bed.ns, contract_keys(5, 1)[0], 1).data()[7] ^= std::byte{1};
  CHECK(co_await bed.read(0, 7) == 5);
}

awaitable<void> all_at_once(device dev, std::size_t buffers) {
  auto bed = staging_bed::make(dev, 2, buffers).value();
  CHECK(!co_await bed.write(0, 10));
  auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    for (std::uint32_t i = 0; i < 4; ++i) {
      group.spawn([&bed, i]() -> awaitable<void> { CHECK(!co_await bed.write(100 * i + 100, 5)); });
      group.spawn([&bed, i]() -> awaitable<void> { CHECK(co_await bed.read(i, 6) == 6); });
    }
    co_return;
  });
  CHECK(!v.error());
  for (std::uint32_t i = 0; i < 4; ++i) CHECK(co_await bed.read(100 * i + 100, 6) == 5);
}

}  // namespace

TEST_CASE("cuda staging: what is written from a device's memory is read into it, and damage never is") {
  on_cuda([](cuda_machine& m) {
    run_on_loop(m, there_and_back(m.device, 2, 2));
    run_on_loop(m, there_and_back(m.device, 3, 1));
  });
}

TEST_CASE("cuda staging: readers and writers at once, with a buffer or two between them") {
  on_cuda([](cuda_machine& m) {
    run_on_loop(m, all_at_once(m.device, 1));
    run_on_loop(m, all_at_once(m.device, 2));
  });
}
