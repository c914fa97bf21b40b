#include "fit/fit.hpp"

#include "cli/cli.hpp"
#include "cli/values.hpp"

namespace cokv::cli {

void add_fit(CLI::App& app, action& chosen) {
  auto o = std::make_shared<fit::options>();
  auto* c = app.add_subcommand("fit", "Measures a model's steps on this machine, for cokv simulate --profile");
  add_checkpoint(*c, o->model);
  add_choice(*c, "--dtype", o->dtype, {"bf16", "f32"}, "What products and KV are computed in");
  add_device(*c, "--device", o->device);
  add_count(*c, "--threads", o->threads, 0, 1024, "Threads of each worker; 0: one a core");
  add_count(*c, "--max-batched-tokens", o->max_batched_tokens, 1, 1 << 20, "The most tokens of a step");
  add_count(*c, "--context", o->context, 2, 1 << 20, "Tokens of the longest sequence that is measured");
  add_count(*c, "--workers", o->workers, 1, 64,
            "Workers that are to share this machine: what each takes beside the others is measured with so many "
            "processes, each with weights of its own");
  c->add_option("--out", o->out, "Where to write the profile; the standard output unless told")->type_name("FILE");
  c->callback([o, &chosen] { chosen = [o](streams io) { return fit::run(*o, io); }; });
}

}  // namespace cokv::cli
