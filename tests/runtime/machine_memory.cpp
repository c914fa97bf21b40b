#include "cokv/runtime/detail/machine_memory.hpp"

#include <doctest/doctest.h>

#include "cokv/runtime/error.hpp"

using namespace cokv;
using namespace cokv::detail;

namespace {

constexpr std::uint64_t GiB = std::uint64_t{1} << 30;
constexpr machine_memory small{.total = 24 * GiB, .available = 9 * GiB};

}  // namespace

TEST_CASE("what fits passes, and what does not is told as a sum") {
  check_memory_for({{"weights", 8 * GiB}, {"KV blocks", GiB}}, small);
  check_memory_for({}, small);
  CHECK_THROWS_WITH_AS(check_memory_for({{"weights", 8 * GiB}, {"KV blocks", GiB}, {"--kv-host", GiB}}, small),
                       "out of memory: weights 8GiB + KV blocks 1GiB + --kv-host 1GiB are 10GiB, and 9GiB of 24GiB are "
                       "available",
                       config_error);
  CHECK_THROWS_WITH_AS(check_memory_for({{"weights", 10 * GiB}, {"--kv-host", 0}}, small),
                       "out of memory: weights 10GiB, and 9GiB of 24GiB are available", config_error);
  CHECK_THROWS_AS(check_memory_for({{"a", ~std::uint64_t{0}}, {"b", 2}}, small), config_error);  // no wrapping around
}

TEST_CASE("a system that does not tell its memory refuses nothing") {
  check_memory_for({{"weights", ~std::uint64_t{0}}}, {});
}

TEST_CASE("this machine tells its memory") {
  const auto here = read_machine_memory();
  CHECK(here.total >= GiB / 4);
  CHECK(here.available <= here.total);
  CHECK(here.available > 0);
}
