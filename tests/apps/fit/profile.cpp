// Profiles: what is read is what was written, what is no profile is refused by its field, and steps take what one says, by hand.
#include "fit/profile.hpp"

#include <boost/json.hpp>

#include "apps/command.hpp"
#include "cokv/runtime/error.hpp"
#include "simulate/price.hpp"

using namespace cokv;
using namespace cokv::fit;
using namespace cokv::test;
namespace json = boost::json;

namespace {

// Of four layers, the last with all that is behind it: a millisecond for each token of a prompt, two for a step of answers of any
// number; nothing else.
profile plain() {
  profile p{.machine = "made up",
            .model = "none",
            .dtype = "bf16",
            .source = "a test",
            .cores = 2,
            .threads = 1,
            .layers = 4,
            .hidden = 64,
            .max_positions = 4096,
            .prompts = curve({{1, 0.00025}, {100, 0.025}}),
            .answers = curve({{1, 0.0005}, {100, 0.0005}}),
            .prompts_end = curve({{1, 0.00025}, {100, 0.025}}),
            .answers_end = curve({{1, 0.0005}, {100, 0.0005}})};
  p.prompts_beside = p.answers_beside = {1, 2};
  p.copy_bytes_per_second = 1e10;
  p.link_bytes_per_second = 1e15;
  return p;
}

std::string refused(const std::function<void(json::object&)>& change) {
  auto v = json::parse(to_text(plain())).as_object();
  change(v);
  try {
    (void)parse_profile(json::serialize(v), "file");
  } catch (const config_error& e) {
    return e.what();
  }
  return "taken";
}

json::value told(const command_folder& dir, const profile& p, const std::string& trace, std::vector<std::string> more) {
  const auto figures = dir.file("figures.json");
  more.insert(more.end(), {"--profile", dir.file("profile.json", to_text(p)), "--trace", dir.file("t.jsonl", trace),
                           "--json", figures});
  const auto r = run_command("simulate", std::move(more));
  CHECK(r.code == 0);
  CHECK(r.err == "");
  return json::parse(text_of(figures));
}

std::string asked(int prompt, int output) {
  return R"({"at": 0, "prompt_tokens": )" + std::to_string(prompt) + R"(, "output_tokens": )" + std::to_string(output) +
         "}\n";
}

double ttft(const json::value& all, std::size_t i) {
  return all.at("requests").at(i).at("ttft_ms").to_number<double>();
}

}  // namespace

TEST_CASE("profile: a curve goes through its points, straight on behind them, and through nothing before them") {
  const curve c({{2, 4}, {4, 5}, {8, 9}});
  for (auto [x, y] : {std::pair{0., 0.}, {1, 2}, {2, 4}, {3, 4.5}, {4, 5}, {6, 7}, {8, 9}, {10, 11}})
    CHECK(c.at(x) == doctest::Approx(y));
  CHECK(curve({{4, 8}}).at(8) == doctest::Approx(16));
  CHECK(curve().at(3) == 0);
}

TEST_CASE("profile: what is read is what was written") {
  auto p = plain();
  p.prompt_pair = 1.25e-7, p.answer_pair = 3e-6, p.step = 1e-5, p.token = 2e-6, p.link_seconds = 2e-5;
  CHECK(parse_profile(to_text(p), "file").kv_bytes == 0);  // as before it was told
  p.kv_bytes = 4096;
  const auto r = parse_profile(to_text(p), "file");
  CHECK(to_text(r) == to_text(p));
  CHECK(r.kv_bytes == 4096);
  CHECK(r.prompts.points() == p.prompts.points());
  CHECK(r.prompts_beside == p.prompts_beside);
  CHECK(r.prompt_pair == p.prompt_pair);
  CHECK(r.source == "a test");
  CHECK(r.prompts_idle.points().empty());
  CHECK(r.pipeline_tokens.empty());
  p.prompts_idle = curve({{0.001, 0.0002}, {0.5, 0.01}}), p.answers_idle = curve({{0.025, 0}});
  p.pipeline_tokens = {{0.102, 0.15}, {0.099, 0.15, 0.25}}, p.answer_tokens = 60;
  CHECK(parse_profile(to_text(p), "file").prompt_tokens == 0);
  p.pipeline_prompts = {0.98, 1.2}, p.prompt_tokens = 256;
  const auto late = parse_profile(to_text(p), "file");
  CHECK(late.prompts_idle.points() == p.prompts_idle.points());
  CHECK(late.answers_idle.points() == p.answers_idle.points());
  CHECK(late.pipeline_tokens == p.pipeline_tokens);
  CHECK(late.answer_tokens == 60);
  CHECK(late.pipeline_prompts == p.pipeline_prompts);
  CHECK(late.prompt_tokens == 256);
}

