#include "cokv/kvstream/step_cost.hpp"

#include <doctest/doctest.h>

#include <random>

using namespace cokv;
using namespace std::chrono_literals;

namespace {

duration secs(double s) { return std::chrono::duration_cast<duration>(std::chrono::duration<double>(s)); }

constexpr step_cost true_cost{.a = 0.004, .b = 2e-4, .c = 3e-8};

}  // namespace

TEST_CASE("step_fit: what steps take is learned from steps that differ") {
  step_fit fit;
  CHECK_FALSE(fit.cost().known());
  for (double n : {1., 64., 1000., 16., 300.})
    for (double context : {0., 1000., 8000.}) {
      const auto w = compute_work::of(n, context);
      fit.add(w, secs(true_cost.seconds(w)));
    }
  CHECK(fit.steps() == 15);
  CHECK(fit.cost().a == doctest::Approx(true_cost.a).epsilon(0.02));
  CHECK(fit.cost().b == doctest::Approx(true_cost.b).epsilon(0.02));
  CHECK(fit.cost().c == doctest::Approx(true_cost.c).epsilon(0.02));
}

TEST_CASE("step_fit: steps that are all alike foretell the next of their kind") {
  step_fit fit;
  const compute_work w{.tokens = 8, .pairs = 8000};
  for (int i = 0; i < 100; ++i) fit.add(w, secs(true_cost.seconds(w)));
  CHECK(fit.cost().seconds(w) == doctest::Approx(true_cost.seconds(w)).epsilon(0.01));
}

TEST_CASE("step_fit: an engine that becomes slower is noticed, and no part is ever less than nothing") {
  step_fit fit;
  std::mt19937 random(7);
  std::uniform_real_distribution<> noise(0.8, 1.25);
  for (int i = 0; i < 400; ++i) {
    const auto w = compute_work::of(1 + random() % 500, random() % 4000);
    fit.add(w, secs(noise(random) * true_cost.seconds(w) * (i < 200 ? 1 : 3)));
    CHECK(fit.cost().a >= 0);
    CHECK(fit.cost().b >= 0);
    CHECK(fit.cost().c >= 0);
  }
  const auto w = compute_work::of(400, 1000);
  CHECK(fit.cost().seconds(w) == doctest::Approx(3 * true_cost.seconds(w)).epsilon(0.15));
  const auto before = fit.cost().b;
  fit.add(w, duration::zero());
  CHECK(fit.cost().b == before);
}
