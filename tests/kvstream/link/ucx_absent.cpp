// Links over UCX where there is none: an error, not a program that doesn't start.
#include <doctest/doctest.h>

#include <cstdlib>

#include "cokv/kvstream/link_library.hpp"
#include "cokv/kvstream/peer_link.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "support/co_test.hpp"

using namespace cokv;
using namespace cokv::test;

TEST_CASE("ucx links: unsupported without the library, and in virtual time") {
  ::setenv("COKV_UCX_LIBRARY", "libno-such-ucp.so.0", 1);
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    window_table windows(ex);
    CHECK((co_await async_connect(windows, "ucx://127.0.0.1:1", {}, as_result)).error() == errc::unsupported);
    CHECK(link_listener::listen(windows, "ucx://127.0.0.1:0").error() == errc::unsupported);
    CHECK((co_await async_connect(windows, "ucx://x", {}, as_result)).error() == errc::invalid_argument);
  });
  CHECK(link_library("ucx").error() == errc::unsupported);
  ::unsetenv("COKV_UCX_LIBRARY");
}