TEST_CASE("profile: what is missing, unknown, or contradicts itself is refused by the file's and the field's name") {
  for (const char* field : {"machine",
                            "cores",
                            "model",
                            "dtype",
                            "threads",
                            "layers",
                            "hidden",
                            "max_positions",
                            "prompts",
                            "answers",
                            "prompt_pair",
                            "answer_pair",
                            "prompts_end",
                            "answers_end",
                            "step",
                            "token",
                            "prompts_beside",
                            "answers_beside",
                            "copy_bytes_per_second",
                            "link_bytes_per_second",
                            "link_seconds"})
    CHECK_MESSAGE(refused([&](auto& o) { o.erase(field); }).starts_with(std::string("file: ") + field + ": missing"),
                  field);
  CHECK(refused([](auto& o) { o["speed"] = 1; }) == "file: speed: no such field of a profile");
  CHECK(refused([](auto& o) { o["dtype"] = "f64"; }) == "file: dtype: f64 is not bf16 or f32");
  CHECK(refused([](auto& o) { o["step"] = -1; }) == "file: step: -1 is not in 0 to 10000");
  CHECK(refused([](auto& o) { o["kv_bytes"] = 0; }).starts_with("file: kv_bytes: 0 is not in 1 to "));
  CHECK(refused([](auto& o) { o["layers"] = 0; }) == "file: layers: 0 is not in 1 to 4096");
  CHECK(
      refused([](auto& o) { o["link_bytes_per_second"] = 0; }).starts_with("file: link_bytes_per_second: 0 is not in"));
  CHECK(refused([](auto& o) { o["prompts"] = json::array(); }) == "file: prompts: has to have 1 to 1000 points");
  CHECK(refused([](auto& o) { o["prompts"] = json::parse("[[1, 2], [1, 3]]"); }) ==
        "file: prompts: 1: counts are whole, and ascend from 1 on");
  CHECK(refused([](auto& o) { o["prompts"] = json::parse("[[1.5, 2]]"); }) ==
        "file: prompts: 1.5: counts are whole, and ascend from 1 on");
  CHECK(refused([](auto& o) { o["answers"] = json::parse("[[1, -2]]"); }) ==
        "file: answers: -2 is not in 0 to 10000 seconds");
  CHECK(refused([](auto& o) { o["answers_end"] = json::parse("[[1]]"); }) ==
        "file: answers_end: has a point that is not [count, seconds]");
  CHECK(refused([](auto& o) { o["prompts"] = json::parse("[[1, 2], [3, 1]]"); }) ==
        "file: prompts: 3 take less than 1: 2 seconds at the least");
  CHECK(refused([](auto& o) { o["answers_idle"] = json::parse("[[0.5, 0], [0.5, 1]]"); }) ==
        "file: answers_idle: 0.5: pauses are longer than 0, and ascend");
  CHECK(refused([](auto& o) { o["prompts_idle"] = json::parse("[[0.5]]"); }) ==
        "file: prompts_idle: has a point that is not [seconds, seconds]");
  const auto refused_pipelines = [](const char* all, std::int64_t tokens = 24) {
    return refused([&](auto& o) { o["pipeline_tokens"] = json::parse(all), o["answer_tokens"] = tokens; });
  };
  CHECK(refused_pipelines("[[0.1, 0.2]]") == "taken");
  CHECK(refused_pipelines("[[1, 1, 2]]") == "file: pipeline_tokens: of 2 workers has no list of 1 to 2 numbers");
  CHECK(refused_pipelines("[[1, 1], []]") == "file: pipeline_tokens: of 3 workers has no list of 1 to 3 numbers");
  CHECK(refused_pipelines("[1]") == "file: pipeline_tokens: of 2 workers has no list of 1 to 2 numbers");
  CHECK(refused_pipelines("[]") == "file: pipeline_tokens: has to have 1 to 4096 lists");
  CHECK(refused_pipelines("[[1, 0]]") ==
        "file: pipeline_tokens: has something that is not above 0, and at most 10000 seconds");
  CHECK(refused_pipelines("[[1, 2]]", 1) == "file: answer_tokens: 1 is not in 2 to 4095");
  CHECK(refused_pipelines("[[1, 2]]", 4096) == "file: answer_tokens: 4096 is not in 2 to 4095");
  CHECK(refused([](auto& o) { o["answer_tokens"] = 24; }) == "file: pipeline_tokens: missing");
  CHECK(refused([](auto& o) { o["pipeline_tokens"] = json::parse("[[1, 2]]"); }) == "file: answer_tokens: missing");
  const auto refused_first = [](const char* times, std::int64_t tokens) {
    return refused([&](auto& o) {
      o["pipeline_tokens"] = json::parse("[[1, 2]]"), o["answer_tokens"] = 24;
      o["pipeline_prompts"] = json::parse(times), o["prompt_tokens"] = tokens;
    });
  };
  CHECK(refused_first("[1.5]", 64) == "taken");
  CHECK(refused_first("[1, 1.5]", 64) == "file: pipeline_prompts: is not of as many workers as pipeline_tokens");
  CHECK(refused_first("[\"a\"]", 64) ==
        "file: pipeline_prompts: has something that is not above 0, and at most 10000 seconds");
  CHECK(refused_first("[1.5]", 0).starts_with("file: prompt_tokens: 0 is not in 1 to "));
  CHECK(refused([](auto& o) { o["prompt_tokens"] = 64; }) == "file: pipeline_prompts: missing");
  CHECK(refused([](auto& o) { o["pipeline_prompts"] = json::array(); }) == "file: prompt_tokens: missing");
  CHECK(refused([](auto& o) { o["prompt_pair"] = 2; }) == "file: prompt_pair: 2 is not in 0 to 1");
  CHECK(refused([](auto& o) { o["threads"] = 3; }) == "file: threads: 3 is not in 1 to 2");
  CHECK(refused([](auto& o) { o["prompts_beside"] = json::parse("[2, 3]"); }) ==
        "file: prompts_beside: begins with 1: a worker beside nobody");
  CHECK(refused([](auto& o) { o["answers_beside"] = json::parse("[1, 0.5]"); }) ==
        "file: answers_beside: has something that is no number in 1 to 1e6");
  CHECK(refused([](auto& o) { o["answers_beside"] = json::parse("[1]"); }) ==
        "file: answers_beside: is not of as many workers as prompts_beside");
}

