#include "plan/contest.hpp"

#include <doctest/doctest.h>

#include <random>
#include <vector>

using namespace cokv::plan;

namespace {

// Carries so many requests a second and GPU, and not one more.
struct entrant {
  double gpus, limit;
};

struct winner {
  double gpus = 0, found = 0;
};

// Each one's goodput by itself, as `cokv simulate --find-goodput` has it.
winner by_trying_all(const std::vector<entrant>& all, double from) {
  winner best;
  for (auto& e : all) {
    cokv::workload::goodput_search search(from, 0.9);
    while (const auto rate = search.next()) search.tried(*rate <= e.limit ? 1 : 0.5);
    if (search.found() > best.found || (search.found() == best.found && e.gpus < best.gpus))
      best = {e.gpus, search.found()};
  }
  return best;
}

struct outcome {
  winner best;
  int runs = 0;
};

outcome contested(const std::vector<entrant>& all, double from, double near = 0) {
  goodput_contest contest(from, 0.9);
  outcome out;
  for (auto& e : all)
    contest.enter(
        e.gpus,
        [&](double rate) {
          ++out.runs;
          return rate <= e.limit * e.gpus ? 0.95 : 0.2;
        },
        near * e.limit);
  if (contest.best()) out.best = {contest.best()->gpus, contest.best()->found};
  return out;
}

}  // namespace

TEST_CASE("contest: who carries more a GPU wins, and of equals who has fewer GPUs") {
  CHECK(contested({{1, 10}, {2, 12}}, 1).best.gpus == 2);
  CHECK(contested({{2, 12}, {1, 10}}, 1).best.gpus == 2);
  CHECK(contested({{1, 10}, {2, 10}}, 1).best.gpus == 1);
  CHECK(contested({{2, 10}, {1, 10}}, 1).best.gpus == 1);
  // In the same 5 %.
  CHECK(contested({{8, 10.3}, {2, 10.1}, {4, 10.2}}, 1).best.gpus == 2);
  CHECK(contested({{8, 11}, {2, 10.1}}, 1).best.gpus == 8);
}

TEST_CASE("contest: who is no better is tried once, and who carries nothing does not win") {
  const auto one = contested({{1, 10}}, 1).runs;
  CHECK(contested({{1, 10}, {2, 9}, {3, 5}, {4, 1}}, 1).runs == one + 3);
  CHECK(contested({{1, 1e-6}, {2, 1e-6}}, 1).best.found == 0);
  CHECK(contested({{1, 1e-6}, {2, 3}}, 1).best.gpus == 2);
  goodput_contest contest(1, 0.9);
  contest.enter(1, [](double rate) { return rate <= 10 ? 1. : 0.; });
  const auto worse = contest.enter(2, [](double rate) { return rate <= 2 * 9 ? 1. : 0.; });
  CHECK(worse.found == 0);
  CHECK(worse.fails == contest.best()->fails);
}

TEST_CASE("contest: of random ones it finds whom trying all finds, with a guess or without") {
  std::mt19937_64 bits(1);
  const auto number = [&](double low, double high) {
    return low * std::pow(high / low, static_cast<double>(bits() >> 11) * 0x1p-53);
  };
  int fewer = 0;
  for (int i = 0; i < 2000; ++i) {
    std::vector<entrant> all(1 + bits() % 10);
    const double width = bits() % 2 ? 1.2 : 50;  // near each other, or not
    const double middle = number(0.1, 100);
    for (auto& e : all) e = {static_cast<double>(1 + bits() % 8), number(middle, middle * width)};
    const double from = number(0.5, 4), near = bits() % 3 * 0.6;
    const auto expected = by_trying_all(all, from);
    const auto got = contested(all, from, near);
    CAPTURE(i);
    CHECK(got.best.found == expected.found);
    CHECK(got.best.gpus == expected.gpus);
    fewer += got.runs < 8 * static_cast<int>(all.size());
  }
  CHECK(fewer > 1200);
}
