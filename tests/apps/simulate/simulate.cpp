// Whole runs of `cokv simulate`: against calculations by hand, twice with a seed, and with input that can't be.
#include <boost/json.hpp>

#include "apps/simulate/runs.hpp"

using namespace cokv::test;
using namespace cokv::test::simulated;

namespace {

namespace json = boost::json;

using folder = command_folder;

const std::string llama70 = COKV_SOURCE_DIR "/bench/geometries/llama-3.1-70b.json";
const std::string machines =
    R"({"machines": [{"name": "four", "count": 2, "gpus": 4, "gpu": "a100", "network_bytes_per_second": 12.5e9,
                      "price_per_hour": 16}]})";

}  // namespace

// Four microbatches of one sequence, A to D, in two stages; a prompt takes 10 ms in each, a token 2. Answers are of 1, 2, 2 and
// 3 tokens, the first of them behind the prompt.
//
//     stage 0   A 0-10    B 10-20   C 20-30   D 30-40   B' 40-42  C' 42-44            D' 50-52            D" 56-58
//     stage 1             A 10-20   B 20-30   C 30-40   D 40-50   B' 50-52  C' 52-54  D' 54-56            D" 58-60
//
// B's first token is there at 30, but stage 0 has C and D to do before B'; B' waits for D in stage 1, and D' for C'.
TEST_CASE("cokv simulate: four microbatches of unequal length in two stages end when a calculation by hand says") {
  const folder dir;
  const auto all = told(dir, {"--stage-prompt", "10", "--stage-token", "2", "--pipeline", "2", "--microbatches", "4",
                              "--max-batched-tokens", "100", "--trace", dir.file("t.jsonl", trace_of({1, 2, 2, 3}))});
  const auto& requests = all.at("requests");
  check_times(requests.at(0), {20});
  check_times(requests.at(1), {30, 52});
  check_times(requests.at(2), {40, 54});
  check_times(requests.at(3), {50, 56, 60});
  CHECK(all.at("makespan_s").to_number<double>() == doctest::Approx(0.060));
  // Of the 60 ms in which one of them was at work each computes 48.
  const auto& stages = all.at("stages");
  CHECK(stages.at(0).at("steps").to_number<int>() == 8);
  CHECK(stages.at(0).at("busy_s").to_number<double>() == doctest::Approx(0.048));
  CHECK(stages.at(0).at("bubbles").to_number<double>() == doctest::Approx(12 / 60.));
  CHECK(stages.at(1).at("bubbles").to_number<double>() == doctest::Approx(12 / 60.));
  CHECK(stages.at(1).at("utilisation").to_number<double>() == doctest::Approx(48 / 60.));
}

// Two steps at most are under way: A and B. C begins when A is over, at 20, as D does with B's first token, at 30: 100 tokens of D
// and one of B', in one step of stage 0 behind C.
//
//     stage 0   A 0-10    B 10-20   C 20-30   D,B' 30-40
//     stage 1             A 10-20   B 20-30   C 30-40   D,B' 40-50
TEST_CASE("cokv simulate: with as many steps under way as stages, a prompt waits for one to be over") {
  const folder dir;
  const auto all = told(dir, {"--stage-prompt", "10", "--stage-token", "2", "--pipeline", "2", "--max-batched-tokens",
                              "101", "--trace", dir.file("t.jsonl", trace_of({1, 2, 2, 3}))});
  const auto& requests = all.at("requests");
  check_times(requests.at(0), {20});
  check_times(requests.at(1), {30, 50});
  CHECK(times(requests.at(2))[0] == doctest::Approx(40));
  CHECK(times(requests.at(3))[0] == doctest::Approx(50));
}

TEST_CASE("cokv simulate: one stage, by hand") {
  const folder dir;
  // Both prompts in one step, then both decode together; the longer goes on alone.
  auto all =
      told(dir, {"--stage-prompt", "10", "--stage-token", "2", "--trace", dir.file("t.jsonl", trace_of({2, 4}))});
  // The first is planned as it comes; the second in the next step, with the first one's token.
  check_times(all.at("requests").at(0), {10, 20});
  check_times(all.at("requests").at(1), {20, 22, 24, 26});
  CHECK(all.at("makespan_s").to_number<double>() == doctest::Approx(0.026));
  // A client that waits for its answer: 10 + 2 + 2 ms each, one behind the other.
  all = told(dir, {"--stage-prompt", "10", "--stage-token", "2", "--closed-loop", "1", "--requests", "3", "--lengths",
                   "fixed:50:3"});
  CHECK(all.at("makespan_s").to_number<double>() == doctest::Approx(0.042));
  CHECK(all.at("requests").at(2).at("at_s").to_number<double>() == doctest::Approx(0.028));
}

