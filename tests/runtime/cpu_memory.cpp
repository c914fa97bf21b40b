#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

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
  const int zeros = ::open("/dev/zero", O_RDONLY | O_CLOEXEC);
  REQUIRE(zeros >= 0);
  for (auto kind : {memory_kind::device, memory_kind::pinned, memory_kind::shared}) {
    CAPTURE(static_cast<int>(kind));
    const auto memory = cpu.allocate(bytes, kind).value();
    const auto before = faults();
    // By the system: what a sanitizer has of its own beside the memory is not touched.
    std::size_t written = 0;
    for (long n = 1; n > 0 && written < bytes; written += n)
      n = ::syscall(SYS_read, zeros, memory.data() + written, bytes - written);
    CHECK(written == bytes);
    CHECK(faults() - before < static_cast<long>(bytes / page / 4));
  }
  ::close(zeros);
}
