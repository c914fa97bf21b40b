// Runs of `cokv simulate` in which hosts are lost: against calculations by hand, many at random, and with flags that can't be.
#include <spdlog/spdlog.h>

#include <algorithm>

#include "apps/simulate/runs.hpp"
#include "simulate/failures.hpp"
#include "simulate/losses.hpp"

using namespace cokv::test;
using namespace cokv::test::simulated;
namespace sim = cokv::simulate;

namespace {

namespace json = boost::json;
using arguments = std::vector<std::string>;

double number(const json::value& v) { return v.to_number<double>(); }

// One sequence in two stages: its prompt takes 10 ms in each, a token 2. Undisturbed its tokens come at 20, 24, 28, 32 and so on.
arguments by_hand(const command_folder& dir, int tokens, arguments more) {
  arguments out{"--stage-prompt", "10", "--stage-token", "2",
                "--pipeline",     "2",  "--trace",       dir.file("t.jsonl", trace_of({tokens})),
                "--detect",       "0"};
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

void check_about(const json::value& request, const std::vector<double>& by_hand) {
  const auto got = times(request);
  REQUIRE(got.size() == by_hand.size());
  for (std::size_t i = 0; i < got.size(); ++i) CHECK(got[i] == doctest::Approx(by_hand[i]).epsilon(1e-4));
}

sim::options two_stages(std::uint64_t seed) {
  sim::options o;
  o.pipeline = 2, o.replicas = 2;
  o.stage_prompt = 10, o.stage_token = 2;
  o.kv_blocks = 400;
  o.load.seed = seed;
  o.load.requests = 20;
  o.load.lengths = "uniform:10-300:2-60";
  o.load.rate = 20;
  o.mtbf = 1.5f, o.repair = 0.3f, o.detect = 0.1f, o.patience = 60;
  return o;
}

struct tally {
  std::size_t failures = 0, resumed = 0, restarted = 0, again = 0, failed = 0;
};

// Every request is answered in full, or has failed, and nothing of any is left.
void check_whole(const sim::options& o, tally& t) {
  const auto before = spdlog::get_level();
  spdlog::set_level(spdlog::level::err);
  const std::shared_ptr<void> at_end(nullptr, [before](void*) { spdlog::set_level(before); });
  const auto d = sim::deployment_of(o);
  const auto got = sim::simulated(o, d, o.load.rate);
  for (const auto& r : got.asked.records) {
    CHECK(r.sent);
    CHECK((r.error.empty() ? r.output_tokens == r.asked.output_tokens : r.output_tokens <= r.asked.output_tokens));
    if (r.error.empty()) CHECK(r.gaps_ms.size() + 1 == r.output_tokens);
  }
  CHECK(got.counts.blocks_in_use == 0);
  const auto l = sim::losses_of(got);
  t.failures += got.outages.size(), t.resumed += l.resumed, t.restarted += l.restarted, t.again += l.times;
  t.failed += l.failed;
}

}  // namespace

// Stage 1 is lost at 29 and there again at 129. The fourth token was in stage 0, whose step is done again:
//
//     stage 0   ... 24-26 28-30 | 129-131      133-135
//     stage 1   ... 26-28       |      131-133      135-137
TEST_CASE("cokv simulate: with copies a lost stage costs the time until another is there and the step under way") {
  const command_folder dir;
  const auto all = told(dir, by_hand(dir, 6, {"--fail", "0.029:0.1", "--repair", "0.1", "--kv-copies", "1"}));
  check_about(all.at("requests").at(0), {20, 24, 28, 133, 137, 141});
  const auto& l = all.at("losses");
  CHECK(l.at("resumed") == 1);
  CHECK(l.at("restarted") == 0);
  CHECK(l.at("asked_again") == 0);
  CHECK(l.at("recomputed_tokens") == 0);
  CHECK(number(l.at("longest_gap_ms")) == doctest::Approx(105));
  CHECK(number(l.at("seconds")) == doctest::Approx(0.1).epsilon(1e-4));
  const auto& f = all.at("failures").at(0);
  CHECK(f.at("host") == "replica0-stage1");
  CHECK(number(f.at("at_s")) == doctest::Approx(0.029));
  CHECK(number(f.at("known_s")) == doctest::Approx(0.029));
  CHECK(number(f.at("replaced_s")) == doctest::Approx(0.129));
  CHECK(number(f.at("whole_s")) == doctest::Approx(0.129).epsilon(1e-4));
  // 105 tokens went to stage 0, and 102 came back from there.
  CHECK(all.at("copies").at(0).at("from") == "replica0-stage1");
  CHECK(all.at("copies").at(0).at("to") == "replica0-stage0");
  CHECK(all.at("copies").at(0).at("tokens") == 105 + 102);
}

// Stage 2 has what stage 1 computed: without both the prompt, and the two tokens that were told, are computed again, by the engine itself.
TEST_CASE("cokv simulate: with copies a request whose keeper is lost too begins anew, and is not asked again") {
  const command_folder dir;
  const auto timeline = dir.file("t.json");
  const auto all = told(dir, {"--stage-prompt", "10",        "--stage-token", "2",
                              "--pipeline",     "3",         "--trace",       dir.file("t.jsonl", trace_of({4})),
                              "--detect",       "0",         "--fail",        "0.039:0.1",
                              "--fail",         "0.039:0.2", "--repair",      "0.1",
                              "--kv-copies",    "1",         "--timeline",    timeline});
  check_about(all.at("requests").at(0), {30, 36, 169, 175});
  CHECK(all.at("losses").at("restarted") == 1);
  CHECK(all.at("losses").at("resumed") == 0);
  CHECK(all.at("losses").at("asked_again") == 0);
  CHECK(number(all.at("losses").at("seconds")) == doctest::Approx(0.1).epsilon(1e-4));
  const auto spans = text_of(timeline);
  CHECK(spans.find("replica0-stage1 is lost") != std::string::npos);
  CHECK(spans.find("replica0-stage2 is replaced") != std::string::npos);
}

// Computed elsewhere until 10, and its KV is here at once.
TEST_CASE(
    "cokv simulate: with copies an answer whose prompt was computed elsewhere goes on, and its prompt is not computed "
    "again") {
  const command_folder dir;
  const auto all = told(dir, {"--stage-prompt", "10", "--stage-token", "2", "--pipeline", "2", "--detect", "0",
                              "--prefill-replicas", "1", "--fail", "0.029:0.1", "--repair", "0.1", "--kv-copies", "1",
                              "--trace", dir.file("t.jsonl", trace_of({6}))});
  check_about(all.at("requests").at(0), {10, 14, 18, 22, 26, 133});
  CHECK(all.at("losses").at("resumed") == 1);
  CHECK(all.at("losses").at("asked_again") == 0);
  CHECK(all.at("losses").at("restarted") == 0);
  CHECK(all.at("losses").at("recomputed_tokens") == 0);
  REQUIRE(all.at("copies").as_array().size() == 1);  // of who decodes alone
  CHECK(all.at("copies").at(0).at("from") == "decode0-stage1");
}

// The leader knows at 30, when its step is over; the router then asks its worker again half a second later, as every half second.
// All three tokens that were told are a part of the prompt then.
TEST_CASE(
    "cokv simulate: without copies the router asks again, with what was told as part of the prompt, or all of it") {
  const command_folder dir;
  auto all = told(dir, by_hand(dir, 6, {"--fail", "0.029:0.1", "--repair", "0.1"}));
  check_about(all.at("requests").at(0), {20, 24, 28, 550, 554, 558});
  CHECK(all.at("losses").at("asked_again") == 1);
  CHECK(all.at("losses").at("recomputed_tokens") == 102);
  CHECK(all.at("requests").at(0).at("asked_again") == 1);
  all = told(dir, by_hand(dir, 6, {"--fail", "0.029:0.1", "--repair", "0.1", "--ask-again", "start"}));
  check_about(all.at("requests").at(0), {20, 24, 28, 562, 566, 570});
  // Where there is another replica it is asked at once.
  all = told(dir, by_hand(dir, 6, {"--fail", "0.029:0.1", "--replicas", "2"}));
  check_about(all.at("requests").at(0), {20, 24, 28, 50, 54, 58});
}

TEST_CASE("cokv simulate: the first stage's loss ends its requests, with copies too, and they are asked again") {
  const command_folder dir;
  for (const char* copies : {"0", "1"}) {
    const auto all = told(dir, by_hand(dir, 6, {"--fail", "0.029:0.0", "--repair", "0.1", "--kv-copies", copies}));
    CHECK(all.at("losses").at("asked_again") == 1);
    CHECK(all.at("losses").at("resumed") == 0);
    CHECK(number(all.at("losses").at("longest_gap_ms")) == doctest::Approx(529 + 20 - 28).epsilon(1e-3));
  }
  // Of one stage too; nobody knows before --detect has passed, and who waits for nobody fails.
  auto all = told(dir, {"--stage-prompt", "10", "--stage-token", "2", "--trace", dir.file("t.jsonl", trace_of({6})),
                        "--replicas", "2", "--fail", "0.013:0.0", "--detect", "0.5"});
  check_about(all.at("requests").at(0), {10, 12, 523, 525, 527, 529});
  const auto figures = dir.file("f.json");
  CHECK(run({"--stage-prompt", "10", "--stage-token", "2", "--trace", dir.file("t.jsonl", trace_of({6})), "--fail",
             "0.013:0.0", "--detect", "0", "--patience", "1", "--json", figures})
            .code == 1);
  all = json::parse(text_of(figures));
  CHECK(all.at("losses").at("failed") == 1);
  CHECK(all.at("failures").at(0).at("whole_s").is_null());
}

TEST_CASE("cokv simulate: what copies cost is their bytes over the links, beside what is computed") {
  const command_folder dir;
  const auto cluster = [&](const char* network) {
    return dir.file("c.json", R"({"machines": [{"name": "m", "count": 2, "gpus": 1, "gpu": "a100",
                                               "network_seconds": 0, "network_bytes_per_second": )" +
                                  std::string(network) + "}]}");
  };
  const auto with = [&](const char* copies, const char* network) {
    return told(dir, {"--model", llama, "--cluster", cluster(network), "--pipeline", "2", "--closed-loop", "1",
                      "--requests", "2", "--lengths", "fixed:500:20", "--kv-copies", copies});
  };
  const auto fast = with("1", "12.5e9");
  // 16 of 32 layers, of 500 tokens and 19 behind them, twice.
  CHECK(fast.at("copies").at(0).at("tokens") == 2 * 519);
  CHECK(number(fast.at("copies").at(0).at("bytes")) == 2. * 519 * 16 * 4096);
  CHECK(number(fast.at("makespan_s")) / number(with("0", "12.5e9").at("makespan_s")) ==
        doctest::Approx(1).epsilon(0.01));
  // A chunk of a prompt is computed while the one before it is on its way: of 500 tokens 16 ms, and 23 in each stage.
  const auto chunks = [&](const char* copies) {
    return number(
        told(dir, {"--model", llama, "--cluster", cluster("2e9"), "--pipeline", "2", "--closed-loop", "1", "--requests",
                   "1", "--lengths", "fixed:4000:2", "--max-batched-tokens", "500", "--kv-copies", copies})
            .at("requests")
            .at(0)
            .at("ttft_ms"));
  };
  CHECK(chunks("1") == doctest::Approx(chunks("0")).epsilon(0.01));
  // A token's KV of 65,536 bytes takes 6.5 ms there, a step of both stages less: the second waits for the one before the last.
  const auto slow = with("1", "1e7");
  const double prompt = 500 * 65536 / 1e7, token = 65536 / 1e7;
  CHECK(number(slow.at("makespan_s")) >= 2 * (prompt + 16 * token));
}

