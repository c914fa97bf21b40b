#include "simulate/turns.hpp"

#include <fmt/format.h>

namespace cokv::simulate {

std::string swapped_stage(std::uint32_t stage) { return "stage" + std::to_string(stage) + "-swaps"; }

void take_turns(const options& o, const role_wish& w, role_deployment& r,
                const std::function<double(std::uint32_t stage)>& tokens_per_second) {
  if (!o.swap_blocks) {
    for (auto& [given, flag] : {std::pair{o.swap_by.has_value(), "--swap-by"},
                                {o.swap_bandwidth.has_value(), "--swap-bandwidth"},
                                {o.stage_swap.has_value(), "--stage-swap"}})
      if (given) throw config_error(fmt::format("{}: is for --swap-blocks", flag));
    return;
  }
  if (o.stage_swap && !o.stage_prompt)
    throw config_error("--stage-swap: goes with --stage-prompt and --stage-token; else KV takes what its bytes do");
  if (o.swap_bandwidth && o.stage_prompt)
    throw config_error(
        "--swap-bandwidth: goes with --model or --profile; with --stage-prompt nothing is known of bytes");
  if (o.kv_copies > 0) throw config_error("--swap-blocks: does not go together with --kv-copies");
  if (o.workers_a_machine > 1) throw config_error("--swap-blocks: does not go together with --workers-a-machine");
  if (w.role == cluster::worker_role::prefill) return;
  const bool by_microbatch = o.swap_by.value_or("sequence") == "microbatch";
  auto& e = r.each.engine;
  if (by_microbatch && w.pipeline == 1) throw config_error("--swap-by: microbatch is for --pipeline above 1");
  if (by_microbatch && *o.swap_blocks <= e.kv_blocks)
    throw config_error(
        fmt::format("--swap-blocks: {}; all are there, and a stage has room for {}: more than that make "
                    "sense by microbatch",
                    *o.swap_blocks, e.kv_blocks));
  e.swap_by = by_microbatch ? swap_unit::microbatch : swap_unit::sequence;
  e.swap = std::uint64_t{*o.swap_blocks} * e.block_tokens;  // KV has a byte a token there
  for (std::uint32_t s = 0; s < w.pipeline; ++s) r.each.swap_tokens_per_second.push_back(tokens_per_second(s));
}

void define_swapped_stages(sim_context& context, const role_deployment& r) {
  const auto& rates = r.each.swap_tokens_per_second;
  for (std::uint32_t s = 0; s < rates.size(); ++s) define_copied_stage(context, swapped_stage(s), rates[s]);
}

}  // namespace cokv::simulate