TEST_CASE("cokv simulate: by the sheet, a step takes what its roofline says, and stages share it") {
  const folder dir;
  const auto cluster = dir.file("c.json", machines);
  const auto alone = told(dir, {"--model", llama, "--cluster", cluster, "--closed-loop", "1", "--requests", "2",
                                "--lengths", "fixed:500:20", "--bandwidth", "1", "--arithmetic", "1"});
  // A token reads 8.03e9 parameters, less the embedding's 0.53e9, and KV of 500 to 520 tokens of 131,072 bytes, at 2.039 TB/s.
  const double weights = 2 * (8.03e9 - 128256. * 4096), kv = 510 * 131072.;
  CHECK(alone.at("summary").at("tpot_ms").at("p50").to_number<double>() ==
        doctest::Approx(1e3 * (weights + kv) / 2.039e12).epsilon(0.02));
  // Four stages one behind the other take as long for a sequence alone, and the network a little.
  const auto four =
      told(dir, {"--model", llama, "--cluster", cluster, "--closed-loop", "1", "--requests", "2", "--lengths",
                 "fixed:500:20", "--bandwidth", "1", "--arithmetic", "1", "--pipeline", "4"});
  const auto ratio = four.at("summary").at("tpot_ms").at("p50").to_number<double>() /
                     alone.at("summary").at("tpot_ms").at("p50").to_number<double>();
  CHECK(ratio > 1);
  CHECK(ratio < 1.05);
  // 500 rows of a prompt and 19 of tokens, twice, of 4096 floats.
  CHECK(four.at("stages").at(0).at("sent_bytes").to_number<double>() == 2. * 519 * 4096 * 4);
  CHECK(four.at("stages").at(3).at("sent_bytes").to_number<double>() == 0);
  CHECK(four.at("cost").to_number<double>() == doctest::Approx(16 * four.at("makespan_s").to_number<double>() / 3600));
}

TEST_CASE("cokv simulate: stages of one machine don't talk over the network") {
  const folder dir;
  const auto tpot = [&](const char* gpus, const char* seconds) {
    const auto cluster = dir.file(
        "c.json", R"({"machines": [{"name": "m", "count": 4, "gpus": )" + std::string(gpus) +
                      R"(, "gpu": "a100", "network_bytes_per_second": 12.5e9, "network_seconds": )" + seconds + "}]}");
    return told(dir, {"--model", llama, "--cluster", cluster, "--pipeline", "4", "--closed-loop", "1", "--requests",
                      "2", "--lengths", "fixed:500:20"})
        .at("summary")
        .at("tpot_ms")
        .at("p50")
        .to_number<double>();
  };
  CHECK(tpot("4", "0.01") == doctest::Approx(tpot("4", "0")).epsilon(1e-3));
  // Three hops of rows, and the token's to the first stage.
  CHECK(tpot("1", "0.01") == doctest::Approx(tpot("1", "0") + 40).epsilon(0.05));
}

TEST_CASE("cokv simulate: a prompt's last token alone in a step is a prompt's") {
  const folder dir;
  const auto all = told(dir, {"--stage-prompt", "10", "--stage-token", "2", "--max-batched-tokens", "100", "--requests",
                              "1", "--closed-loop", "1", "--lengths", "fixed:101:2"});
  check_times(all.at("requests").at(0), {20, 22});
}

TEST_CASE("cokv simulate: time begins with the first request") {
  const folder dir;
  const auto all = told(dir, {"--stage-prompt", "10", "--stage-token", "2", "--trace",
                              dir.file("t.jsonl", R"({"at": 3600, "prompt_tokens": 10, "output_tokens": 2})")});
  CHECK(all.at("makespan_s").to_number<double>() == doctest::Approx(0.012));
  CHECK(all.at("stages").at(0).at("utilisation").to_number<double>() == doctest::Approx(1));
  CHECK(all.at("stages").at(0).at("bubbles").to_number<double>() == doctest::Approx(0));
}

