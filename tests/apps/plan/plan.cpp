#include <boost/json.hpp>

#include "apps/command.hpp"

using namespace cokv::test;

namespace {

namespace json = boost::json;

using folder = command_folder;

command_outcome run(std::vector<std::string> more) { return run_command("plan", std::move(more)); }

const std::string opt = COKV_SOURCE_DIR "/bench/geometries/opt-66b.json";
const std::string llama = COKV_SOURCE_DIR "/bench/geometries/llama-3.1-8b.json";

std::string machines(int count, int gpus = 4) {
  return R"({"machines": [{"name": "four", "count": )" + std::to_string(count) + R"(, "gpus": )" +
         std::to_string(gpus) +
         R"(, "gpu": "a100", "link_bytes_per_second": 270e9, "network_bytes_per_second": 12.5e9, "price_per_hour": 16}]})";
}

}  // namespace

TEST_CASE("cokv plan: the paper's example, with what it costs and what may be lent, as text and as JSON") {
  const folder dir;
  const auto cluster = dir.file("c.json", machines(8)), figures = dir.file("plan.json");
  const auto r = run({"--model", opt, "--cluster", cluster, "--lengths", "fixed:1000:220", "--microbatch", "4",
                      "--prompt-ms", "3000", "--token-ms", "40", "--reserve", "0", "--json", figures});
  CHECK(r.code == 0);
  CHECK(r.err == "");
  CHECK(r.out.find("64 layers, each with 2.0 GB of weights and 36864 bytes of KV a token") != std::string::npos);
  CHECK(r.out.find("the time of prompts binds") != std::string::npos);
  CHECK(r.out.find("a million tokens of answers") != std::string::npos);
  const auto told = json::parse(text_of(figures));
  const auto& s = told.at("split");
  CHECK(s.at("prompt_depth").to_number<int>() == 2);
  CHECK(s.at("token_depth").to_number<int>() == 6);
  CHECK(s.at("requests_per_s").to_number<double>() == doctest::Approx(4 * 2 / 3.));
  CHECK(s.at("binds").as_string() == "prompts");
  // By hand: while each of six microbatches gets a token, all KV is read once and the weights, of 11 layers and a table, six times,
  // at 0.8 of 4 * 2.039 TB/s: 23.3 GB, and 296.7 GB of KV.
  const auto& lent = told.at("lending");
  const double table = 50272. * 9216 * 2, weights = 11 * 12. * 9216 * 9216 * 2 + table, kv = 320e9 - weights,
               memory = 0.8 * 4 * 2.039e12;
  CHECK(lent.at("stage_layers").to_number<int>() == 11);
  CHECK(lent.at("kv_bytes").to_number<double>() == doctest::Approx(kv));
  const auto& network = lent.at("by_link").at(0);
  CHECK(network.at("percent").to_number<double>() == doctest::Approx(100 * 12.5e9 * (kv + 6 * weights) / memory / kv));
  CHECK(network.at("layers").to_number<int>() == 0);  // of 11, 0.2 % is none
  CHECK(network.at("binds").as_string() == "link");
  const auto& links = lent.at("by_link").at(1);
  CHECK(links.at("percent").to_number<double>() == doctest::Approx(100 * 4 * 270e9 * (kv + 6 * weights) / memory / kv));
  CHECK(links.at("layers").to_number<int>() == 2);  // of 11, 24 %
}

TEST_CASE("cokv plan: without times, the sheet's are taken") {
  const folder dir;
  const auto cluster = dir.file("c.json", machines(4));
  const auto r = run({"--model", llama, "--cluster", cluster, "--lengths", "fixed:2000:200"});
  CHECK(r.code == 0);
  CHECK(r.out.find("by its sheet, 0.5 of arithmetic, 0.8 of bandwidth") != std::string::npos);
  // Of a prompt arithmetic binds: half as much takes twice as long.
  const auto prompt_ms = [&](const char* arithmetic) {
    const auto figures = dir.file("plan.json");
    CHECK(run({"--model", llama, "--cluster", cluster, "--lengths", "fixed:2000:200", "--arithmetic", arithmetic,
               "--json", figures})
              .code == 0);
    return json::parse(text_of(figures)).at("prompt_ms").to_number<double>();
  };
  CHECK(prompt_ms("0.25") > 1.8 * prompt_ms("0.5"));
}

TEST_CASE("cokv plan: what is wrong, or does not fit, is one line that says what would do") {
  const folder dir;
  const auto eight = dir.file("8.json", machines(8)), one = dir.file("1.json", machines(1)),
             three = dir.file("3.json", machines(8, 5)), bad = dir.file("bad.json", R"({"machines": [{"name": "a"}]})");
  const struct {
    std::vector<std::string> arguments;
    int code;
    std::string line;
  } table[] = {
      {{"--cluster", eight}, 2, "cokv: --model is required"},
      {{"--model", opt}, 2, "cokv: --cluster is required"},
      {{"--model", opt, "--cluster", bad}, 2, "cokv: " + bad + ": machines[0].count: missing"},
      {{"--model", opt, "--cluster", dir.file("none.json")}, 2, "cokv: " + dir.file("none.json")},
      {{"--model", dir.file("none"), "--cluster", eight}, 2, "cokv: " + dir.file("none")},
      {{"--model", opt, "--cluster", eight, "--machine", "x"},
       2,
       "cokv: --machine: x is none of the cluster's machines, which are four"},
      {{"--model", opt, "--cluster", eight, "--lengths", "long"}, 2, "cokv: --lengths: long: takes"},
      {{"--model", opt, "--cluster", eight, "--lengths", "fixed:2000:100"},
       2,
       "cokv: --lengths: 2000 tokens of a prompt and 100 of its answer are more than the model's 2048"},
      {{"--model", opt, "--cluster", eight, "--overhead", "0.5"}, 2, "cokv: --overhead: "},
      {{"--model", opt, "--cluster", eight, "--prompt-ms", "0"}, 2, "cokv: --prompt-ms: "},
      {{"--model", opt, "--cluster", eight, "--json", "/nowhere/x"}, 2, "cokv: --json: /nowhere/x can't be written"},
      {{"--model", opt, "--cluster", three},
       2,
       "cokv: " + three + ": four: tensor: 5 ranks can't share 72 heads equally; 1, 2, 3, 4"},
      {{"--model", opt, "--cluster", one},
       1,
       "cokv plan: no split fits: two pipelines need two machines; 2 machines suffice"},
      {{"--model", opt, "--cluster", eight, "--microbatch", "5000"}, 1, "cokv plan: no split fits: memory binds: "},
  };
  for (auto& t : table) {
    const auto r = run(t.arguments);
    CAPTURE(r.err);
    CHECK(r.code == t.code);
    CHECK(r.err.starts_with(t.line));
    CHECK(std::count(r.err.begin(), r.err.end(), '\n') == 1);
  }
}
