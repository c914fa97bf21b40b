// What every waiting operation of the runtime promises (tests/support/operation_matrix.hpp).
#include <doctest/doctest.h>

#include "cokv/runtime/channel.hpp"
#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/device.hpp"
#include "cokv/runtime/semaphore.hpp"
#include "cokv/runtime/staging_pool.hpp"
#include "cokv/runtime/timeline.hpp"
#include "support/operation_matrix.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace std::chrono_literals;

namespace {

// A stream that is busy until the kernel's time is over.
struct busy_stream {
  explicit busy_stream(sim_context& ctx) : device(open_device(ctx.get_executor(), "sim:h100").value()) {
    s = device.make_stream({.max_in_flight = 1}).value();
    CHECK(!s.launch("kernel", [] {}, {.flops = 1e12}));
  }
  cokv::device device;
  stream s;
};

}  // namespace

TEST_CASE("timeline: async_wait keeps the promises of an operation") {
  check_operation("timeline", [](sim_context& ctx) {
    auto t = std::make_shared<timeline>(ctx.get_executor());
    return matrix_row([t](auto&& token) { return t->async_wait(1, std::forward<decltype(token)>(token)); },
                      [t] { t->advance(1); });
  });
  check_operation("timeline, reached", [](sim_context& ctx) {
    auto t = std::make_shared<timeline>(ctx.get_executor());
    t->advance(1);
    auto row = matrix_row([t](auto&& token) { return t->async_wait(1, std::forward<decltype(token)>(token)); });
    row.only_a_post = true;
    return row;
  });
}

TEST_CASE("event, stream: async_wait, async_room and async_drain keep the promises of an operation") {
  check_operation("event", [](sim_context& ctx) {
    auto b = std::make_shared<busy_stream>(ctx);
    return matrix_row([b](auto&& token) { return b->s.record().async_wait(std::forward<decltype(token)>(token)); });
  });
  check_operation("room", [](sim_context& ctx) {
    auto b = std::make_shared<busy_stream>(ctx);
    return matrix_row([b](auto&& token) { return b->s.async_room(std::forward<decltype(token)>(token)); });
  });
  check_operation("drain", [](sim_context& ctx) {
    auto b = std::make_shared<busy_stream>(ctx);
    return matrix_row([b](auto&& token) { return b->s.async_drain(std::forward<decltype(token)>(token)); });
  });
}

TEST_CASE("device: async_allocate keeps the promises of an operation") {
  check_operation("async_allocate", [](sim_context& ctx) {
    auto d = open_device(ctx.get_executor(), "sim:h100").value();
    return matrix_row([d](auto&& token) {
      return d.async_allocate(4096, memory_kind::pinned, std::forward<decltype(token)>(token));
    });
  });
}

TEST_CASE("clock: async_wait_for keeps the promises of an operation") {
  check_operation("clock", [](sim_context& ctx) {
    auto ex = ctx.get_executor();
    return matrix_row(
        [ex](auto&& token) { return clock::of(ex).async_wait_for(1s, std::forward<decltype(token)>(token)); });
  });
}

TEST_CASE("channel: async_send and async_receive keep the promises of an operation") {
  check_operation("send", [](sim_context& ctx) {
    auto c = std::make_shared<channel<int>>(ctx.get_executor(), 0);
    return matrix_row([c](auto&& token) { return c->async_send(1, std::forward<decltype(token)>(token)); },
                      [c] { (void)c->try_receive(); });
  });
  check_operation("receive", [](sim_context& ctx) {
    auto c = std::make_shared<channel<int>>(ctx.get_executor(), 1);
    return matrix_row([c](auto&& token) { return c->async_receive(std::forward<decltype(token)>(token)); },
                      [c] { (void)c->try_send(1); });
  });
}

TEST_CASE("semaphore, staging_pool: async_acquire keeps the promises of an operation") {
  check_operation("semaphore", [](sim_context& ctx) {
    auto s = std::make_shared<semaphore>(ctx.get_executor(), 1);
    auto held = std::make_shared<std::optional<permit>>(s->try_acquire(1));
    return matrix_row([s](auto&& token) { return s->async_acquire(1, std::forward<decltype(token)>(token)); },
                      [held] { held->reset(); });
  });
  check_operation("staging_pool", [](sim_context& ctx) {
    auto d = open_device(ctx.get_executor(), "sim:h100").value();
    auto p = std::make_shared<staging_pool>(staging_pool::make(d, 64, 1).value());
    auto held = std::make_shared<std::optional<buffer>>(p->try_acquire());
    return matrix_row([p](auto&& token) { return p->async_acquire(std::forward<decltype(token)>(token)); },
                      [held] { held->reset(); });
  });
}
