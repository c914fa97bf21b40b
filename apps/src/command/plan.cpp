#include "plan/plan.hpp"

#include "cli/cli.hpp"
#include "cli/values.hpp"
#include "load/demand.hpp"

namespace cokv::cli {

void add_plan(CLI::App& app, action& chosen) {
  auto o = std::make_shared<plan::options>();
  auto* c = app.add_subcommand("plan", "Says how a cluster's machines are best shared out between prompts and answers");
  c->add_option("--model", o->model, "A config.json, or a directory with one")->type_name("PATH")->required();
  c->add_option("--cluster", o->cluster, "What machines there are: cluster_file.hpp has the format, README an example")
      ->type_name("FILE")
      ->required();
  c->add_option("--machine", o->machine, "Which kind of them; the file's first unless told")->type_name("NAME");
  add_choice(*c, "--dtype", o->dtype, {"bf16", "f32"}, "Of weights and KV");
  workload::add_lengths(
      *c, o->load.lengths,
      "Tokens of prompts and answers, as cokv load takes them; their means count, but for the search");
  auto* microbatch =
      add_count(*c, "--microbatch", o->microbatch, 1, 65536, "Sequences that go through a pipeline together");
  auto* prompt = add_real(
      *c, "--prompt-ms", o->prompt_ms, 0, 1e9,
      "Milliseconds that a microbatch's prompts take through all layers; by the GPU's sheet unless told", true);
  auto* token =
      add_real(*c, "--token-ms", o->token_ms, 0, 1e9, "Milliseconds that a token of each takes, likewise", true);
  auto* overhead =
      c->add_option("--overhead", o->overhead, "Of a prompt whose KV streams out: its time over its time alone")
          ->check(CLI::Range(1.0, 100.0))
          ->capture_default_str();
  for (auto& [flag, into, what] :
       {std::tuple{"--arithmetic", &o->arithmetic, "Of the sheet's arithmetic what kernels reach"},
        std::tuple{"--bandwidth", &o->bandwidth, "Of its memory bandwidth, likewise"}})
    c->add_option(flag, *into, what)->check(CLI::Range(0.01, 1.0))->capture_default_str();
  c->add_option("--reserve", o->reserve, "Of memory what neither weights nor KV take")
      ->check(CLI::Range(0.0, 0.9))
      ->capture_default_str();
  auto* ttft = add_real(*c, "--slo-ttft", o->slo_ttft, 0, 1e9,
                        "Milliseconds to the first token that are good enough: with these bounds it searches, by "
                        "simulated runs, for what carries the most requests a GPU",
                        true);
  auto* tpot = add_real(*c, "--slo-tpot", o->slo_tpot, 0, 1e9, "Milliseconds a token after the first, likewise", true);
  ttft->needs(tpot), tpot->needs(ttft);
  for (auto* of_split : {microbatch, prompt, token, overhead}) of_split->excludes(ttft);

  auto* attainment = c->add_option("--attainment", o->attainment, "How many requests are to meet both")
                         ->check(CLI::Range(0.01, 1.0))
                         ->capture_default_str();
  const auto [arrivals, duration, cuts] = workload::add_shape(*c, o->load);
  duration->description("Seconds in which the requests of a run come; 30, or until they are 100");
  std::vector<CLI::Option*> of_search{
      attainment,
      arrivals,
      duration,
      add_real(*c, "--rate", o->rate, 0, 1e6,
               "Requests a second that are to be carried: also the fewest GPUs that do are told", true),
      add_count(*c, "--max-gpus", o->max_gpus, 1, 1 << 20,
                "GPUs of a replica at most; a machine's, or twice as many as weights and KV need, unless told"),
      add_count(*c, "--max-batched-tokens", o->max_batched_tokens, 1, 1 << 20, "The most tokens of a step"),
      add_count(*c, "--max-running", o->max_running, 1, 65536,
                "The most requests of a replica that run at once, in all steps under way"),
      add_count(*c, "--seed", o->load.seed, 0, std::numeric_limits<std::uint64_t>::max(),
                "The same seed gives the same answer")};
  of_search.insert(of_search.end(), cuts.begin(), cuts.end());
  for (auto* one : of_search) one->needs(ttft);
  c->add_option("--json", o->json, "Writes the figures")->type_name("FILE");
  c->callback([o, &chosen] {
    chosen = [o](streams io) { return o->slo_ttft ? plan::run_search(*o, io) : plan::run(*o, io); };
  });
}

}  // namespace cokv::cli
