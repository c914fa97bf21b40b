#include "plan/split.hpp"

#include <algorithm>
#include <cmath>
#include <random>

#include "cokv/runtime/error.hpp"

using cokv::plan::split;
using cokv::plan::split_problem;

namespace {

// The paper's example: OPT-66B in half precision on machines of four GPUs of 80 GB, four sequences at a time.
split_problem example() {
  return {.machines = 8,
          .machine_bytes = 4 * 80e9,
          .layers = 64,
          .layer_bytes = 1.019e9 * 2,
          .kv_bytes = 2. * 9216 * 2,
          .prompt = 1000,
          .output = 220,
          .microbatch = 4,
          .prompt_seconds = 3,
          .token_seconds = 0.04};
}

split_problem random_problem(std::mt19937& random) {
  const auto number = [&](std::uint32_t low, std::uint32_t high) {
    return std::uniform_int_distribution<std::uint32_t>(low, high)(random);
  };
  split_problem p{.machines = number(2, 24),
                  .layers = number(1, 48),
                  .prompt = number(1, 2000),
                  .output = number(1, 400),
                  .microbatch = number(1, 32)};
  p.layer_bytes = number(1, 40) * 1e8;
  p.kv_bytes = number(1, 64) * 1024.;
  p.machine_bytes = number(1, 100) * 1e9;
  p.first_bytes = number(0, 10) * 1e8;
  p.last_bytes = number(0, 10) * 1e8;
  p.both_bytes = p.first_bytes + p.last_bytes;
  p.prompt_seconds = number(1, 4000) / 1e3;
  p.token_seconds = number(1, 100) / 1e3;
  p.overhead = 1 + number(0, 100) / 100.;
  return p;
}

// Stage by stage, as equal as the layers allow.
bool fits_by_hand(const split_problem& p, std::uint32_t depth, bool tokens) {
  const double a_prompt = p.kv_bytes * p.microbatch * p.prompt, all = p.kv_bytes * p.microbatch * (p.prompt + p.output);
  for (std::uint32_t stage = 0, first = 0; stage < depth; ++stage) {
    const auto end = static_cast<std::uint32_t>(std::uint64_t{p.layers} * (stage + 1) / depth);
    double bytes = 0;
    for (auto l = first; l < end; ++l) bytes += p.layer_bytes + (tokens ? depth * all : a_prompt);
    first = end;
    // Which stages are the larger ones is the topology's to say: each may be the one with the most beside its layers.
    bytes += depth == 1 ? p.both_bytes : std::max(p.first_bytes, p.last_bytes);
    if (bytes > p.machine_bytes) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("split: the paper's example gives two machines to prompts and six to answers") {
  const auto found = split(example());
  REQUIRE(found.plan);
  const auto& p = *found.plan;
  CHECK(p.prompt_depth == 2);
  CHECK(p.token_depth == 6);
  CHECK(p.balanced_token == 6);
  CHECK(p.least_prompt == 1);
  CHECK(p.least_token == 1);
  CHECK_FALSE(p.memory_binds);
  CHECK_FALSE(p.faster_token);
  CHECK(p.prompts_bind);
  CHECK(p.rate == doctest::Approx(2 / 3.));  // microbatches a second: two stages, three seconds
}

TEST_CASE("split: where layers divide evenly, memory's bounds are the paper's") {
  std::mt19937 random(7);
  std::size_t seen = 0;
  for (int i = 0; i < 3000; ++i) {
    auto p = random_problem(random);
    p.first_bytes = p.last_bytes = p.both_bytes = 0;
    const auto found = split(p);
    if (!found.plan) continue;
    const double c0 = p.prompt * p.microbatch * p.kv_bytes, k = (p.prompt + p.output) * p.microbatch * p.kv_bytes;
    const auto prompt = std::ceil(p.layers / std::floor(p.machine_bytes / (c0 + p.layer_bytes)));
    CHECK(found.plan->least_prompt == prompt);
    const auto token = std::ceil(p.layers / std::floor((p.machine_bytes - p.layers * k) / p.layer_bytes));
    CHECK(found.plan->least_token >= token);
    if (p.layers % static_cast<std::uint32_t>(token) == 0) {
      CHECK(found.plan->least_token == token);
      ++seen;
    }
  }
  CHECK(seen > 300);
}

TEST_CASE("split: every plan fits memory, no smaller one does, and where there is none none fits") {
  std::mt19937 random(11);
  std::size_t plans = 0, none = 0, moved = 0;
  for (int i = 0; i < 3000; ++i) {
    const auto p = random_problem(random);
    const auto found = split(p);
    const auto most = std::min(p.layers, p.machines - 1);
    if (!found.plan) {
      ++none;
      for (std::uint32_t t = 1; t <= most; ++t)
        CHECK_FALSE((fits_by_hand(p, t, true) && fits_by_hand(p, std::min(p.machines - t, p.layers), false)));
      CHECK(found.why.find("memory binds") != std::string::npos);
      continue;
    }
    ++plans;
    const auto& plan = *found.plan;
    moved += plan.memory_binds;
    CHECK(plan.prompt_depth + plan.token_depth <= p.machines);
    CHECK(fits_by_hand(p, plan.prompt_depth, false));
    CHECK(fits_by_hand(p, plan.token_depth, true));
    CHECK(fits_by_hand(p, plan.least_prompt, false));
    CHECK(fits_by_hand(p, plan.least_token, true));
    for (std::uint32_t d = 1; d < plan.least_prompt; ++d) CHECK_FALSE(fits_by_hand(p, d, false));
    for (std::uint32_t d = 1; d < plan.least_token; ++d) CHECK_FALSE(fits_by_hand(p, d, true));
    // Nothing that fits is nearer to the balance.
    const auto far = [&](std::uint32_t t) { return std::abs(int(t) - int(plan.balanced_token)); };
    for (std::uint32_t t = 1; t <= most; ++t)
      if (far(t) < far(plan.token_depth))
        CHECK_FALSE((fits_by_hand(p, t, true) && fits_by_hand(p, std::min(p.machines - t, p.layers), false)));
  }
  CHECK(plans > 500);
  CHECK(none > 300);
  CHECK(moved > 20);
}

TEST_CASE("split: what is infeasible says what binds, and what it says would do does") {
  auto p = example();
  p.machine_bytes = 40e9;
  p.machines = 4;
  const auto found = split(p);
  REQUIRE_FALSE(found.plan);
  CHECK(found.why.find("memory binds: of 40 GB a machine prompts take") != std::string::npos);
  const auto at = found.why.find("; ");
  REQUIRE(at != std::string::npos);
  p.machines = static_cast<std::uint32_t>(std::stoul(found.why.substr(at + 2)));
  CHECK(split(p).plan);
  --p.machines;
  CHECK_FALSE(split(p).plan);

  auto one = example();
  one.machines = 1;
  CHECK(split(one).why == "two pipelines need two machines; 2 machines suffice");

  auto wide = example();
  wide.microbatch = 2000;
  const auto smaller = split(wide).why;
  const auto words = smaller.find("on these, ");
  REQUIRE(words != std::string::npos);
  wide.microbatch = static_cast<std::uint32_t>(std::stoul(smaller.substr(words + 10)));
  CHECK(split(wide).plan);
  ++wide.microbatch;
  CHECK_FALSE(split(wide).plan);

  auto tiny = example();
  tiny.machine_bytes = 1e9;
  CHECK(split(tiny).why == "memory binds: of 1 GB a machine a prompt stage of one layer takes 2.185 GB");
}

TEST_CASE("split: more machines than two pipelines have layers are not used; an odd field is refused by its name") {
  auto p = example();
  p.machines = 1000;
  const auto found = split(p);
  REQUIRE(found.plan);
  CHECK(found.plan->token_depth == 64);
  CHECK(found.plan->prompt_depth == 64);
  CHECK_FALSE(found.plan->memory_binds);

  p = example();
  p.overhead = 0.5;
  CHECK_THROWS_WITH_AS(split(p), "split: overhead is not 1 or more", cokv::config_error);
  p = example();
  p.kv_bytes = 0;
  CHECK_THROWS_WITH_AS(split(p), "split: kv_bytes is not a positive number", cokv::config_error);
}
