// NCCL where there is none: an error, not a program that doesn't start.
#include <doctest/doctest.h>

#include <cstdlib>

#include "cokv/kvstream/link_library.hpp"
#include "cokv/runtime/error.hpp"

using namespace cokv;

TEST_CASE("nccl: unsupported without the library; with it, its version") {
  ::setenv("COKV_NCCL_LIBRARY", "libno-such-nccl.so.2", 1);
  CHECK(link_library("nccl").error() == errc::unsupported);
  ::unsetenv("COKV_NCCL_LIBRARY");
  const auto version = link_library("nccl");
  CHECK((version ? version->starts_with("NCCL 2.") : version.error() == errc::unsupported));
}
