// NCCL where there is none: an error, not a program that doesn't start.
#include <doctest/doctest.h>

#include <cstdlib>

#include "cokv/kvstream/link_library.hpp"
#include "cokv/kvstream/peer_link.hpp"
#include "cokv/runtime/error.hpp"

using namespace cokv;

TEST_CASE("nccl: unsupported without the library; with it, its version") {
  ::setenv("COKV_NCCL_LIBRARY", "libno-such-nccl.so.2", 1);
  CHECK(link_library("nccl").error() == errc::unsupported);
  asio::io_context context(1);
  const window_table windows(context.get_executor());
  const link_options bare{.digest = digest_algorithm::none};
  CHECK(link_listener::listen(windows, "nccl://localhost:0", bare).error() == errc::unsupported);
  CHECK(link_listener::listen(windows, "nccl://localhost:0").error() == errc::invalid_argument);  // digests
  error_code refused;
  async_connect(windows, "nccl://localhost:1", bare, [&](error_code ec, peer_link) { refused = ec; });
  context.run();
  CHECK(refused == errc::unsupported);
  ::unsetenv("COKV_NCCL_LIBRARY");
  const auto version = link_library("nccl");
  CHECK((version ? version->starts_with("NCCL 2.") : version.error() == errc::unsupported));
}
