#include "tier/tier_health.hpp"

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

TEST_CASE("a tier without room is news once, and again after a time in which all found room") {
  tier_health health(1s, 60s);
  time_point now{};
  CHECK(!health.full());
  CHECK(health.no_room(now));
  CHECK(!health.no_room(now + 30s));
  health.had_room(now + 80s);
  CHECK(health.full());
  health.had_room(now + 90s);
  CHECK(!health.full());
  CHECK(!health.bad());
  CHECK(health.no_room(now + 91s));
}

TEST_CASE("a try that ends untold lets another one try; one that was told does not") {
  auto health = std::make_shared<tier_health>(1s, 3s);
  time_point now{};
  {
    auto well = tier_try::begin(health, now);
  }
  health->failed(now);
  now += 1s;
  {
    auto probe = tier_try::begin(health, now);
    CHECK(probe.probing());
    CHECK(!tier_try::begin(health, now));
    auto moved = std::move(probe);
    CHECK(moved.probing());
  }
  auto next = tier_try::begin(health, now);
  CHECK(next);
  next.told();
  health->failed(now);
  CHECK(!tier_try::begin(health, now + 1s));
}
