#include "tier_health.hpp"

#include <doctest/doctest.h>

using namespace cokv;
using namespace std::chrono_literals;

TEST_CASE("a failed tier is left alone for longer each time, and one try at a time tells whether it is back") {
  tier_health health(1s, 3s);
  time_point now{};
  CHECK(health.try_now(now));
  CHECK(!health.succeeded());
  CHECK(health.failed(now));
  CHECK(!health.failed(now));  // one begun before: says nothing new
  CHECK(health.bad());
  for (auto wait : {1s, 2s, 3s, 3s}) {
    CHECK(!health.try_now(now + wait - 1ns));
    now += wait;
    CHECK(health.try_now(now));
    CHECK(!health.try_now(now));  // somebody is trying
    CHECK(!health.failed(now));   // told before
  }
  now += 3s;
  CHECK(health.try_now(now));
  health.gave_up();  // cancelled: the next one tries
  CHECK(health.try_now(now));
  CHECK(health.succeeded());
  CHECK(!health.bad());
  CHECK(health.failed(now));  // told again, and the wait is short again
  CHECK(health.try_now(now + 1s));
}
