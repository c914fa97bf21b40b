// `cokv plan` with bounds, as its command line runs it.
#include <boost/json.hpp>

#include "apps/command.hpp"

using namespace cokv::test;

namespace {

namespace json = boost::json;

const std::string opt = COKV_SOURCE_DIR "/bench/geometries/opt-66b.json";
const std::string llama = COKV_SOURCE_DIR "/bench/geometries/llama-3.1-8b.json";

std::string machines(int count, int gpus, const char* network = "12.5e9") {
  return R"({"machines": [{"name": "m", "count": )" + std::to_string(count) + R"(, "gpus": )" + std::to_string(gpus) +
         R"(, "gpu": "a100", "network_bytes_per_second": )" + network + R"(, "price_per_hour": 16}]})";
}

std::vector<std::string> with(std::string cluster, std::vector<std::string> more) {
  std::vector<std::string> all{"plan",      "--model",      llama,           "--cluster", std::move(cluster),
                               "--lengths", "fixed:500:30", "--max-running", "8",         "--duration",
                               "1",         "--slo-ttft",   "150",           "--slo-tpot"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

std::vector<std::string> words(const std::string& line) {
  std::istringstream in(line);
  return {std::istream_iterator<std::string>(in), {}};
}

double number(const json::value& v) { return v.to_number<double>(); }

}  // namespace

TEST_CASE("cokv plan, with bounds: the placement it tells is what cokv simulate says of it, and the same each time") {
  const command_folder dir;
  const auto figures = dir.file("plan.json"), cluster = dir.file("c.json", machines(2, 3));
  const auto r = run_command(with(cluster, {"20", "--json", figures}));
  CHECK(r.code == 0);
  CHECK(r.err == "");
  const auto text = text_of(figures);
  const auto told = json::parse(text);
  for (auto* which : {"apart", "together"}) {
    const auto& best = told.at(which);
    CHECK(number(best.at("requests_per_gpu_s")) ==
          doctest::Approx(number(best.at("requests_per_s")) / number(best.at("gpus"))));
    CHECK(number(best.at("at").at("attainment")) >= 0.9);
    CHECK(number(best.at("price_a_million_tokens")) > 0);
    CHECK(r.out.find(best.at("command").as_string()) != std::string::npos);
    auto line = words(std::string(best.at("command").as_string()));
    line.erase(line.begin());
    const auto again = dir.file("again.json");
    line.insert(line.end(), {"--json", again});
    const auto ran = run_command(line);
    CAPTURE(ran.err);
    CHECK(ran.code == 0);
    const auto same = json::parse(text_of(again));
    CHECK(number(same.at("summary").at("attainment")) == number(best.at("at").at("attainment")));
    CHECK(number(same.at("summary").at("ttft_ms").at("p90")) == number(best.at("at").at("ttft_ms").at("p90")));
    CHECK(number(same.at("summary").at("tpot_ms").at("p90")) == number(best.at("at").at("tpot_ms").at("p90")));
  }
  CHECK(r.out.find("can't be: --tensor: 3 ranks can't share 32 heads equally; 1, 2 can") != std::string::npos);
  CHECK(r.out.find("Apart a GPU carries") != std::string::npos);
  const auto second = run_command(with(cluster, {"20", "--json", figures}));
  CHECK(second.out == r.out);
  CHECK(text_of(figures) == text);
}

// Over the network KV of a prompt would take 0.65 s; in a machine it does not.
TEST_CASE("cokv plan, with bounds: where the network is slow, a pair's KV stays on its machines") {
  const command_folder dir;
  const auto figures = dir.file("plan.json");
  const auto r = run_command(
      {"plan",       "--model",     llama,           "--cluster",  dir.file("c.json", machines(2, 2, "1e8")),
       "--lengths",  "fixed:500:8", "--max-running", "8",          "--duration",
       "1",          "--slo-ttft",  "400",           "--slo-tpot", "20",
       "--max-gpus", "2",           "--reserve",     "0.83",       "--json",
       figures});
  CAPTURE(r.err);
  CHECK(r.code == 0);
  const auto told = json::parse(text_of(figures));
  CHECK(told.at("apart").at("affinity") == "stage");
  CHECK(told.at("apart").at("prompts").at("pipeline") == 2);
  CHECK(r.out.find("--pairs") != std::string::npos);
  CHECK(r.out.find("1 x 1  can't be: --pipeline: the first of 1 stages has 16.1 GB of weights") != std::string::npos);
}

TEST_CASE("cokv plan, with bounds: what can't be is one line that says what binds, and what would do") {
  const command_folder dir;
  const auto six = dir.file("6.json", machines(2, 3)), one = dir.file("1.json", machines(1, 1));
  const auto asked = [&](const std::string& cluster, std::vector<std::string> more) {
    return with(cluster, std::move(more));
  };
  const struct {
    std::vector<std::string> arguments;
    int code;
    std::string line;
  } table[] = {
      {{"plan", "--model", opt, "--cluster", one, "--slo-ttft", "400", "--slo-tpot", "100", "--lengths",
        "fixed:1000:100"},
       1,
       "cokv plan: no placement: memory binds: weights take 131.4 GB and KV of a sequence of 1100 tokens 2.6 GB, and "
       "the 1 GPUs that a replica may have 72.0 GB for both; 2 GPUs would do\n"},
      {asked(one, {"1"}), 1, "cokv plan: no placement: GPUs bind: prompts and answers need one each, and there is 1"},
      {asked(six, {"2"}), 1, "cokv plan: no placement: SLO TPOT binds: answers take "},
      {{"plan", "--model", llama, "--cluster", six, "--lengths", "fixed:500:8", "--max-running", "8", "--duration", "1",
        "--slo-ttft", "5", "--slo-tpot", "20"},
       1,
       "cokv plan: no placement: SLO TTFT binds: prompts take "},
      {asked(six, {"20", "--rate", "5000"}), 1,
       "cokv plan: no placement: GPUs bind: on 6 no placement was found to carry 5000 requests/s within the bounds; "},
      {{"plan", "--model", opt, "--cluster", six, "--slo-ttft", "400", "--slo-tpot", "100"},
       2,
       "cokv: --lengths: prompts of up to 8192 tokens and answers of up to 8192 are more than the model's 2048; "
       "--max-prompt and --max-output cut them\n"},
      {{"plan", "--model", llama, "--cluster", six, "--slo-ttft", "400"}, 2, "cokv: --slo-ttft "},
      {{"plan", "--model", llama, "--cluster", six, "--rate", "4"}, 2, "cokv: --rate "},
      {asked(six, {"20", "--token-ms", "4"}), 2, "cokv: --token-ms "},
      {asked(six, {"20", "--attainment", "1.5"}), 2, "cokv: --attainment: "},
      {asked(six, {"20", "--max-gpus", "0"}), 2, "cokv: --max-gpus: 0: takes an integer from 1 to "},
      {asked(six, {"0"}), 2, "cokv: --slo-tpot: "},
      {asked(six, {"20", "--machine", "x"}), 2, "cokv: --machine: x is none of the cluster's machines, which are m"},
      {asked(six, {"20", "--json", "/nowhere/x"}), 2, "cokv: --json: /nowhere/x can't be written"},
  };
  for (auto& t : table) {
    const auto r = run_command(t.arguments);
    CAPTURE(r.err);
    CAPTURE(t.line);
    CHECK(r.code == t.code);
    CHECK(r.err.starts_with(t.line));
    CHECK(std::count(r.err.begin(), r.err.end(), '\n') == 1);
  }
}

TEST_CASE("cokv plan, with bounds: one GPU does both, and it says why not apart") {
  const command_folder dir;
  const auto r = run_command(with(dir.file("c.json", machines(1, 1)), {"20"}));
  CHECK(r.code == 0);
  CHECK(r.out.find("Not apart: GPUs bind") != std::string::npos);
  CHECK(r.out.find("both      1 replica of 1 stage of 1 GPU") != std::string::npos);
}
