#include <doctest/doctest.h>

#include <future>

#include "cokv/runtime/asio.hpp"
#include "cokv/runtime/device.hpp"
#include "cokv/runtime/result.hpp"

using namespace cokv;
using namespace std::chrono_literals;

TEST_CASE("cpu device: what an urgent stream has to do does not wait for threads that compute") {
  asio::io_context context(1);
  auto cpu = open_device(context.get_executor(), "cpu", {.threads = 1}).value();
  auto compute = cpu.make_stream({.name = "compute"}).value();
  auto urgent = cpu.make_stream({.name = "urgent", .priority = -1}).value();
  auto other = cpu.make_stream({.name = "other"}).value();
  std::promise<void> begun, go_on, done;
  std::atomic<bool> also = false;
  auto gate = go_on.get_future();
  REQUIRE(!compute.launch("computes", [&] {
    begun.set_value();
    gate.wait();
  }));
  begun.get_future().wait();
  REQUIRE(!other.launch("computes too", [&] { also = true; }));
  REQUIRE(!urgent.launch("urgent", [&] { done.set_value(); }));
  CHECK(done.get_future().wait_for(10s) == std::future_status::ready);
  CHECK_FALSE(also);
  go_on.set_value();
  bool ended = false;
  other.record().async_wait([&](error_code ec) { ended = !ec; });
  context.run();
  CHECK(ended);
  CHECK(also);
}
