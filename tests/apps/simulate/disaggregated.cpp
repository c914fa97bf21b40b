// Whole runs of `cokv simulate` where some replicas compute prompts and others decode: against calculations by hand, and with
// input that can't be.
#include "apps/simulate/runs.hpp"
#include "fit/profile.hpp"

using namespace cokv::test;
using namespace cokv::test::simulated;

namespace {

namespace json = boost::json;

using arguments = std::vector<std::string>;

arguments operator+(arguments a, const arguments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// A step of at most one prompt.
const arguments by_hand{"--max-batched-tokens", "100", "--prefill-replicas", "1"};

double number(const json::value& v) { return v.to_number<double>(); }

// Machines of A100s between which there is a network of so many bytes a second.
std::string machines_of(int count, int gpus, const char* network) {
  return R"({"machines": [{"name": "m", "count": )" + std::to_string(count) + R"(, "gpus": )" + std::to_string(gpus) +
         R"(, "gpu": "a100", "network_bytes_per_second": )" + network + R"(, "network_seconds": 0}]})";
}

}  // namespace

// Two prompts, A and B, in one stage, and their answers of 6 and 3 tokens in another: a prompt takes 10 ms, its KV 3.5 behind it, a
// token 3. The first token is told as soon as it is known; the second needs the KV. B is asked a millisecond behind A.
//
//     prefill    A 0-10    B 10-20
//     KV             A 10-13.5     B 20-23.5
//     decode               A2 13.5-16.5  A3 -19.5  A4 -22.5  A5 -25.5  A6,B2 -28.5  B3 -31.5
//
// B's KV is there at 23.5, in the middle of A5's step.
TEST_CASE("cokv simulate, disaggregated: two prompts and their answers, by hand") {
  const command_folder dir;
  const auto trace = dir.file("t.jsonl",
                              R"({"at": 0, "prompt_tokens": 100, "output_tokens": 6}
                                 {"at": 0.001, "prompt_tokens": 100, "output_tokens": 3})");
  const auto all = told(
      dir, by_hand + arguments{"--stage-prompt", "10", "--stage-token", "3", "--stage-cache", "3.5", "--trace", trace});
  const auto &a = all.at("requests").at(0), &b = all.at("requests").at(1);
  check_times(a, {10, 16.5, 19.5, 22.5, 25.5, 28.5});
  check_times(b, {20 - 1, 28.5 - 1, 31.5 - 1});
  CHECK(number(all.at("makespan_s")) == doctest::Approx(0.0315));
  CHECK(number(a.at("prompt_ms")) == doctest::Approx(10));
  CHECK(number(b.at("prompt_ms")) == doctest::Approx(19));
  for (auto* r : {&a, &b}) CHECK(number(r->at("kv_wait_ms")) == doctest::Approx(3.5));
  const auto &prefill = all.at("stages").at(0), &decode = all.at("stages").at(1);
  CHECK(prefill.at("role") == "prefill");
  CHECK(decode.at("role") == "decode");
  CHECK(prefill.at("steps") == 2);
  CHECK(decode.at("steps") == 6);
  CHECK(number(prefill.at("utilisation")) == doctest::Approx(20 / 31.5));
  CHECK(number(decode.at("utilisation")) == doctest::Approx(18 / 31.5));
  CHECK(number(prefill.at("kv_sending_s")) == doctest::Approx(0.007));
}

// KV that takes longer than a prompt waits for the one before it: a stage has one way out.
//
//     prefill    A 0-10    B 10-20
//     KV             A 10-25       B 25-40
TEST_CASE("cokv simulate, disaggregated: KV of one prompt leaves a stage behind that of another") {
  const command_folder dir;
  const auto all = told(dir, by_hand + arguments{"--stage-prompt", "10", "--stage-token", "2", "--stage-cache", "15",
                                                 "--trace", dir.file("t.jsonl", trace_of({2, 2}))});
  check_times(all.at("requests").at(0), {10, 27});
  check_times(all.at("requests").at(1), {20, 42});
  CHECK(number(all.at("requests").at(1).at("kv_wait_ms")) == doctest::Approx(20));
}

// Three stages for prompts and two for answers: KV of the second goes to both. Decoding begins when the last of it is there.
//
//     prefill 0    A 0-10    B 10-20                         its KV  A 10-13   B 20-23
//     prefill 1              A 10-20   B 20-30                         A 20-23   B 30-33
//     prefill 2                        A 20-30   B 30-40                         A 30-33    B 40-43
//     decode 0                                         A2 33-35             B2 43-45
//     decode 1                                              A2 35-37             B2 45-47
TEST_CASE("cokv simulate, disaggregated: pipelines of other depths, by hand") {
  const command_folder dir;
  const auto all = told(
      dir, by_hand + arguments{"--prefill-pipeline", "3", "--pipeline", "2", "--stage-prompt", "10", "--stage-token",
                               "2", "--stage-cache", "3", "--trace", dir.file("t.jsonl", trace_of({2, 2}))});
  check_times(all.at("requests").at(0), {30, 37});
  check_times(all.at("requests").at(1), {40, 47});
  std::vector<std::string> kv;
  for (auto& l : all.at("links").as_array())
    if (l.at("kv").as_bool())
      kv.push_back(std::string(l.at("from").as_string()) + ">" + std::string(l.at("to").as_string()));
  CHECK(kv == std::vector<std::string>{"prefill0-stage0>decode0-stage0", "prefill0-stage1>decode0-stage0",
                                       "prefill0-stage1>decode0-stage1", "prefill0-stage2>decode0-stage1"});
}

// With room for both prompts in a step their KV leaves together. It is there in order: the first of them decodes at once, and the
// other in the step behind that.
TEST_CASE("cokv simulate, disaggregated: --stage-cache is a step's, of however many prompts") {
  const command_folder dir;
  const auto first = R"({"at": 0, "prompt_tokens": 100, "output_tokens": 1})";
  // The first is planned alone, as it comes; the others wait for it and go together.
  const auto all =
      told(dir, {"--prefill-replicas", "1", "--max-batched-tokens", "200", "--stage-prompt", "10", "--stage-token", "2",
                 "--stage-cache", "4", "--trace", dir.file("t.jsonl", std::string(first) + '\n' + trace_of({2, 2}))});
  check_times(all.at("requests").at(0), {10});
  check_times(all.at("requests").at(1), {20, 26});
  check_times(all.at("requests").at(2), {20, 28});
}

TEST_CASE(
    "cokv simulate, disaggregated: an answer of one token needs no KV, and without --stage-cache it takes no time") {
  const command_folder dir;
  const auto all = told(dir, by_hand + arguments{"--stage-prompt", "10", "--stage-token", "2", "--trace",
                                                 dir.file("t.jsonl", trace_of({1, 2}))});
  check_times(all.at("requests").at(0), {10});
  check_times(all.at("requests").at(1), {20, 22});
}

TEST_CASE("cokv simulate, disaggregated: a prompt waits for room where it will be decoded") {
  const command_folder dir;
  // Seven blocks each: two of them at most, and of those on their way one.
  const auto all = told(dir, by_hand + arguments{"--stage-prompt", "10", "--stage-token", "2", "--kv-blocks", "16",
                                                 "--trace", dir.file("t.jsonl", trace_of({12, 12, 12}))});
  check_times(all.at("requests").at(0), {10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32});
  CHECK(number(all.at("requests").at(0).at("room_ms")) == 0);
  CHECK(number(all.at("requests").at(1).at("room_ms")) == doctest::Approx(10));
  CHECK(number(all.at("requests").at(2).at("room_ms")) == doctest::Approx(32));
}

// A prompt of Llama-3.1-8B has 131,072 bytes of KV a token, 4,096 of each of 32 layers.
TEST_CASE("cokv simulate, disaggregated: KV is priced by its bytes and the link's bandwidth, layer by layer") {
  const command_folder dir;
  const auto with = [&](int gpus, const char* network) {
    return told(dir, {"--model", llama, "--cluster", dir.file("c.json", machines_of(4, gpus, network)),
                      "--prefill-replicas", "1", "--closed-loop", "1", "--requests", "2", "--lengths", "fixed:500:5"});
  };
  const double kv = 500. * 131072, logits = 1e3 * 2 * 128256 * 4096 / (0.8 * 2.039e12);
  // Far slower than the prompt: from the first layer's KV on the link is never idle.
  const auto slow = with(1, "1e8");
  const auto& r = slow.at("requests").at(1);
  const double prompt = number(r.at("prompt_ms"));
  CHECK(number(r.at("kv_wait_ms")) + prompt == doctest::Approx((prompt - logits) / 32 + 1e3 * kv / 1e8).epsilon(1e-4));
  CHECK(number(slow.at("kv_bytes")) == 2 * kv);
  CHECK(number(slow.at("links").at(0).at("bytes")) == 2 * kv);
  // Faster than the prompt: all but the last layer's is hidden, and of that what the logits take.
  const auto fast = with(1, "2e9");
  CHECK(number(fast.at("requests").at(1).at("kv_wait_ms")) ==
        doctest::Approx(1e3 * kv / 32 / 2e9 - logits).epsilon(1e-2));
  // Of one machine it goes from GPU to GPU.
  CHECK(number(with(2, "1e8").at("requests").at(1).at("kv_wait_ms")) < 0.1);
}

TEST_CASE("cokv simulate, disaggregated: stages send what the others decode with, and no more") {
  const command_folder dir;
  const auto all = told(dir, {"--model", llama, "--cluster", dir.file("c.json", machines_of(6, 1, "12.5e9")),
                              "--prefill-replicas", "1", "--prefill-pipeline", "2", "--pipeline", "4", "--closed-loop",
                              "3", "--requests", "6", "--lengths", "fixed:300:4"});
  double kv = 0;
  int links = 0;
  for (auto& l : all.at("links").as_array()) {
    if (!l.at("kv").as_bool()) continue;
    ++links;
    kv += number(l.at("bytes"));
    CHECK(number(l.at("bytes")) == 6. * 300 * 8 * 4096);  // 8 layers
  }
  CHECK(links == 4);
  CHECK(kv == number(all.at("kv_bytes")));
  CHECK(kv == 6. * 300 * 131072);
}

// Between machines of two GPUs there is a slow network: whether KV has to cross it is a matter of what lies where.
TEST_CASE("cokv simulate, disaggregated: the stages of a pair lie on one machine, and so does their KV") {
  const command_folder dir;
  const auto with = [&](const arguments& more) {
    return told(dir, arguments{"--model", llama, "--cluster", dir.file("c.json", machines_of(4, 2, "1e8")),
                               "--prefill-replicas", "2", "--prefill-pipeline", "2", "--replicas", "2", "--pipeline",
                               "2", "--closed-loop", "2", "--requests", "6", "--lengths", "fixed:500:5"} +
                         more);
  };
  const auto apart = with({}), pairs = with({"--pairs"});
  for (auto& r : pairs.at("requests").as_array()) CHECK(number(r.at("kv_wait_ms")) < 0.1);
  for (auto& r : apart.at("requests").as_array()) CHECK(number(r.at("kv_wait_ms")) > 100);
  CHECK(number(pairs.at("kv_bytes")) == 6. * 500 * 131072);
  for (auto& l : pairs.at("links").as_array()) {
    if (!l.at("kv").as_bool()) continue;
    auto to = std::string(l.at("from").as_string());
    CHECK(l.at("to").as_string() == to.replace(0, 7, "decode"));
  }
}

// Two hosts that send to one at once: what it takes in is one link's.
TEST_CASE("cokv simulate, disaggregated: prompts from two replicas share the way in") {
  const command_folder dir;
  const auto last = [&](const char* replicas) {
    const auto all =
        told(dir, {"--model", llama, "--cluster", dir.file("c.json", machines_of(4, 1, "1e8")), "--replicas", replicas,
                   "--prefill-replicas", "2", "--trace", dir.file("t.jsonl", trace_of({2, 2}, 500))});
    return std::max(times(all.at("requests").at(0)).back(), times(all.at("requests").at(1)).back());
  };
  CHECK(last("1") == doctest::Approx(2 * last("2")).epsilon(0.1));
}

TEST_CASE("cokv simulate, disaggregated: by a profile, with bytes of KV and cores that are shared") {
  const command_folder dir;
  cokv::fit::profile p{.machine = "made up",
                       .model = "none",
                       .dtype = "bf16",
                       .cores = 2,
                       .layers = 4,
                       .hidden = 64,
                       .max_positions = 4096,
                       .kv_bytes = 1000};
  p.prompts = p.prompts_end = cokv::fit::curve({{1, 0.00025}, {100, 0.025}});
  p.answers = p.answers_end = cokv::fit::curve({{1, 0.0005}, {100, 0.0005}});
  p.prompts_beside = p.answers_beside = {1, 2};
  p.copy_bytes_per_second = 1e10;
  p.link_bytes_per_second = 1e7;
  const auto file = dir.file("profile.json", to_text(p));
  const auto trace = dir.file("t.jsonl", trace_of({2}));
  const auto apart = told(dir, {"--profile", file, "--prefill-replicas", "1", "--trace", trace});
  // Each of four layers takes 25 ms, and its KV 10: the last one's is left.
  check_times(apart.at("requests").at(0), {100, 112});
  // On one machine both share its cores, each while the other waits; all layers are there with the last one.
  const auto together =
      told(dir, {"--profile", file, "--prefill-replicas", "1", "--workers-a-machine", "2", "--trace", trace});
  check_times(together.at("requests").at(0), {100, 142});
  p.kv_bytes = 0;
  CHECK(run({"--profile", dir.file("old.json", to_text(p)), "--prefill-replicas", "1"}).err ==
        "cokv: --profile: " + dir.file("old.json") +
            " does not say how many bytes KV has (kv_bytes), which has to get from --prefill-replicas to the others; "
            "cokv "
            "fit does\n");
}

TEST_CASE("cokv simulate, disaggregated: replicas of both roles share the load, and routers the replicas") {
  const command_folder dir;
  const auto all = told(dir, {"--stage-prompt",       "20",  "--stage-token", "5",
                              "--stage-cache",        "2",   "--replicas",    "4",
                              "--prefill-replicas",   "2",   "--routers",     "2",
                              "--max-batched-tokens", "100", "--rate",        "60",
                              "--requests",           "200", "--lengths",     "fixed:100:20",
                              "--slo-ttft",           "100"});
  CHECK(all.at("summary").at("answered") == 200);
  CHECK(all.at("stages").as_array().size() == 6);
  for (auto& s : all.at("stages").as_array()) CHECK(s.at("steps").to_number<int>() > 20);
}

TEST_CASE("cokv simulate, disaggregated: the same seed is the same run, to the byte") {
  const command_folder dir;
  const auto text = [&](const char* seed, const char* name) {
    const auto at = dir.file(name);
    CHECK(run({"--model",
               llama,
               "--cluster",
               dir.file("c.json", machines_of(8, 4, "12.5e9")),
               "--replicas",
               "2",
               "--pipeline",
               "2",
               "--prefill-replicas",
               "3",
               "--prefill-tensor",
               "2",
               "--rate",
               "40",
               "--requests",
               "60",
               "--lengths",
               "uniform:50-1500:5-60",
               "--seed",
               seed,
               "--json",
               at})
              .code == 0);
    return text_of(at);
  };
  const auto first = text("1", "1.json");
  CHECK(first == text("1", "2.json"));
  CHECK(first != text("2", "3.json"));
}

TEST_CASE("cokv simulate, disaggregated: goodput is of the GPUs of both roles") {
  const command_folder dir;
  const auto found = told(dir, {"--stage-prompt", "10", "--stage-token", "2", "--replicas", "1", "--prefill-replicas",
                                "2", "--max-batched-tokens", "100", "--lengths", "fixed:100:10", "--slo-ttft", "150",
                                "--slo-tpot", "20", "--duration", "40", "--find-goodput"});
  CHECK(number(found.at("goodput_per_gpu_s")) == doctest::Approx(number(found.at("goodput_per_s")) / 3));
}

TEST_CASE("cokv simulate, disaggregated: table and pictures know the roles") {
  const command_folder dir;
  const auto plot = dir.file("p.svg"), timeline = dir.file("t.json");
  const auto r =
      run({"--model", llama, "--cluster", dir.file("c.json", machines_of(4, 1, "12.5e9")), "--prefill-replicas", "1",
           "--pipeline", "2", "--requests", "3", "--lengths", "fixed:100:3", "--plot", plot, "--timeline", timeline});
  CHECK(r.code == 0);
  for (auto text : {"KV wait", "prefill 0 ", "decode 1 ", "KV from prefill 0 to decode 1: 0.020 GB"})
    CHECK_MESSAGE(r.out.find(text) != std::string::npos, text);
  CHECK(text_of(plot).find("1 x 1 stages for prompts, 1 x 2 stages for answers") != std::string::npos);
  const auto spans = text_of(timeline);
  for (auto track : {"prefill0-stage0", "prefill0-stage0: KV", "decode0-stage1"})
    CHECK_MESSAGE(spans.find('"' + std::string(track) + '"') != std::string::npos, track);
  CHECK(json::parse(spans).is_object());
}

TEST_CASE("cokv simulate, disaggregated: what can't be is one line that names it, and says what could") {
  const command_folder dir;
  const auto sheet = [&](int count, int gpus) {
    return arguments{"--model", llama, "--cluster", dir.file("c.json", machines_of(count, gpus, "12.5e9"))};
  };
  const arguments fixed{"--stage-prompt", "1", "--stage-token", "1"};
  const struct {
    arguments what;
    std::string line;
  } table[] = {
      {fixed + arguments{"--prefill-pipeline", "2"},
       "cokv: --prefill-pipeline: is for --prefill-replicas, which compute prompts for the others"},
      {fixed + arguments{"--prefill-tensor", "2"}, "cokv: --prefill-tensor: is for --prefill-replicas"},
      {fixed + arguments{"--prefill-kv-blocks", "2"}, "cokv: --prefill-kv-blocks: is for --prefill-replicas"},
      {fixed + arguments{"--stage-cache", "2"}, "cokv: --stage-cache: is for --prefill-replicas"},
      {{"--stage-cache", "2", "--prefill-replicas", "1"},
       "cokv: --stage-cache: goes with --stage-prompt and --stage-token"},
      {sheet(4, 4) + arguments{"--stage-cache", "2", "--prefill-replicas", "1"}, "cokv: --"},
      {sheet(4, 4) + arguments{"--pairs"}, "cokv: --pairs: is for --prefill-replicas, each beside one that decodes"},
      {fixed + arguments{"--prefill-replicas", "1", "--pairs"}, "cokv: --pairs: is for --cluster, which says how many"},
      {sheet(4, 4) + arguments{"--prefill-replicas", "2", "--pairs"},
       "cokv: --pairs: 2 that compute prompts and 1 that decode are no pairs; --replicas 2 are"},
      {sheet(4, 4) + arguments{"--prefill-replicas", "1", "--pipeline", "2", "--pairs"},
       "cokv: --pairs: 1 stages and 2 can't lie side by side; --prefill-pipeline 2 can"},
      {sheet(4, 4) + arguments{"--prefill-replicas", "1", "--tensor", "4", "--pairs"},
       "cokv: --pairs: 1 and 4 GPUs of a stage are more than a machine has, 4"},
      {sheet(2, 4) + arguments{"--prefill-replicas", "3", "--replicas", "3", "--tensor", "2", "--pairs"},
       "cokv: --replicas: 3 pairs of 1 stages of 1 and 2 GPUs take 3 machines m, and there are 2: 2 are feasible"},
      {sheet(2, 4) + arguments{"--prefill-replicas", "2", "--replicas", "2", "--routers", "2", "--pairs"},
       "cokv: --routers: each of --pairs has one of its own"},
      {fixed + arguments{"--prefill-replicas", "0"}, "cokv: --prefill-replicas: 0: takes an integer from 1 to 100000"},
      {fixed + arguments{"--prefill-replicas", "1", "--stage-cache", "-1"}, "cokv: --stage-cache: "},
      {fixed + arguments{"--prefill-replicas", "1", "--prefill-tensor", "2"},
       "cokv: --prefill-tensor: times that are told"},
      {fixed + arguments{"--prefill-replicas", "1", "--tensor", "2"}, "cokv: --tensor: times that are told"},
      {fixed + arguments{"--prefill-replicas", "1", "--replicas", "2", "--routers", "2"},
       "cokv: --routers: 2 of them have no more than 1 prefill replicas to share"},
      {fixed + arguments{"--prefill-replicas", "1", "--prefill-kv-blocks", "4", "--lengths", "fixed:100:10"},
       "cokv: --lengths: a prompt of 100 tokens and one behind it are more than a prefill replica has room for, 64"},
      {fixed + arguments{"--prefill-replicas", "100000", "--prefill-kv-blocks", "1000000"},
       "cokv: out of memory: blocks (--replicas, --kv-blocks) "},
      {sheet(4, 4) + arguments{"--prefill-replicas", "1", "--prefill-tensor", "8"},
       "cokv: --prefill-tensor: 8 ranks, and a machine m has 4 GPUs: at most 4"},
      {sheet(4, 4) + arguments{"--prefill-replicas", "1", "--prefill-tensor", "3"},
       "cokv: --prefill-tensor: 3 ranks can't share 32 heads equally; 1, 2 can"},
      {sheet(4, 4) + arguments{"--prefill-replicas", "1", "--prefill-pipeline", "40"}, "cokv: --prefill-pipeline: "},
      {sheet(4, 4) + arguments{"--prefill-replicas", "1", "--prefill-kv-blocks", "1000000"},
       "cokv: --prefill-kv-blocks: 1000000; there is room for "},
      {sheet(2, 4) + arguments{"--prefill-replicas", "3", "--prefill-tensor", "2", "--replicas", "4"},
       "cokv: --replicas: 4 of 1 stages of 1 GPUs beside 3 that compute prompts take 3 machines m, and there are 2: 2 "
       "are "
       "feasible"},
      {sheet(2, 4) + arguments{"--prefill-replicas", "9"},
       "cokv: --prefill-replicas: 9 of 1 stages of 1 GPUs beside 1 that decode take 3 machines m, and there are 2: 7 "
       "are "
       "feasible"},
  };
  for (auto& t : table) {
    const auto r = run(t.what);
    CAPTURE(r.err);
    CAPTURE(t.line);
    CHECK(r.code == 2);
    CHECK(r.err.starts_with(t.line));
    CHECK(std::count(r.err.begin(), r.err.end(), '\n') == 1);
  }
}
