#include "plan/unit.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

using namespace cokv::plan;

TEST_CASE("unit: as many replicas of each phase as keep up with each other") {
  // 200 requests/s on 3 GPUs; one of each has 100 on 2.
  const auto u = unit_of({1, 100}, {1, 220}, 8);
  REQUIRE(u);
  CHECK(u->prompt_replicas == 2);
  CHECK(u->answer_replicas == 1);
  CHECK(u->gpus == 3);
  CHECK(u->rate == 200);
  // Where there is room for no more.
  CHECK(unit_of({1, 100}, {1, 220}, 2)->rate == 100);
  CHECK(!unit_of({2, 100}, {1, 100}, 2));
  // 4 of 5 GPUs would carry 0.8 a GPU and 40 on 50 the same: the fewest are taken.
  CHECK(unit_of({1, 4}, {1, 1}, 100)->gpus == 5);
}

TEST_CASE("unit: no other carries so much more a GPU, and none of fewer GPUs as much") {
  std::mt19937_64 bits(2);
  for (int i = 0; i < 300; ++i) {
    const auto rate = [&] { return 0.1 + static_cast<double>(bits() % 1000) / 50; };
    const replica_rate p{1 + static_cast<std::uint32_t>(bits() % 8), rate()},
        a{1 + static_cast<std::uint32_t>(bits() % 8), rate()};
    const auto gpus = static_cast<std::uint32_t>(1 + bits() % 40);
    const double less = i % 2 ? 1.05 : 1;
    const auto got = unit_of(p, a, gpus, less);
    double most = 0;
    std::uint32_t fewest = 0;
    for (int pass = 0; pass < 2; ++pass)
      for (std::uint32_t np = 1; np <= gpus; ++np)
        for (std::uint32_t na = 1; np * p.gpus + na * a.gpus <= gpus; ++na) {
          const auto all = np * p.gpus + na * a.gpus;
          const double value = std::min(np * p.rate, na * a.rate) / all;
          if (pass == 0)
            most = std::max(most, value);
          else if (value >= most / less && (fewest == 0 || all < fewest))
            fewest = all;
        }
    CHECK(got.has_value() == (most > 0));
    if (!got) continue;
    CHECK(got->a_gpu() >= most / less);
    CHECK(got->gpus == fewest);
    CHECK(got->gpus == got->prompt_replicas * p.gpus + got->answer_replicas * a.gpus);
  }
}
