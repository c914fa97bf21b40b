#include "cokv/engine/swap_turns.hpp"

#include <doctest/doctest.h>

using namespace cokv;

TEST_CASE("swap_turns: a turn is so many times as long as the ways out and in, within its bounds") {
  swap_turns t({.least = 10, .most = 100, .share = 4});
  CHECK(t.steps() == 10);
  for (int i = 0; i < 100; ++i) t.out(3), t.in(2);
  CHECK(t.steps() == doctest::Approx(20).epsilon(0.25));
  for (int i = 0; i < 100; ++i) t.out(1'000'000), t.in(1'000'000);
  CHECK(t.steps() == 100);
  for (int i = 0; i < 100; ++i) t.out(0), t.in(0);
  CHECK(t.steps() <= 30);  // it got fast again
}