TEST_CASE("cokv simulate: more requests than a replica takes fail, and their clients wait before they ask again") {
  const folder dir;
  const auto figures = dir.file("f.json");
  CHECK(run({"--stage-prompt", "10", "--stage-token", "2", "--closed-loop", "10", "--max-requests", "4", "--requests",
             "30", "--lengths", "fixed:10:600", "--json", figures})
            .code == 0);
  const auto all = json::parse(text_of(figures));
  const auto& s = all.at("summary");
  CHECK(s.at("failed").to_number<int>() >= 6);
  CHECK(s.at("answered").to_number<int>() >= 8);
  CHECK(s.at("answered").to_number<int>() + s.at("failed").to_number<int>() == 30);
}

TEST_CASE("cokv simulate: by SLO, the bounds that are told decide") {
  const folder dir;
  const auto with = [&](const char* tpot) {
    return json::serialize(
        told(dir, {"--stage-prompt", "30", "--stage-token", "5", "--replicas", "3", "--policy", "slo", "--rate", "40",
                   "--requests", "200", "--lengths", "uniform:10-900:5-200", "--slo-ttft", "1000", "--slo-tpot", tpot})
            .at("stages"));
  };
  CHECK(with("1") != with("100000"));
}

TEST_CASE("cokv simulate: replicas share the load, and more of them are sooner") {
  const folder dir;
  const auto with = [&](const char* n) {
    return told(dir, {"--stage-prompt", "20", "--stage-token", "5", "--replicas", n, "--max-batched-tokens", "100",
                      "--rate", "100", "--requests", "200", "--lengths", "fixed:100:20", "--slo-ttft", "100"});
  };
  const auto one = with("1"), four = with("4");
  CHECK(one.at("summary").at("ttft_ms").at("p50").to_number<double>() >
        2 * four.at("summary").at("ttft_ms").at("p50").to_number<double>());
  for (auto& s : four.at("stages").as_array()) CHECK(s.at("steps").to_number<int>() > 20);
}

TEST_CASE("cokv simulate: the same seed is the same run, to the byte; another one is not") {
  const folder dir;
  const auto text = [&](const char* seed, const char* name) {
    const auto at = dir.file(name);
    CHECK(run({"--stage-prompt", "7", "--stage-token", "1.5", "--pipeline", "3", "--replicas", "2", "--rate", "20",
               "--requests", "40", "--lengths", "uniform:50-500:5-60", "--seed", seed, "--json", at})
              .code == 0);
    return text_of(at);
  };
  const auto first = text("1", "1.json");
  CHECK(first == text("1", "2.json"));
  CHECK(first != text("2", "3.json"));
}

TEST_CASE("cokv simulate: goodput is the greatest rate that meets the bounds, and a GPU's part of it") {
  const folder dir;
  const std::vector<std::string> what{
      "--stage-prompt", "10",           "--stage-token", "2",   "--replicas", "2",  "--max-batched-tokens", "100",
      "--lengths",      "fixed:100:10", "--slo-ttft",    "150", "--slo-tpot", "20", "--duration",           "40"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), what.begin(), what.end());
    return told(dir, more);
  };
  const auto found = with({"--find-goodput"});
  const auto rate = found.at("goodput_per_s").to_number<double>();
  // A replica has a prompt in at most every step of 10 ms: 200 requests a second in all are beyond what two can do.
  CHECK(rate > 40);
  CHECK(rate < 200);
  CHECK(found.at("goodput_per_gpu_s").to_number<double>() == doctest::Approx(rate / 2));
  const auto share = [&](double r) {
    return with({"--rate", std::to_string(r)}).at("summary").at("attainment").to_number<double>();
  };
  CHECK(share(rate) >= 0.9);
  CHECK(share(rate * 1.3) < 0.9);
  CHECK(run({"--stage-prompt", "1", "--stage-token", "1", "--find-goodput"}).err ==
        "cokv: --find-goodput: needs --slo-ttft or --slo-tpot: what is good enough?\n");
}

TEST_CASE("cokv simulate: pictures are written") {
  const folder dir;
  const auto plot = dir.file("p.svg"), timeline = dir.file("t.json");
  const auto r = run({"--stage-prompt", "10", "--stage-token", "2", "--pipeline", "2", "--requests", "5", "--lengths",
                      "fixed:10:3", "--plot", plot, "--timeline", timeline});
  CHECK(r.code == 0);
  CHECK(text_of(plot).starts_with("<svg"));
  const auto spans = text_of(timeline);
  CHECK(spans.find("replica0-stage1") != std::string::npos);
  CHECK(json::parse(spans).is_object());
}