TEST_CASE("cokv simulate --profile: a step takes what the profile says of its rows, pairs and samples") {
  const command_folder dir;
  auto p = plain();
  const auto all = told(dir, p, asked(100, 3), {});
  CHECK(ttft(all, 0) == doctest::Approx(100));
  for (auto& gap : all.at("requests").at(0).at("gaps_ms").as_array())
    CHECK(gap.to_number<double>() == doctest::Approx(2));
  // A prompt's token i looks at i tokens, an answer's first at 101, the one in three layers, the other in four; a step and a token
  // have a share of their own.
  p.prompt_pair = 1e-6 / 3, p.answer_pair = 1e-5 / 4, p.step = 0.0003, p.token = 0.0002;
  const auto more = told(dir, p, asked(100, 2), {});
  CHECK(ttft(more, 0) == doctest::Approx(100 + 5050 * 1e-3 + 0.3 + 0.2));
  CHECK(more.at("requests").at(0).at("gaps_ms").at(0).to_number<double>() ==
        doctest::Approx(2 + 101 * 1e-2 + 0.3 + 0.2));
  // The second of two stages has one layer of three, and the end; the first one tells the token.
  const auto stages = told(dir, p, asked(100, 1), {"--pipeline", "2"});
  CHECK(stages.at("stages").at(0).at("busy_s").to_number<double>() ==
        doctest::Approx((50 + 5.05 * 2 / 3 + 0.3 + 0.2) / 1e3));
  CHECK(stages.at("stages").at(1).at("busy_s").to_number<double>() == doctest::Approx((50 + 5.05 / 3 + 0.3) / 1e3));
}

