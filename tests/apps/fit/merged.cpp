// One profile of several: medians, by hand, and nothing in it that can't be.
#include "fit/merged.hpp"

#include <doctest/doctest.h>

using namespace cokv::fit;

namespace {

// All that is measured is `x`, or goes by it.
profile turn(double x) {
  profile p{.machine = "made up",
            .model = "none",
            .dtype = "bf16",
            .source = {},
            .cores = 4,
            .threads = 1,
            .layers = 3,
            .hidden = 64,
            .max_positions = 4096,
            .prompts = curve({{1, x}, {2, 2 * x}}),
            .answers = curve({{1, x}, {2, x}}),
            .prompts_end = curve({{1, x}}),
            .answers_end = curve({{1, x}})};
  p.prompt_pair = p.answer_pair = p.step = p.token = x;
  p.prompts_beside = p.answers_beside = {1, 1 + x, 1 + 2 * x};
  p.prompts_idle = p.answers_idle = curve({{0.5, x}});
  p.pipeline_tokens = {{x, 2 * x}, {x, 2 * x, 3 * x}};
  p.pipeline_prompts = {4 * x, 5 * x};
  p.answer_tokens = p.prompt_tokens = 16;
  p.copy_bytes_per_second = p.link_bytes_per_second = 1e9 * x, p.link_seconds = x;
  return p;
}

std::string text_of_turns(std::initializer_list<double> all) {
  std::vector<profile> turns;
  for (auto x : all) turns.push_back(turn(x));
  return to_text(merged(turns));
}

}  // namespace

TEST_CASE("merged: one profile is itself, and of several each figure is the median") {
  CHECK(text_of_turns({3}) == to_text(turn(3)));
  CHECK(text_of_turns({9, 3, 1}) == to_text(turn(3)));
  CHECK(text_of_turns({3, 3, 1, 100, 0.5}) == to_text(turn(3)));
}

TEST_CASE("merged: figures are medians each by itself") {
  std::vector<profile> turns{turn(1), turn(2), turn(3)};
  turns[1].step = 10;
  turns[2].prompts = curve({{1, 0.5}, {2, 7}});
  const auto got = merged(turns);
  CHECK(got.step == 3);
  CHECK(got.token == 2);
  CHECK(got.prompts.points() == std::vector<std::pair<double, double>>{{1, 1}, {2, 4}});
}

TEST_CASE("merged: more never take less, no step less than no time, and nobody is faster for neighbours") {
  auto p = turn(2);
  p.answers = curve({{1, 4}, {2, 3}, {4, 5}});
  p.answers_end = curve({{1, -1}});
  p.step = -0.5;
  p.answer_pair = -1e-9;
  p.answers_beside = {1, 0.9, 1.5, 1.4};
  const auto got = merged(std::vector{p, p, p});
  CHECK(got.answers.points() == std::vector<std::pair<double, double>>{{1, 4}, {2, 4}, {4, 5}});
  CHECK(got.answers_end.points() == std::vector<std::pair<double, double>>{{1, 0}});
  CHECK(got.step == 0);
  CHECK(got.answer_pair == 0);
  CHECK(got.answers_beside == std::vector<double>{1, 1, 1.5, 1.5});
  CHECK(parse_profile(to_text(merged(std::vector{turn(0.5), turn(0.25)})), "file").layers == 3);
}

TEST_CASE("merged: how even a machine is is told in milliseconds, a line each") {
  const std::vector<profile> turns{turn(0.001), turn(0.003), turn(0.002)};
  CHECK(spread_of(turns) == std::vector<std::string>{
                                "a token by itself: 6.00 ms; 3.00 to 9.00",
                                "a pipeline of 2, a prompt's first token: 8.00 ms; 4.00 to 12.00",
                                "a pipeline of 2, a token of 1: 2.00 ms; 1.00 to 3.00",
                                "a pipeline of 2, a token of 2: 4.00 ms; 2.00 to 6.00",
                                "a pipeline of 3, a prompt's first token: 10.00 ms; 5.00 to 15.00",
                                "a pipeline of 3, a token of 1: 2.00 ms; 1.00 to 3.00",
                                "a pipeline of 3, a token of 2: 4.00 ms; 2.00 to 6.00",
                                "a pipeline of 3, a token of 3: 6.00 ms; 3.00 to 9.00",
                            });
  auto alone = turn(0.5);
  alone.pipeline_tokens.clear();
  alone.pipeline_prompts.clear();
  CHECK(spread_of(std::vector{alone}).size() == 1);
}
