// Links over MPI where there is none: an error, not a program that doesn't start.
#include <doctest/doctest.h>

#include <cstdlib>

#include "cokv/kvstream/link_library.hpp"
#include "cokv/kvstream/peer_link.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "support/co_test.hpp"

using namespace cokv;
using namespace cokv::test;

TEST_CASE("mpi links: unsupported without the library, and in virtual time") {
  ::setenv("COKV_MPI_LIBRARY", "libno-such-mpi.so.40", 1);
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    window_table windows(ex);
    CHECK((co_await async_connect(windows, "mpi://0", {}, as_result)).error() == errc::unsupported);
    CHECK(link_listener::listen(windows, "mpi://").error() == errc::unsupported);
    CHECK((co_await async_connect(windows, "mpi://x", {}, as_result)).error() == errc::invalid_argument);
  });
  CHECK(link_library("mpi").error() == errc::unsupported);
  ::unsetenv("COKV_MPI_LIBRARY");
}