// Two workers on one machine, each twice as slow beside the other: 50 ms of A's take 100; B has 50 of its 100 left then, and is
// alone.
TEST_CASE("cokv simulate --profile: workers of a machine slow each other down while both compute") {
  const command_folder dir;
  const auto both = asked(50, 1) + asked(100, 1);
  const auto apart = told(dir, plain(), both, {"--replicas", "2"});
  CHECK(ttft(apart, 0) == doctest::Approx(50));
  CHECK(ttft(apart, 1) == doctest::Approx(100));
  const auto together = told(dir, plain(), both, {"--replicas", "2", "--workers-a-machine", "2"});
  CHECK(ttft(together, 0) == doctest::Approx(100));
  CHECK(ttft(together, 1) == doctest::Approx(150));
  // One of two stages at a time: nobody is beside it.
  const auto stages = told(dir, plain(), asked(100, 1), {"--pipeline", "2", "--workers-a-machine", "2"});
  CHECK(ttft(stages, 0) == doctest::Approx(100));
}

TEST_CASE("cokv simulate --profile: what does not fit is told in a line") {
  const command_folder dir;
  const auto file = dir.file("profile.json", to_text(plain()));
  const auto refused = [](std::vector<std::string> more) {
    const auto r = run_command("simulate", std::move(more));
    CHECK(r.code == 2);
    return r.err;
  };
  CHECK(refused({"--profile", file, "--pipeline", "5"}) ==
        "cokv: --pipeline: 5 stages of 4 layers; at most one a layer\n");
  CHECK(refused({"--profile", file, "--replicas", "3", "--workers-a-machine", "3"}) ==
        "cokv: --workers-a-machine: 3, and " + file +
            " says what no more than 2 take beside each other; cokv fit --workers 3 measures them\n");
  CHECK(refused({"--profile", file, "--tensor", "2"}) == "cokv: --tensor: a profile is of whole layers\n");
  CHECK(refused({"--stage-prompt", "1", "--stage-token", "1", "--workers-a-machine", "2"}) ==
        "cokv: --workers-a-machine: is for --profile, which says what they take beside each other\n");
  CHECK(refused({"--profile", dir.file("none.json")}).starts_with("cokv: " + dir.file("none.json") + ": "));
  CHECK(refused({"--profile", dir.file("bad.json", "{}")}) == "cokv: " + dir.file("bad.json") + ": machine: missing\n");
}