TEST_CASE("cokv simulate: hosts that are lost at random leave every request answered in full, or failed") {
  tally with, without;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    auto o = two_stages(seed);
    check_whole(o, without);
    o.kv_copies = 1;
    o.pipeline = 2 + seed % 2;
    check_whole(o, with);
  }
  MESSAGE(with.failures, " failures with copies: ", with.resumed, " resumed, ", with.restarted, " restarted, ",
          with.again, " asked again, ", with.failed, " failed; without: ", without.failures, ", ", without.again, ", ",
          without.failed);
  CHECK(with.failures > 20);
  CHECK(with.resumed > 5);
  CHECK(without.again > 10);
  CHECK(without.resumed == 0);
}

TEST_CASE("cokv simulate, disaggregated: hosts of both roles that are lost leave every request answered or failed") {
  tally t;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    auto o = two_stages(seed);
    o.pipeline = 1 + seed % 2;
    o.prefill_replicas = 2;
    o.prefill_pipeline = 1 + seed / 2 % 2;
    o.stage_cache = 5;
    check_whole(o, t);
  }
  MESSAGE(t.failures, " failures, ", t.again, " asked again, ", t.failed, " failed");
  CHECK(t.failures > 20);
  CHECK(t.again > 10);
}

TEST_CASE("cokv simulate: the same seed loses the same hosts at the same times; another one does not") {
  const command_folder dir;
  const auto text = [&](const char* seed, const char* name) {
    const auto at = dir.file(name);
    CHECK(run({"--stage-prompt", "7",
               "--stage-token",  "1.5",
               "--pipeline",     "3",
               "--replicas",     "2",
               "--rate",         "20",
               "--requests",     "20",
               "--lengths",      "uniform:50-300:5-40",
               "--mtbf",         "2",
               "--repair",       "0.2",
               "--detect",       "0.1",
               "--kv-copies",    "1",
               "--seed",         seed,
               "--json",         at})
              .code == 0);
    return text_of(at);
  };
  const auto first = text("1", "1.json");
  CHECK(first == text("1", "2.json"));
  CHECK(first != text("2", "3.json"));
  CHECK(json::parse(first).at("failures").as_array().size() > 0);
}

