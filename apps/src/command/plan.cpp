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
  workload::add_lengths(*c, o->lengths, "Tokens of prompts and answers, as cokv load takes them; their means count");
  add_count(*c, "--microbatch", o->microbatch, 1, 65536, "Sequences that go through a pipeline together");
  add_real(*c, "--prompt-ms", o->prompt_ms, 0, 1e9,
           "Milliseconds that a microbatch's prompts take through all layers; by the GPU's sheet unless told", true);
  add_real(*c, "--token-ms", o->token_ms, 0, 1e9, "Milliseconds that a token of each takes, likewise", true);
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
  c->add_option("--json", o->json, "Writes the figures")->type_name("FILE");
  c->callback([o, &chosen] { chosen = [o](streams io) { return plan::run(*o, io); }; });
}

}  // namespace cokv::cli