TEST_CASE("cokv fit --sheet: a simulation by the profile says what one by the sheet says") {
  const command_folder dir;
  const auto file = dir.file("sheet.json");
  const std::string model = COKV_SOURCE_DIR "/bench/geometries/llama-3.1-8b.json";
  const std::string tokens = COKV_SOURCE_DIR "/models/tiny-kjv";
  const auto made =
      run_command("fit", {"--model", tokens, "--random-weights", model, "--sheet", "h100", "--out", file});
  CHECK(made.code == 0);
  const auto p = read_profile(file);
  CHECK(p.source.find("NVIDIA H100 data sheet") == 0);
  CHECK(p.layers == 32);
  CHECK(p.kv_bytes == 2 * 8 * 128 * 2);
  const auto cluster = dir.file("cluster.json", R"({"machines": [{"name": "one", "count": 4, "gpus": 1, "gpu": "h100",
                                                 "network_bytes_per_second": 12.5e9}]})");
  const auto figures = dir.file("figures.json");
  const auto told_by = [&](std::vector<std::string> how) {
    how.insert(how.end(), {"--requests", "60", "--rate", "6", "--lengths", "fixed:700:120", "--kv-blocks", "2000",
                           "--json", figures});
    CHECK(run_command("simulate", how).code == 0);
    return json::parse(text_of(figures)).at("summary");
  };
  const auto by_profile = told_by({"--profile", file}), by_sheet = told_by({"--model", model, "--cluster", cluster});
  for (auto what : {"ttft_ms", "tpot_ms"})
    CHECK(by_profile.at(what).at("p50").to_number<double>() ==
          doctest::Approx(by_sheet.at(what).at("p50").to_number<double>()).epsilon(0.1));
  const auto none = run_command("fit", {"--model", tokens, "--random-weights", model, "--sheet", "b9000"});
  CHECK(none.code != 0);
  CHECK(none.err.find("--sheet: a100, h100 and h200 are known") != std::string::npos);
  CHECK(run_command("fit", {"--model", tokens, "--random-weights", model, "--sheet", "h100", "--threads", "2"}).code !=
        0);
}

TEST_CASE(
    "cokv simulate --profile: a step behind a pause takes as much longer as the pause was long, by its stage's share") {
  const command_folder dir;
  auto p = plain();
  p.prompts_idle = curve({{0.1, 0.010}, {1, 0.050}});
  p.answers_idle = curve({{0.1, 0.100}});  // a millisecond behind one of a millisecond
  const auto one = asked(100, 3);
  const std::string later = R"({"at": 1.104, "prompt_tokens": 100, "output_tokens": 1})";
  const auto whole = told(dir, p, one + later + "\n", {});
  CHECK(ttft(whole, 0) == doctest::Approx(100));  // nothing was before it
  for (auto& gap : whole.at("requests").at(0).at("gaps_ms").as_array())
    CHECK(gap.to_number<double>() == doctest::Approx(2));  // at once behind the one before
  CHECK(ttft(whole, 1) == doctest::Approx(150));
  // Two stages: while one is at a step the other one pauses; the first pause of the last is as long as the prompt's first half.
  const auto apart = told(dir, p, one, {"--pipeline", "2"});
  CHECK(ttft(apart, 0) == doctest::Approx(50 + 50 + 2.5));
}

TEST_CASE("profile: a step that is handed on takes longer by how many compute, or by its pause, whichever is more") {
  auto p = plain();
  const simulate::step prompt{.load = plan::step_load::of(100), .prompts = 1};
  const simulate::hops handed{.by_workers = {0.002, 0.004}};
  const simulate::profile_price apart(p, topology(2), handed);
  CHECK(apart.late(prompt, 1, 0, 1) == 0.002);
  CHECK(apart.late(prompt, 1, 0, 2) == 0.004);
  CHECK(apart.late(prompt, 1, 0.5, 7) == 0.004);
  // Of prompts something else was measured, and others take the processor from them as from answers.
  auto both = handed;
  both.prompts = 0.005;
  const simulate::profile_price prompts_apart(p, topology(2), both);
  CHECK(prompts_apart.late(prompt, 1, 0, 1) == doctest::Approx(0.005));
  CHECK(prompts_apart.late(prompt, 1, 0, 2) == doctest::Approx(0.007));
  CHECK(prompts_apart.late({.load = plan::step_load::of(1)}, 1, 0, 1) == 0.002);
  // A whole model's worker is handed nothing; where others have taken its processor, it waits when it begins.
  const simulate::profile_price whole(p, topology(), handed);
  CHECK(whole.late(prompt, 0, 0, 2) == 0);
  CHECK(whole.late(prompt, 0, 0.5, 1) == 0);
  CHECK(whole.late(prompt, 0, 0.5, 2) == 0.002);
  p.prompts_idle = curve({{0.001, 0.001}, {0.05, 0.002}, {0.5, 0.02}});
  CHECK(simulate::profile_price(p, topology(2), handed).late(prompt, 1, 0.5, 1) ==
        doctest::Approx(0.01));  // half of the layers
  CHECK(simulate::profile_price(p, topology(2), handed).late(prompt, 1, 0.05, 1) == 0.002);
  CHECK(simulate::profile_price(p, topology()).late(prompt, 0, 0.5, 3) == doctest::Approx(0.02));
}

