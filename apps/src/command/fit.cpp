#include "fit/fit.hpp"

#include "cli/cli.hpp"
#include "cli/values.hpp"

namespace cokv::cli {

void add_fit(CLI::App& app, action& chosen) {
  auto o = std::make_shared<fit::options>();
  auto* c = app.add_subcommand("fit", "Measures a model's steps on this machine, for cokv simulate --profile");
  add_checkpoint(*c, o->model);
  add_choice(*c, "--dtype", o->dtype, {"bf16", "f32"}, "What products and KV are computed in");
  auto* device = add_device(*c, "--device", o->device);
  auto* threads = add_count(*c, "--threads", o->threads, 0, 1024, "Threads of each worker; 0: one a core");
  add_count(*c, "--max-batched-tokens", o->max_batched_tokens, 1, 1 << 20, "The most tokens of a step");
  auto* context = add_count(*c, "--context", o->context, 2, 1 << 20, "Tokens of the longest sequence that is measured");
  auto* workers =
      add_count(*c, "--workers", o->workers, 1, 64,
                "Workers that are to share this machine: what each takes beside the others is measured with so many "
                "processes, each with weights of its own");
  auto* sheet = c->add_option("--sheet", o->sheet,
                              "Measures nothing: what a GPU's data sheet gives, a100's, h100's, h200's or a file's (as "
                              "of sim: devices), with its source")
                    ->type_name("GPU");
  for (auto* here : {device, threads, context, workers}) sheet->excludes(here);
  c->add_option("--arithmetic", o->arithmetic, "Of the sheet's arithmetic what kernels reach")
      ->check(CLI::Range(0.01, 1.0))
      ->capture_default_str()
      ->needs(sheet);
  c->add_option("--bandwidth", o->bandwidth, "Of its memory bandwidth, likewise")
      ->check(CLI::Range(0.01, 1.0))
      ->capture_default_str()
      ->needs(sheet);
  c->add_option("--out", o->out, "Where to write the profile; the standard output unless told")->type_name("FILE");
  c->callback([o, &chosen] { chosen = [o](streams io) { return fit::run(*o, io); }; });
}

}  // namespace cokv::cli
