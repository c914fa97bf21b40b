#include "generate.hpp"

#include "cli/cli.hpp"

namespace cokv::cli {

void add_generate(CLI::App& app, action& chosen) {
  auto o = std::make_shared<generate_options>();
  auto* command = app.add_subcommand("generate", "Continues a prompt with a model, here and now");
  command->add_option("--model", o->model, "Folder with config.json, model.safetensors and tokenizer.json")->required();
  command->add_option("--prompt", o->prompt, "Text to continue")->required();
  command->add_option("--max-tokens", o->max_tokens, "The most tokens to generate")->capture_default_str();
  command->add_option("--temperature", o->temperature, "0 is greedy (default: the model's generation_config.json)");
  command->add_option("--top-k", o->top_k, "Sample from the k likeliest tokens, 0 for all (default: the model's)");
  command->add_option("--top-p", o->top_p, "Sample from the likeliest tokens of this total (default: the model's)");
  command->add_option("--seed", o->seed, "The same seed gives the same answer")->capture_default_str();
  command->add_option("--dtype", o->type, "Arithmetic and KV: bf16 or f32")
      ->check(CLI::IsMember({"bf16", "f32"}))
      ->capture_default_str();
  command->add_option("--device", o->device, "cpu or cuda:N")->capture_default_str();
  command->add_option("--threads", o->threads, "Threads that compute, 0 for one a core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->add_flag("--json", o->json, "One JSON object with tokens and timing instead of text");
  command->callback([o, &chosen] { chosen = [o](streams io) { return generate(*o, io); }; });
}

}  // namespace cokv::cli
