// What DejaVu found (arXiv 2403.01876): prompts between tokens leave bubbles in a pipeline that does both, and two pipelines, split
// by its formula, don't have them.
#include "apps/simulate/runs.hpp"
#include "plan/split.hpp"

using namespace cokv::test;
using namespace cokv::test::simulated;

namespace {

constexpr std::uint32_t stages = 8, requests = 200;
constexpr double token = 1;  // milliseconds of a stage of eight

// Of eight machines whose memory is no matter.
cokv::plan::split_plan split_for(double ratio, std::uint32_t output) {
  return *cokv::plan::split({.machines = stages,
                             .machine_bytes = 1e15,
                             .layers = 56,
                             .layer_bytes = 1,
                             .kv_bytes = 1,
                             .prompt = 20,
                             .output = output,
                             .microbatch = 1,
                             .prompt_seconds = ratio * token * stages,
                             .token_seconds = token * stages})
              .plan;
}

std::vector<std::string> load_of(const char* lengths, std::uint32_t clients) {
  return {"--requests",    std::to_string(requests), "--lengths",      lengths,
          "--closed-loop", std::to_string(clients),  "--microbatches", std::to_string(clients)};
}

double makespan(const command_folder& dir, std::vector<std::string> how, const std::vector<std::string>& load) {
  how.insert(how.end(), load.begin(), load.end());
  return told(dir, how).at("makespan_s").to_number<double>();
}

struct both {
  double together, apart;
  double ratio() const { return together / apart; }
};

// A request is a microbatch: as many clients as there are steps under way, so that no step has two. In one pipeline there are eight, as
// in DejaVu, and in two ten, so that a prompt is ready when an answer ends.
both compare(const command_folder& dir, double ratio, const char* lengths) {
  const auto plan = split_for(ratio, 225);
  const auto ms = [](double v) { return std::to_string(v); };
  const auto together =
      makespan(dir, {"--pipeline", "8", "--stage-prompt", ms(ratio * token), "--stage-token", ms(token)},
               load_of(lengths, stages));
  const auto apart =
      makespan(dir,
               {"--pipeline", std::to_string(plan.token_depth), "--prefill-replicas", "1", "--prefill-pipeline",
                std::to_string(plan.prompt_depth), "--stage-prompt", ms(ratio * token * stages / plan.prompt_depth),
                "--stage-token", ms(token * stages / plan.token_depth)},
               load_of(lengths, stages + 2));
  return {together, apart};
}

}  // namespace

TEST_CASE("cokv simulate: DejaVu's split of eight stages, with answers of 50 to 400 tokens and prompts as long as 20") {
  const command_folder dir;
  const auto plan = split_for(20, 225);
  CHECK(plan.prompt_depth == 1);
  CHECK(plan.token_depth == 7);
  const auto unequal = compare(dir, 20, "uniform:20-20:50-400");
  CAPTURE(unequal.together);
  CAPTURE(unequal.apart);
  CHECK(unequal.ratio() >= 1.4);
  CHECK(unequal.ratio() < 1.5);
}

TEST_CASE("cokv simulate: of equal answers DejaVu's two pipelines gain nothing over one") {
  const command_folder dir;
  const auto equal = compare(dir, 20, "fixed:20:225");
  CAPTURE(equal.together);
  CAPTURE(equal.apart);
  CHECK(equal.ratio() == doctest::Approx(1).epsilon(0.03));
}