TEST_CASE("cokv simulate: what can't be is one line that names it, and says what could") {
  const folder dir;
  const auto cluster = dir.file("c.json", machines);
  const struct {
    std::vector<std::string> arguments;
    int code;
    std::string line;
  } table[] = {
      {{}, 2, "cokv: --model and --cluster say what a step takes, or --profile, or --stage-prompt and --stage-token"},
      {{"--stage-prompt", "10"}, 2, "cokv: --stage-prompt: goes with --stage-token"},
      {{"--stage-token", "10"}, 2, "cokv: --stage-token: goes with --stage-prompt"},
      {{"--stage-prompt", "0", "--stage-token", "1"}, 2, "cokv: --stage-prompt: "},
      {{"--stage-prompt", "1", "--stage-token", "1", "--model", llama}, 2, "cokv: --stage-prompt excludes --model"},
      {{"--stage-prompt", "1", "--stage-token", "1", "--routers", "2"},
       2,
       "cokv: --routers: 2 of them have no more than 1 replicas to share"},
      {{"--stage-prompt", "1", "--stage-token", "1", "--tensor", "2"}, 2, "cokv: --tensor: "},
      {{"--stage-prompt", "1", "--stage-token", "1", "--microbatches", "2"},
       2,
       "cokv: --microbatches: is for --pipeline"},
      {{"--stage-prompt", "1", "--stage-token", "1", "--closed-loop", "2", "--rate", "3"},
       2,
       "cokv: --rate excludes --closed-loop"},
      {{"--stage-prompt", "1", "--stage-token", "1", "--trace", dir.file("bad.jsonl", "{\"at\": -1}\n")},
       2,
       "cokv: --trace: " + dir.file("bad.jsonl") + ", line 1: "},
      {{"--model", llama, "--cluster", cluster, "--tensor", "8"},
       2,
       "cokv: --tensor: 8 ranks, and a machine four has 4 GPUs: at most 4"},
      {{"--model", llama, "--cluster", cluster, "--tensor", "3"},
       2,
       "cokv: --tensor: 3 ranks can't share 32 heads equally; 1, 2 can"},
      {{"--model", llama, "--cluster", cluster, "--pipeline", "40"}, 2, "cokv: --pipeline: "},
      {{"--model", llama, "--cluster", cluster, "--replicas", "9"},
       2,
       "cokv: --replicas: 9 of 1 stages of 1 GPUs take 3 machines four, and there are 2: 8 are feasible"},
      {{"--model", llama70, "--cluster", cluster},
       2,
       "cokv: --pipeline: the first of 1 stages has 141.1 GB of weights, and 1 GPUs have 72.0 GB for them and KV: 2 "
       "stages"},
      {{"--model", llama, "--cluster", cluster, "--kv-blocks", "100000"},
       2,
       "cokv: --kv-blocks: 100000; there is room for "},
      {{"--stage-prompt", "1", "--stage-token", "1", "--json", "/nowhere/x"},
       2,
       "cokv: --json: /nowhere/x can't be written"},
      {{"--stage-prompt", "1", "--stage-token", "1", "--kv-blocks", "4", "--lengths", "fixed:100:10"},
       2,
       "cokv: --lengths: a prompt of 100 tokens and its answer of 10 are more than a sequence has, 64; --max-prompt"},
      {{"--stage-prompt", "1", "--stage-token", "1", "--pipeline", "65"}, 2, "cokv: --pipeline: 65: takes"},
      {{"--stage-prompt", "1", "--stage-token", "1", "--dtype", "f32"}, 2, "cokv: "},
      {{"--stage-prompt", "1", "--stage-token", "1", "--closed-loop", "2", "--duration", "3"}, 2, "cokv: "},
      {{"--stage-prompt", "1", "--stage-token", "1", "--replicas", "100000", "--kv-blocks", "1000000"},
       2,
       "cokv: out of memory: blocks (--replicas, --kv-blocks) "},
      {{"--stage-prompt", "1e6", "--stage-token", "1e6", "--requests", "2", "--lengths", "fixed:10:40000"},
       1,
       "cokv: simulate: it takes more than a year"},
  };
  for (auto& t : table) {
    const auto r = run(t.arguments);
    CAPTURE(r.err);
    CAPTURE(t.line);
    CHECK(r.code == t.code);
    CHECK(r.err.starts_with(t.line));
    CHECK(std::count(r.err.begin(), r.err.end(), '\n') == (t.line.empty() ? 0 : 1));
  }
}
