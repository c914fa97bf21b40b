// The search over runs with fixed times, where its answer is evident, or known from trying all.
#include "plan/search.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "plan/search_runs.hpp"
#include "simulate/quiet.hpp"

using namespace cokv;
using namespace cokv::plan;

namespace {

// A prompt takes 10 ms in a stage, by itself, and a step of answers 2, so that at most 16 are under way: 100 prompts a second, and
// with 18 to 20 ms an answer and 10 to 15 a prompt that waits for it, a good 400 answers.
search_problem by_hand(std::uint32_t gpus = 4) {
  search_problem p{.gpus = gpus, .machine_gpus = 1, .replica_gpus = 2, .layers = 2, .seconds = 1};
  auto& o = p.base;
  o.stage_prompt = 10, o.stage_token = 2;
  o.kv_blocks = 1000, o.max_batched_tokens = 100, o.max_running = 16;
  o.load.arrivals = "uniform", o.load.lengths = "fixed:100:10";
  o.slo_ttft = 20, o.slo_tpot = 4;
  return p;
}

search_answer searched(const search_problem& p) {
  simulate::only_errors quiet;
  return search(p);
}

const tried_shape& of(const tried_phase& all, shape s) { return *std::ranges::find(all.shapes, s, &tried_shape::what); }

}  // namespace

TEST_CASE("search: three that compute prompts go with one that decodes, by hand") {
  const auto found = searched(by_hand());
  CHECK(of(found.prompts, {1, 1}).a_gpu.found == 100);
  CHECK(of(found.answers, {1, 1}).a_gpu.found == doctest::Approx(16 / 0.020).epsilon(0.05));
  // A second stage computes nothing sooner.
  CHECK(of(found.prompts, {2, 1}).a_gpu.found == 0);
  CHECK(found.prompts.best()->what == shape{1, 1});
  REQUIRE(found.apart);
  CHECK(found.apart->where.prompt_replicas == 3);
  CHECK(found.apart->where.answer_replicas == 1);
  CHECK(found.apart->where.gpus() == 4);
  CHECK(found.apart->at.rate == doctest::Approx(300).epsilon(0.02));
  CHECK(found.apart->at.share >= 0.9);
  CHECK(found.apart->above.binds == binding::ttft);
  // On the same GPU a prompt holds up four others' tokens.
  REQUIRE(found.together);
  CHECK(found.together->at.rate < 60);
}

TEST_CASE("search: a rate that is to be carried is, on the fewest GPUs") {
  auto p = by_hand();
  p.rate = 190;  // two that compute prompts, and one that decodes
  const auto found = searched(p);
  REQUIRE(found.carries_apart);
  CHECK(found.carries_apart->where.prompt_replicas == 2);
  CHECK(found.carries_apart->where.answer_replicas == 1);
  CHECK(found.carries_apart->at.rate == 190);
  p.rate = 310;
  CHECK(!searched(p).carries_apart);
}

TEST_CASE("search: where no bound can be met it says by how much") {
  auto p = by_hand();
  p.base.slo_ttft = 8;
  auto found = searched(p);
  CHECK(!found.apart);
  CHECK(!found.together);
  REQUIRE(found.prompts.miss);
  CHECK(found.prompts.miss->binds == binding::ttft);
  CHECK(found.prompts.miss->ms == doctest::Approx(10));
  CHECK(found.prompts.miss->what == shape{1, 1});
  p = by_hand();
  p.base.slo_tpot = 1;
  found = searched(p);
  REQUIRE(found.answers.miss);
  CHECK(found.answers.miss->binds == binding::tpot);
  CHECK(found.answers.miss->ms == doctest::Approx(2));
  // One GPU can't be shared out.
  found = searched(by_hand(1));
  CHECK(!found.apart);
  CHECK(found.together);
}

TEST_CASE("search: of random small problems each phase's best is that of all runs") {
  std::mt19937_64 bits(3);
  const auto number = [&](double low, double high) {
    return static_cast<float>(low + (high - low) * static_cast<double>(bits() >> 11) * 0x1p-53);
  };
  simulate::only_errors quiet;
  for (int i = 0; i < 4; ++i) {
    search_problem p{.gpus = 4, .machine_gpus = 1, .replica_gpus = 3, .layers = 6, .seconds = 1, .requests = 40};
    auto& o = p.base;
    o.stage_prompt = number(20, 90), o.stage_token = number(10, 40);
    o.kv_blocks = 1000, o.max_batched_tokens = 100, o.max_running = 2 + bits() % 6;
    o.load.lengths = "uniform:20-100:2-12", o.load.arrivals = bits() % 2 ? "poisson" : "uniform";
    o.load.seed = bits();
    o.slo_ttft = *o.stage_prompt * number(1.5, 8), o.slo_tpot = *o.stage_token * number(1.1, 8);
    const auto found = search(p);
    search_runs runs(p);
    for (auto [what, got] : {std::pair{phase::prompts, &found.prompts}, {phase::answers, &found.answers}}) {
      double best = 0;
      shape who{};
      for (std::uint32_t n = 1; n <= 3; ++n) {
        const placement where{.answers = {n, 1}};
        const auto d = runs.made(what, where);
        workload::goodput_search all(1, 1);
        while (const auto rate = all.next())
          all.tried(runs.at(what, where, d, *rate * n).share >= o.attainment ? 1 : 0);
        if (all.found() > best) best = all.found(), who = where.answers;
      }
      CAPTURE(i);
      REQUIRE((got->best() != nullptr) == (best > 0));
      if (!got->best()) continue;
      CHECK(got->best()->what == who);
      CHECK(got->best()->a_gpu.found == best);
    }
  }
}