TEST_CASE("cokv simulate: times between random failures are as long on average as was asked") {
  double sum = 0;
  for (std::uint64_t host = 0; host < 1000; ++host) {
    sim::random_failures f(7, host, 50);
    for (int n = 0; n < 10; ++n) sum += f.next();
  }
  CHECK(sum / 10000 == doctest::Approx(50).epsilon(0.05));
  CHECK(sim::random_failures(1, 1, 1).next() != sim::random_failures(1, 2, 1).next());
  CHECK(sim::random_failures(1, 1, 1).next() != sim::random_failures(2, 1, 1).next());
}

TEST_CASE("cokv simulate: a failure is told by its time and stage") {
  CHECK(sim::parse_failure("30:0.2") == sim::given_failure{30, false, 0, 2});
  CHECK(sim::parse_failure("0.5:prefill12.1") == sim::given_failure{0.5, true, 12, 1});
  for (const char* none : {"", "30", "30:", "30:1", "30:1.", "30:.1", "-1:0.0", "nan:0.0", "inf:0.0", "30:0.0x",
                           "30:decode0.0", "30:-1.0", "1e99:0.0", ":0.0", "30:99999999999.0"})
    CHECK(!sim::parse_failure(none));
}

TEST_CASE("cokv simulate: failures that can't be are one line that names the flag") {
  const arguments fixed{"--stage-prompt", "1", "--stage-token", "1"};
  const struct {
    arguments more;
    std::string line;
  } table[] = {
      {{"--fail", "x"}, "--fail: x: takes SECONDS:REPLICA.STAGE, or :prefillREPLICA.STAGE"},
      {{"--fail", "-1:0.0"}, "--fail: -1:0.0: takes SECONDS:REPLICA.STAGE"},
      {{"--fail", "1:1.0"}, "--fail: 1:1.0: --replicas are 0 to 0"},
      {{"--pipeline", "2", "--fail", "1:0.1", "--fail", "1:0.2"}, "--fail: 1:0.2: stages of --pipeline are 0 to 1"},
      {{"--fail", "1:prefill0.0"}, "--fail: 1:prefill0.0: there are no --prefill-replicas"},
      {{"--prefill-replicas", "1", "--fail", "1:prefill0.1"},
       "--fail: 1:prefill0.1: stages of --prefill-pipeline are 0 to 0"},
      {{"--mtbf", "0"}, "--mtbf: 0: takes a number above 0"},
      {{"--mtbf", "-5"}, "--mtbf: -5: takes"},
      {{"--repair", "-1", "--mtbf", "5"}, "--repair: -1: takes"},
      {{"--detect", "-1", "--mtbf", "5"}, "--detect: -1: takes"},
      {{"--repair", "5"}, "--repair: is for --fail or --mtbf"},
      {{"--detect", "5"}, "--detect: is for --fail or --mtbf"},
      {{"--patience", "5"}, "--patience: is for --fail or --mtbf"},
      {{"--ask-again", "told"}, "--ask-again: is for --fail or --mtbf"},
      {{"--ask-again", "never", "--mtbf", "5"}, "--ask-again: "},
      {{"--load-bandwidth", "1e9", "--mtbf", "5"}, "--load-bandwidth: goes with --model"},
      {{"--kv-copies", "1"}, "--kv-copies: is for --pipeline of 2 stages or more"},
      {{"--kv-copies", "2", "--pipeline", "2"}, "--kv-copies: 2: takes"},
      {{"--kv-copies", "1", "--prefill-replicas", "1", "--prefill-pipeline", "2"},
       "--kv-copies: is for --pipeline of 2 stages or more"},
  };
  for (auto& t : table) {
    auto all = fixed;
    all.insert(all.end(), t.more.begin(), t.more.end());
    const auto r = run(all);
    CAPTURE(r.err);
    CAPTURE(t.line);
    CHECK(r.code == 2);
    CHECK(r.err.starts_with("cokv: " + t.line));
    CHECK(std::count(r.err.begin(), r.err.end(), '\n') == 1);
  }
}

