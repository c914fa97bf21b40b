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

namespace {

// Answers of 48 tokens to prompts of 16, four blocks of 16 each, from as many clients as twice those microbatches hold. A device has room
// for one sequence of each stage. A step takes as long whatever its batch.
double with_room_for_one_a_stage(const command_folder& dir, std::uint32_t depth, std::vector<std::string> how) {
  const auto n = std::to_string(depth);
  how.insert(how.end(),
             {"--pipeline", n, "--kv-blocks", std::to_string(4 * depth), "--stage-prompt", "1", "--stage-token", "1"});
  return makespan(
      dir, how,
      {"--requests", "400", "--lengths", "fixed:16:48", "--closed-loop", std::to_string(depth * depth + depth)});
}

}  // namespace

// Section 4.2.2: a device has the microbatch that it computes, and the next, and not one of each stage.
TEST_CASE("cokv simulate: when microbatches take turns N stages' are N / 2 times as large") {
  const command_folder dir;
  for (std::uint32_t depth : {4u, 8u}) {
    CAPTURE(depth);
    const std::vector<std::string> turns{"--swap-blocks", "2000", "--swap-by", "microbatch"};
    const auto stay = with_room_for_one_a_stage(dir, depth, {}), turn = with_room_for_one_a_stage(dir, depth, turns);
    MESSAGE(depth, " stages: ", stay, " s, by turns ", turn, " s: ", stay / turn);
    CHECK(stay / turn >= 0.85 * depth / 2);
    auto slow = turns;
    slow.insert(slow.end(), {"--stage-swap", "0.05"});  // a step's blocks, 2 x depth of them, in less than a step
    if (depth == 4) CHECK(with_room_for_one_a_stage(dir, depth, slow) <= 1.02 * turn);
    slow.back() = "0.5";
    CHECK(with_room_for_one_a_stage(dir, depth, slow) > 1.5 * turn);
  }
}

TEST_CASE("cokv simulate: what can't take turns is refused by its flag") {
  const command_folder dir;
  const auto refused = [&](std::vector<std::string> how) {
    how.insert(how.end(), {"--requests", "2"});
    const auto r = run(how);
    CHECK(r.code != 0);
    return r.err;
  };
  const std::vector<std::string> times{"--stage-prompt", "1", "--stage-token", "1"};
  const auto with = [&](std::vector<std::string> how) {
    how.insert(how.end(), times.begin(), times.end());
    return refused(how);
  };
  CHECK(with({"--swap-by", "microbatch"}).find("--swap-by: is for --swap-blocks") != std::string::npos);
  CHECK(with({"--swap-blocks", "10", "--swap-by", "microbatch"}).find("--swap-by: microbatch is for --pipeline") !=
        std::string::npos);
  CHECK(with({"--swap-blocks", "10", "--swap-by", "microbatch", "--pipeline", "2", "--kv-blocks", "10"})
            .find("--swap-blocks: 10; all are there, and a stage has room for 10") != std::string::npos);
  CHECK(with({"--swap-blocks", "10", "--kv-copies", "1", "--pipeline", "2"}).find("--swap-blocks") !=
        std::string::npos);
  CHECK(with({"--swap-blocks", "10", "--swap-bandwidth", "1e9"}).find("--swap-bandwidth") != std::string::npos);
  CHECK(with({"--swap-blocks", "10", "--swap-by", "layer"}).find("--swap-by") != std::string::npos);
}
