// How many of some machines should compute prompts and how many decode, as two pipelines with a machine a stage: DejaVu's
// planner (arXiv 2403.01876). Pure.
//
//     const auto p = split({.machines = 8, .machine_bytes = 320e9, .layers = 64, .layer_bytes = 2.038e9, .kv_bytes = 36864,
//                           .prompt = 1000, .output = 220, .microbatch = 4, .prompt_seconds = 3, .token_seconds = 0.04});
//     assert(p.plan->prompt_depth == 2 && p.plan->token_depth == 6);
//
// Time. A microbatch's prompts take Y through all layers, m Y while their KV streams out, and a token of it t. D_p stages end a
// microbatch each m Y / D_p, and D_t stages, that many of them at once, one each N t / D_t, N the answer's tokens. Both are as fast
// with D_t = D N t / (m Y + N t), rounded up, D_p = D - D_t.
//
// Memory. With w0 a layer's weights, c0 a microbatch's KV of a layer behind its prompt, k behind its answer: a prompt stage
// of l layers holds l (c0 + w0), a token stage l (w0 + D_t k), for there are D_t microbatches. l is ceil(L / D_t), so that
// where L is divided evenly these are DejaVu's bounds D_p >= ceil(L / floor(M / (c0 + w0))) and
// D_t >= ceil(L / floor((M - L k) / w0)), and else what the largest stage really has. The embedding lies in the first
// stage and the output matrix in the last.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace cokv::plan {

struct split_problem {
  std::uint32_t machines = 0;
  double machine_bytes = 0;  // that weights and KV may take
  std::uint32_t layers = 0;
  double layer_bytes = 0;  // w0
  double kv_bytes = 0;     // of a token and layer
  // Beside the layers of the first stage, of the last, and of one that is both.
  double first_bytes = 0, last_bytes = 0, both_bytes = 0;
  std::uint32_t prompt = 0, output = 0, microbatch = 1;  // tokens, tokens, sequences
  double prompt_seconds = 0, token_seconds = 0;          // Y, t
  double overhead = 1;                                   // m, 1 or more

  bool prompt_fits(std::uint32_t depth) const noexcept;
  bool token_fits(std::uint32_t depth) const noexcept;
  double end_bytes(std::uint32_t depth) const noexcept;     // beside its layers', of the stage that has most
  double prompt_bytes(std::uint32_t depth) const noexcept;  // of the fullest stage
  double token_bytes(std::uint32_t depth) const noexcept;
  // Microbatches a second.
  double prompt_rate(std::uint32_t depth) const noexcept { return depth / (overhead * prompt_seconds); }
  double token_rate(std::uint32_t depth) const noexcept { return depth / (output * token_seconds); }
};

struct split_plan {
  std::uint32_t prompt_depth = 0, token_depth = 0;
  std::uint32_t least_prompt = 0, least_token = 0;  // the smallest that fit
  std::uint32_t balanced_token = 0;                 // D_t by time alone
  double rate = 0;                                  // microbatches a second, of the slower side
  bool prompts_bind = false;                        // the slower side
  bool memory_binds = false;                        // it is not the balanced one, for that does not fit
  // By the same arithmetic the fastest of all that fit, where that is another.
  std::optional<std::uint32_t> faster_token = {};
};

struct split_answer {
  std::optional<split_plan> plan;
  std::string why;  // there is none: what binds, and what would be feasible
};

// A stage has a layer at least: of more machines than 2 * layers the rest is not used. Throws config_error naming the
// field for what no problem has.
split_answer split(const split_problem& p);

}  // namespace cokv::plan