// Lost while it has nothing to do, and before routers hear of it: whoever meets that asks the other one at once.
TEST_CASE("cokv simulate, disaggregated: a prefill replica that is gone is not asked again and again") {
  const command_folder dir;
  std::int64_t again = 0;
  for (const char* lost : {"0.05:prefill0.0", "0.05:prefill1.0"}) {
    const auto all = told(
        dir, {"--stage-prompt", "10", "--stage-token", "2", "--prefill-replicas", "2", "--fail", lost, "--detect", "0",
              "--repair", "100", "--trace",
              dir.file("t.jsonl", trace_of({2}) + R"({"at": 0.06, "prompt_tokens": 100, "output_tokens": 3})" + "\n")});
    CHECK(all.at("losses").at("failed") == 0);
    again += all.at("requests").at(1).at("asked_again").as_int64();
  }
  CHECK(again == 1);
}

// Of a hundred sequences each copy's answer used to wake the other ninety-nine.
TEST_CASE("cokv simulate: what copies cost a token does not grow with the sequences that run") {
  const auto before = spdlog::get_level();
  spdlog::set_level(spdlog::level::err);
  const std::shared_ptr<void> at_end(nullptr, [before](void*) { spdlog::set_level(before); });
  const auto handlers_a_token = [](std::uint32_t running) {
    sim::options o;
    o.pipeline = 2, o.kv_copies = 1;
    o.stage_prompt = 10, o.stage_token = 2;
    o.closed_loop = running;
    o.load.requests = running;
    o.load.lengths = "fixed:10:20";
    const auto got = sim::simulated(o, sim::deployment_of(o), 1);
    return static_cast<double>(got.handlers) / (20. * running);
  };
  const auto few = handlers_a_token(10), many = handlers_a_token(100);
  MESSAGE(few, " handlers a token of ten sequences, ", many, " of a hundred");
  CHECK(many < few);
}
