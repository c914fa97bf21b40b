// What streams and timelines do over and over allocates nothing once it has been done.
#include <doctest/doctest.h>

#include "cokv/runtime/device.hpp"
#include "cokv/runtime/timeline.hpp"
#include "support/allocation_counter.hpp"

using namespace cokv;
using test::allocation_counter;

namespace {

// Runs `once` until nothing is new to anybody, then counts.
template <class F>
awaitable<std::size_t> steady(F once) {
  for (int i = 0; i < 2000; ++i) co_await once();
  allocation_counter count;
  for (int i = 0; i < 1000; ++i) co_await once();
  co_return count.made();
}

template <class F>
std::size_t allocations(F body) {
  asio::io_context ctx(1);
  std::size_t made = 1;
  asio::co_spawn(ctx, [&]() -> awaitable<void> { made = co_await body(ctx); }, asio::detached);
  ctx.run();
  return made;
}

}  // namespace

TEST_CASE("steady state: the counter counts, on every thread") {
  if (!allocation_counter::available()) return;
  allocation_counter count;
  std::thread([] { delete new std::string(1000, 'x'); }).join();
  CHECK(count.made() >= 2);
}

TEST_CASE("steady state: a wait on a timeline, reached or not, allocates nothing") {
  if (!allocation_counter::available()) return;
  CHECK(allocations([](asio::io_context& ctx) -> awaitable<std::size_t> {
          timeline t(ctx.get_executor());
          std::uint64_t at = 0;
          co_return co_await steady([&]() -> awaitable<void> {
            co_await t.async_wait(at);
            ++at;
            asio::post(ctx, [&] { t.advance(at); });
            co_await t.async_wait(at);
          });
        }) == 0);
}

TEST_CASE("steady state: copy, record and async_wait on the CPU's streams allocate nothing") {
  if (!allocation_counter::available()) return;
  const auto made = allocations([](asio::io_context& ctx) -> awaitable<std::size_t> {
    auto device = open_device(ctx.get_executor(), "cpu", {.threads = 1}).value();
    auto s = device.make_stream().value();
    auto from = device.allocate(4096).value(), to = device.allocate(4096).value();
    co_return co_await steady([&]() -> awaitable<void> {
      for (int i = 0; i < 3; ++i)
        if (s.copy(to, from)) throw std::logic_error("refused");
      event copied = s.record();
      co_await copied.async_wait();
    });
  });
  CHECK(made < 10);  // oneTBB may wake another of its threads meanwhile
}

TEST_CASE("steady state: a kernel that captures little allocates nothing") {
  if (!allocation_counter::available()) return;
  const auto made = allocations([](asio::io_context& ctx) -> awaitable<std::size_t> {
    auto device = open_device(ctx.get_executor(), "cpu", {.threads = 1}).value();
    auto s = device.make_stream().value();
    auto memory = device.allocate(4096).value();
    co_return co_await steady([&]() -> awaitable<void> {
      s.launch("touch", [memory, value = 1] { memory.bytes()[0] = std::byte(value); });
      co_await s.async_drain();
    });
  });
  CHECK(made < 10);
}
