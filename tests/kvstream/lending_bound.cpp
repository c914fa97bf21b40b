#include "cokv/kvstream/lending_bound.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <random>

#include "cokv/runtime/error.hpp"

using namespace cokv;
using seconds = lending_bound::seconds;

TEST_CASE("lending bound: the example of its header, and what the data sheet promised") {
  lending_bound node{.link = 270e9, .memory = 1560e9, .kv_bytes = 40e9};
  CHECK(node.percent() == doctest::Approx(17.3).epsilon(0.01));
  CHECK(node.layers(64) == 11);
  node.memory = 2000e9;
  node.link = 600e9;
  CHECK(node.percent() == doctest::Approx(30));
}

TEST_CASE("lending bound: overhead takes away and other work adds what the link carries in that time") {
  lending_bound node{.link = 100e9, .memory = 1000e9, .kv_bytes = 10e9};
  CHECK(node.percent() == doctest::Approx(10));
  node.overhead = seconds(0.005);  // half a gigabyte
  CHECK(node.percent() == doctest::Approx(5));
  node.other = seconds(0.020);
  CHECK(node.percent() == doctest::Approx(25));
  node.overhead = seconds(1);
  CHECK(node.percent() == 0);
  CHECK(node.layers(64) == 0);
  node.other = seconds(2);
  CHECK(node.percent() == 100);
  CHECK(node.layers(64) == 64);
}

TEST_CASE("lending bound: layers round down, but not because of a rounding error") {
  lending_bound node{.link = 1e9, .memory = 10e9, .kv_bytes = 7e9};
  CHECK(node.layers(10) == 1);
  CHECK(node.layers(30) == 3);
  CHECK(node.layers(39) == 3);
  CHECK(node.layers(9) == 0);
  CHECK(node.layers(0) == 0);
}

TEST_CASE("lending bound: at the bound nothing is slower, beyond it a step is") {
  std::mt19937 random(5);
  std::uniform_real_distribution<double> any(0.01, 1);
  for (int round = 0; round < 1000; ++round) {
    lending_bound b{.link = any(random) * 900e9,
                    .memory = any(random) * 4000e9,
                    .kv_bytes = any(random) * 80e9,
                    .overhead = seconds(any(random) * 1e-3),
                    .other = seconds(any(random) * 1e-3)};
    auto most = b.percent();
    CHECK(b.slowdown(0).count() == 0);
    if (most > 0) CHECK(b.slowdown(most).count() < 1e-9);
    if (most < 99) CHECK(b.slowdown(most + 1).count() > 0);
    CHECK(b.slowdown(100) >= b.slowdown(50));
    // More of a resource never lets less be lent.
    auto faster = b;
    faster.link *= 2;
    CHECK(faster.percent() >= most);
  }
}

TEST_CASE("lending bound: what was not measured is refused") {
  const lending_bound good{.link = 1, .memory = 1, .kv_bytes = 1};
  CHECK_THROWS_AS(lending_bound{}.percent(), config_error);
  for (double bad : {0.0, -1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()})
    for (auto field : {&lending_bound::link, &lending_bound::memory, &lending_bound::kv_bytes}) {
      auto b = good;
      b.*field = bad;
      CHECK_THROWS_AS(b.percent(), config_error);
    }
  for (auto field : {&lending_bound::overhead, &lending_bound::other}) {
    auto b = good;
    b.*field = seconds(-1);
    CHECK_THROWS_AS(b.percent(), config_error);
  }
  CHECK_THROWS_AS(good.slowdown(101), config_error);
  CHECK_THROWS_AS(good.slowdown(-1), config_error);
}
