// A process by itself is a rank too, without mpirun: links to itself, cut off at any step.
#include <doctest/doctest.h>

#include "cokv/runtime/with.hpp"
#include "kvstream/transfers.hpp"
#include "ranks.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

awaitable<void> whole_exchange(bool& ended) {
  auto ex = co_await asio::this_coro::executor;
  window_table here(ex), there(ex);
  auto door = link_listener::listen(there, "mpi://").value();
  peer_link far, near;
  (void)co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    group.spawn([&]() -> awaitable<void> { far = co_await door.async_accept(); });
    near = co_await async_connect(here, "mpi://0", {.chunk = 64 << 10});
  });
  if (!far || !near) co_return;
  auto memory = blank(400'000), data = patterned(400'000), back = blank(400'000);
  auto w = there.expose({memory.slice(0, 100'001), memory.slice(100'001, 299'999)}, window_access::both).value();
  co_await async_flush(data, near.to(w.ref()), 0);
  CHECK(same(memory.bytes(), data.bytes()));
  co_await async_fetch(near.from(w.ref()), 0, back);
  CHECK(same(back.bytes(), data.bytes()));
  co_await near.async_send(link_message(10));
  co_await far.async_receive();
  co_await near.to(w.ref()).async_commit();
  co_await w.async_revoke();
  near.close();
  co_await far.async_closed();
  ended = true;
}

}  // namespace

TEST_CASE("mpi alone: a rank links to itself") {
  for (auto how : {driven::by_cokv_run, driven::by_context_run}) {
    bool ended = false;
    run_body(whole_exchange(ended), how);
    CHECK(ended);
  }
}

TEST_CASE("mpi alone: one context at a time uses MPI") {
  asio::io_context first(1);
  window_table windows(first.get_executor());
  auto door = link_listener::listen(windows, "mpi://").value();
  run_body([]() -> awaitable<void> {
    window_table others(co_await asio::this_coro::executor);
    CHECK(link_listener::listen(others, "mpi://").error() == errc::in_use);
    CHECK((co_await async_connect(others, "mpi://0", {}, as_result)).error() == errc::in_use);
  }());
  door.close();
  first.run();
}

TEST_CASE("mpi alone: a call that nobody takes ends with its deadline, a door that closes refuses") {
  run_body([]() -> awaitable<void> {
    window_table windows(co_await asio::this_coro::executor);
    const link_options hasty{.greeting = std::chrono::milliseconds(50)};
    CHECK((co_await async_connect(windows, "mpi://0", hasty, as_result)).error() == errc::unavailable);
    auto door = link_listener::listen(windows, "mpi://").value();
    door.close();
    CHECK((co_await door.async_accept(as_result)).error() == errc::closed);
    CHECK((co_await async_connect(windows, "mpi://0", hasty, as_result)).error() == errc::unavailable);
    CHECK(link_listener::listen(windows, "mpi://7").error() == errc::invalid_argument);
    CHECK((co_await async_connect(windows, "mpi://", {}, as_result)).error() == errc::invalid_argument);
  }());
}

TEST_CASE("mpi alone: cancelled after any number of handlers, everything ends") {
  std::size_t steps = 0;
  for (bool whole = false; !whole && steps < 5000; steps += 1 + steps / 20) {
    asio::io_context context(1);
    asio::cancellation_signal stop;
    bool over = false;
    asio::co_spawn(context, whole_exchange(whole),
                   asio::bind_cancellation_slot(stop.slot(), [&](std::exception_ptr) { over = true; }));
    for (std::size_t i = 0; i < steps && !over; ++i) context.poll_one();
    stop.emit(asio::cancellation_type::all);
    context.run();
    CHECK(over);
  }
  CHECK(steps > 50);
  CHECK(steps < 5000);
}

TEST_CASE("mpi alone: a context destroyed after any number of handlers leaves MPI to the next") {
  for (std::size_t steps = 0; steps < 1500; steps += 1 + steps / 20) {
    bool whole = false;
    asio::io_context context(1);
    asio::co_spawn(context, whole_exchange(whole), asio::detached);
    for (std::size_t i = 0; i < steps; ++i) context.poll_one();
  }
  bool ended = false;
  run_body(whole_exchange(ended));
  CHECK(ended);
}