TEST_CASE("cokv simulate --profile: sequences in a pipeline take as long as they were measured to") {
  const command_folder dir;
  auto p = plain();
  p.prompts_beside = p.answers_beside = {1, 1.1, 1.6};
  p.pipeline_tokens = {{0.0025, 0.0028}, {0.0026, 0.0034, 0.0052}}, p.answer_tokens = 24;
  for (std::size_t workers : {2u, 3u})
    for (std::size_t n = 1; n <= workers; ++n) {
      std::string all;
      for (std::size_t i = 0; i < n; ++i)
        all += R"({"at": 0, "prompt_tokens": 1, "output_tokens": 40})"
               "\n";
      const auto got =
          told(dir, p, all, {"--pipeline", std::to_string(workers), "--workers-a-machine", std::to_string(workers)});
      CAPTURE(workers);
      CAPTURE(n);
      CHECK(got.at("summary").at("tpot_ms").at("p50").to_number<double>() ==
            doctest::Approx(1e3 * p.pipeline_tokens[workers - 2][n - 1]).epsilon(0.03));
    }
  // They can't be faster than their steps, whatever was measured.
  p.pipeline_tokens = {{0.001, 0.001}};
  const auto least = told(dir, p, asked(1, 40), {"--pipeline", "2", "--workers-a-machine", "2"});
  CHECK(least.at("summary").at("tpot_ms").at("p50").to_number<double>() == doctest::Approx(2).epsilon(0.03));
}

TEST_CASE("cokv simulate --profile: a prompt's first token comes as late in a pipeline as it was measured to") {
  const command_folder dir;
  auto p = plain();
  p.pipeline_tokens = {{0.002, 0.0028}, {0.002, 0.0028, 0.0038}}, p.answer_tokens = 24;
  p.pipeline_prompts = {0.120, 0.125};
  p.prompts_beside = p.answers_beside = {1, 1, 1};
  p.prompt_tokens = 100;
  const std::string later = R"({"at": 1, "prompt_tokens": 100, "output_tokens": 1})"
                            "\n"
                            R"({"at": 3, "prompt_tokens": 200, "output_tokens": 1})"
                            "\n";
  const auto in_stages = [&](std::size_t n) {
    return told(dir, p, later, {"--pipeline", std::to_string(n), "--workers-a-machine", std::to_string(n)});
  };
  for (const double pause : {0, 10}) {
    if (pause > 0) p.prompts_idle = curve({{0.1, pause / 1e3}});
    for (std::size_t n : {2u, 3u}) {
      const double late = 1e3 * p.pipeline_prompts[n - 2] - 100;
      const auto got = in_stages(n);
      CHECK(ttft(got, 0) == doctest::Approx(100 + late).epsilon(0.005));
      CHECK(ttft(got, 1) == doctest::Approx(200 + late).epsilon(0.005));
    }
  }
  // No faster than its steps behind their pauses.
  p.pipeline_prompts = {0.050, 0.050};
  CHECK(ttft(in_stages(2), 0) == doctest::Approx(110).epsilon(0.005));
}
