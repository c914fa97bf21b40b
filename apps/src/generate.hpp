// One prompt, one answer, on the embedded engine: what `cokv generate` does.
//
//     generate_options options{.model = {"models/tiny-kjv"}, .prompt = "And it came to pass"};
//     return generate(options, {std::cout, std::cerr});
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "checkpoint.hpp"
#include "cli/cli.hpp"
#include "cokv/kvstream/dtype.hpp"

namespace cokv {

struct generate_options {
  checkpoint_options model;
  std::string prompt;
  std::uint32_t max_tokens = 64;
  // Without a value: what the model's generation_config.json says.
  std::optional<float> temperature;
  std::optional<std::uint32_t> top_k;
  std::optional<float> top_p;
  std::uint64_t seed = 0;
  std::string type = "bf16";
  std::string device = "cpu";
  int threads = 0;
  bool batch_invariant = false;
  bool async_scheduling = false;
  bool json = false;
};

// Writes the text as it comes, or with `json` one object when it is complete: prompt_tokens and tokens (ids), text,
// finish_reason, timing. Throws config_error for what the caller has to correct. Returns an exit code.
int generate(const generate_options& options, cli::streams io);

}  // namespace cokv
