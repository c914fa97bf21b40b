#include "simulate/simulate.hpp"

#include "cli/cli.hpp"
#include "cli/values.hpp"

namespace cokv::cli {

void add_simulate(CLI::App& app, action& chosen) {
  auto o = std::make_shared<simulate::options>();
  auto* c = app.add_subcommand("simulate", "Says what a deployment would do under a load, in virtual time");
  add_count(*c, "--replicas", o->replicas, 1, 100'000,
            "Copies of the model, each of which answers whole requests; with --prefill-replicas they decode");
  add_count(*c, "--pipeline", o->pipeline, 1, simulate::most_stages,
            "Stages of each, a device and a host for each of them");
  add_count(*c, "--tensor", o->tensor, 1, 64, "GPUs of each stage, which share its layers");
  add_count(*c, "--prefill-replicas", o->prefill_replicas, 1, 100'000,
            "Copies more that compute prompts for those, and send them the KV while they do");
  add_count(*c, "--prefill-pipeline", o->prefill_pipeline, 1, simulate::most_stages, "Stages of each of these; 1");
  add_count(*c, "--prefill-tensor", o->prefill_tensor, 1, 64, "GPUs of each stage of these; 1");
  c->add_flag("--pairs", o->pairs,
              "Each of these belongs to one of --replicas, of as many stages: a stage of both lies on one machine, "
              "where its KV stays, and each pair has a router")
      ->disable_flag_override();
  add_count(
      *c, "--microbatches", o->microbatches, 1, simulate::most_stages,
      "Steps under way at once, of each of --replicas; as many as stages unless told, and one more with --swap-by "
      "microbatch");
  add_count(*c, "--routers", o->routers, 1, 100'000,
            "Who places requests, each among its share of the replicas; requests take turns among them");
  add_choice(*c, "--policy", o->policy, {"least-loaded", "slo"}, "How replicas are chosen, as by cokv serve's router");

  auto* prompt = add_real(*c, "--stage-prompt", o->stage_prompt, 0, 1e6,
                          "Milliseconds that a step with tokens of prompts takes in each stage", true);
  auto* token = add_real(*c, "--stage-token", o->stage_token, 0, 1e6, "Milliseconds of any other step", true);
  auto* cache =
      add_real(*c, "--stage-cache", o->stage_cache, 0, 1e6,
               "Milliseconds that the KV of a step's prompts, however many tokens, takes to get from each stage of "
               "a prefill replica to where it is decoded, while later steps compute; 0 unless told");
  auto* measured = c->add_option("--profile", o->profile, "Or as it was measured: what cokv fit wrote")
                       ->type_name("FILE")
                       ->excludes(prompt)
                       ->excludes(token)
                       ->excludes(cache);
  add_count(*c, "--workers-a-machine", o->workers_a_machine, 1, 4096,
            "Stages that lie on one machine, one behind the other, and share its cores (with --profile)");
  auto* model = c->add_option("--model", o->model, "Or by the GPU's sheet: a config.json, or a directory with one")
                    ->type_name("PATH");
  auto* cluster =
      c->add_option("--cluster", o->cluster, "What machines there are, as for cokv plan")->type_name("FILE");
  auto* machine =
      c->add_option("--machine", o->machine, "Which kind of them; the file's first unless told")->type_name("NAME");
  auto* dtype = add_choice(*c, "--dtype", o->dtype, {"bf16", "f32"}, "Of weights and KV");
  auto* arithmetic = c->add_option("--arithmetic", o->arithmetic, "Of the sheet's arithmetic what kernels reach")
                         ->check(CLI::Range(0.01, 1.0))
                         ->capture_default_str();
  auto* bandwidth = c->add_option("--bandwidth", o->bandwidth, "Of its memory bandwidth, likewise")
                        ->check(CLI::Range(0.01, 1.0))
                        ->capture_default_str();
  auto* reserve = c->add_option("--reserve", o->reserve, "Of memory what neither weights nor KV take")
                      ->check(CLI::Range(0.0, 0.9))
                      ->capture_default_str();

  for (auto* sheet : {model, cluster, machine, dtype, arithmetic, bandwidth, reserve})
    for (auto* other : {prompt, token, cache, measured}) sheet->excludes(other);

  add_count(
      *c, "--kv-blocks", o->kv_blocks, 1, 100'000'000,
      "KV blocks of a replica; as many as find room, or of 1 Mi tokens with --stage-token, or 1024 with --profile, "
      "unless told");
  add_count(*c, "--prefill-kv-blocks", o->prefill_kv_blocks, 1, 100'000'000,
            "Of a prefill replica, likewise; a prompt's are held until its KV has been sent");
  add_count(
      *c, "--swap-blocks", o->swap_blocks, 1, 100'000'000,
      "KV blocks of a replica in its hosts' memory, as cokv serve --swap has: more requests decode than its devices "
      "have room for, and take turns there");
  c->add_option(
       "--swap-by", o->swap_by,
       "What takes turns: sequence, for many steps; or microbatch, for one, with --pipeline: all blocks are at home "
       "then, and a step's, at most half of --kv-blocks, come in while others are computed. sequence unless told")
      ->check(CLI::IsMember({"sequence", "microbatch"}));
  add_real(*c, "--stage-swap", o->stage_swap, 0, 1e6,
           "Milliseconds that a block of a stage takes to its device or home, with --stage-token; 0 unless told");
  add_real(*c, "--swap-bandwidth", o->swap_bandwidth, 0, 1e15,
           "Bytes a second of a GPU, each way; what its sheet, or the profile, says unless told", true);
  add_count(*c, "--block-tokens", o->block_tokens, 1, 1024, "Tokens of a block");
  add_count(*c, "--max-batched-tokens", o->max_batched_tokens, 1, 1 << 20, "The most tokens of a step");
  add_count(*c, "--max-running", o->max_running, 1, 65536,
            "The most requests of a replica that run at once, in all steps under way");
  add_count(
      *c, "--max-requests", o->max_requests, 1, 10'000'000,
      "The most requests of a replica, waiting and running; more fail. 4096, or as many as --closed-loop has clients, "
      "unless told");

  c->add_option("--fail", o->fail,
                "Loses a stage's host so many seconds behind the first request, SECONDS:REPLICA.STAGE or "
                "SECONDS:prefillREPLICA.STAGE; several")
      ->type_name("FAILURE")
      ->allow_extra_args(false);
  add_real(*c, "--mtbf", o->mtbf, 0, 1e9, "Seconds after which each stage's host is lost, on average, by the seed",
           true);
  add_real(*c, "--detect", o->detect, 0, 1e6,
           "Seconds until the others know of a loss; 0: at once, as of a process that ends. 5 unless told");
  auto* repair =
      add_real(*c, "--repair", o->repair, 0, 1e8,
               "Seconds from then on until another host is there; unless told 10, or with --model as long as "
               "its weights take to be loaded");
  add_real(*c, "--load-bandwidth", o->load_bandwidth, 0, 1e15, "Bytes a second at which they are; 2e9 unless told",
           true)
      ->excludes(repair);
  add_count(
      *c, "--kv-copies", o->kv_copies, 0, 1,
      "1: each stage (of those that decode, with --prefill-replicas) keeps a copy of the KV of the one before "
      "it, so that who takes a lost one's place has it and requests go on; but for the first stage, which has the "
      "requests");
  c->add_option("--ask-again", o->ask_again,
                "Requests that a loss ended: with what was told of them as part of the prompt, as cokv serve's router "
                "does (told), or computed from their start, token by token (start); told unless said")
      ->check(CLI::IsMember({"told", "start"}));
  add_real(*c, "--patience", o->patience, 0, 1e8,
           "Seconds for which a request waits for a replica while none is there; 10 unless told, as the router does");

  const auto [arrivals, rate, requests, duration, trace] = workload::add_demand(*c, o->load);
  rate->description("Requests a second; where --find-goodput begins");
  auto* clients = add_count(*c, "--closed-loop", o->closed_loop, 1, 1'000'000,
                            "Instead of at their times, requests come from so many clients that wait for their answers")
                      ->excludes(rate)
                      ->excludes(arrivals)
                      ->excludes(duration);
  add_count(*c, "--seed", o->load.seed, 0, std::numeric_limits<std::uint64_t>::max(),
            "The same seed makes the same load and the same run");
  add_real(*c, "--slo-ttft", o->slo_ttft, 0, 1e9, "Milliseconds to the first token that are good enough", true);
  add_real(*c, "--slo-tpot", o->slo_tpot, 0, 1e9, "Milliseconds a token after the first that are good enough", true);
  auto* find = c->add_flag("--find-goodput", o->find_goodput,
                           "Finds the greatest rate at which enough requests are good enough, by runs of --duration, "
                           "60 s unless told")
                   ->disable_flag_override()
                   ->excludes(trace)
                   ->excludes(requests)
                   ->excludes(clients);
  c->add_option("--attainment", o->attainment, "How many are enough")
      ->check(CLI::Range(0.01, 1.0))
      ->capture_default_str()
      ->needs(find);
  c->add_option("--json", o->json, "Writes all requests, stages and figures")->type_name("FILE");
  c->add_option("--plot", o->plot, "Draws how times to the first token and per token are distributed (SVG)")
      ->type_name("FILE");
  c->add_option("--timeline", o->timeline, "Writes what each stage did when (Perfetto)")->type_name("FILE");
  c->callback([o, &chosen] {
    if (o->find_goodput && !o->load.seconds) o->load.seconds = 60.0f;
    if (o->find_goodput && !o->slo_ttft && !o->slo_tpot)
      throw CLI::ValidationError("--find-goodput", "needs --slo-ttft or --slo-tpot: what is good enough?");
    if (!o->load.requests && !o->load.seconds && o->load.trace.empty()) o->load.requests = 100;
    chosen = [o](streams io) { return simulate::run(*o, io); };
  });
}

}  // namespace cokv::cli
