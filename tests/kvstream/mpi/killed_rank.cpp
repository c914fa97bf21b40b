// A rank dies in the middle of a transfer. OpenMPI ends a job with a rank unless mpirun is told --enable-recovery; then
// the other goes on, but must not finalise MPI, which would wait for the dead one.
#include <doctest/doctest.h>
#include <signal.h>

#include <cstdio>

#include "kvstream/transfers.hpp"
#include "ranks.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace std::chrono_literals;

TEST_CASE("mpi: a rank that is killed is gone after the silence" * doctest::skip()) {
  const link_options o{.chunk = 256 << 10, .greeting = 500ms, .silence = 500ms};
  run_body([](link_options o) -> awaitable<void> {
    window_table windows(co_await asio::this_coro::executor);
    auto memory = patterned(64 << 20);
    if (own_rank() == 1) {
      o.greeting = 5s;
      auto door = link_listener::listen(windows, "mpi://", o).value();
      auto link = co_await door.async_accept();
      auto w = windows.expose({memory}, window_access::both).value();
      co_await link.async_send(message_of(w.ref()));
      while (w.bytes_put() == 0) co_await asio::post(asio::deferred);
      ::raise(SIGKILL);
    }
    peer_link link;
    while (!link) {  // its program may begin later
      auto made = co_await async_connect(windows, "mpi://1", o, as_result);
      if (made) link = std::move(*made);
    }
    const auto there = window_in(co_await link.async_receive());
    const auto sent = co_await async_flush(memory, link.to(there), 0, {}, completion_level::visible, as_result);
    REQUIRE(sent.error() == errc::unavailable);
    REQUIRE((co_await link.async_closed(as_result)).has_value());
    REQUIRE(link.error() == errc::unavailable);
    REQUIRE((co_await async_connect(windows, "mpi://1", o, as_result)).error() == errc::deadline);
  }(o));
  std::puts("1 passed, 0 failed");
  std::fflush(stdout);
  std::_Exit(0);
}
