#include "generate.hpp"

#include "cli/cli.hpp"
#include "cli/values.hpp"

namespace cokv::cli {

void add_generate(CLI::App& app, action& chosen) {
  auto o = std::make_shared<generate_options>();
  auto* command = app.add_subcommand("generate", "Continues a prompt with a model, here and now");
  add_checkpoint(*command, o->model);
  command->add_option("--prompt", o->prompt, "Text to continue")->required();
  add_count(*command, "--max-tokens", o->max_tokens, 1, 1 << 30, "The most tokens to generate");
  add_real(*command, "--temperature", o->temperature, 0, 100, "0 is greedy (default: the model's)");
  add_count(*command, "--top-k", o->top_k, 0, 1 << 30,
            "Sample from the N likeliest tokens, 0 for all (default: the model's)");
  add_real(*command, "--top-p", o->top_p, 0, 1, "Sample from the likeliest tokens of this total (default: the model's)",
           true);
  add_count(*command, "--seed", o->seed, 0, std::numeric_limits<std::uint64_t>::max(),
            "The same seed gives the same answer");
  add_choice(*command, "--dtype", o->type, {"bf16", "f32"}, "What products and KV are computed in");
  add_device(*command, "--device", o->device);
  add_count(*command, "--threads", o->threads, 0, 1024, "Threads of the CPU device; 0: one a core");
  command
      ->add_flag("--batch-invariant", o->batch_invariant,
                 "The same bits for a request alone and beside others: slower on a GPU and, in bf16, on CPUs with AMX; "
                 "always so on others")
      ->disable_flag_override();
  command->add_flag("--async-scheduling", o->async_scheduling, "Prepare each next step while one runs")
      ->disable_flag_override();
  command->add_flag("--json", o->json, "One JSON object with tokens and timing instead of text")
      ->disable_flag_override();
  command->callback([o, &chosen] { chosen = [o](streams io) { return generate(*o, io); }; });
}

}  // namespace cokv::cli
