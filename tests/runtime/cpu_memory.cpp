#include <doctest/doctest.h>
#include <sys/resource.h>

#include "cokv/runtime/asio.hpp"
#include "cokv/runtime/device.hpp"
#include "cokv/runtime/result.hpp"

using namespace cokv;

TEST_CASE("cpu device: memory is there before it is first written, of whatever kind") {
  const auto faults = [] {
    rusage used{};
    getrusage(RUSAGE_SELF, &used);
    return used.ru_minflt;
  };
  constexpr std::size_t bytes = 8 << 20, page = 4096;
  asio::io_context context(1);
  auto cpu = open_device(context.get_executor(), "cpu", {.threads = 1}).value();
  for (auto kind : {memory_kind::device, memory_kind::pinned, memory_kind::shared}) {
    CAPTURE(static_cast<int>(kind));
    const auto memory = cpu.allocate(bytes, kind).value();
    const auto before = faults();
    for (std::size_t at = 0; at < bytes; at += page)
      *reinterpret_cast<volatile std::byte*>(memory.data() + at) = std::byte{1};
    CHECK(faults() - before < static_cast<long>(bytes / page / 4));  // a sanitizer has memory of its own beside it
  }
}
