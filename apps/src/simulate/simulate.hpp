// `cokv simulate`: what a deployment would do under a load, in virtual time: engines, schedulers, links and placement are those of
// `cokv serve`, on devices that take the time of a price.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/cli.hpp"
#include "load/demand.hpp"

namespace cokv::simulate {

constexpr std::uint32_t most_stages = 64;  // and steps under way: what workers let in

struct options {
  // The deployment. With `prefill_replicas`, which compute prompts, the others decode.
  std::uint32_t replicas = 1, pipeline = 1, tensor = 1, routers = 1;
  std::optional<std::uint32_t> prefill_replicas, prefill_pipeline, prefill_tensor;
  bool pairs = false;  // each of those belongs to one that decodes, and lies beside it
  std::optional<std::uint32_t> microbatches;
  std::string policy = "least-loaded";

  // What a step takes: so long in each stage, or what the GPU's sheet says.
  std::optional<float> stage_prompt, stage_token, stage_cache;  // milliseconds
  std::string profile;                                          // or what was measured
  std::uint32_t workers_a_machine = 1;                          // which share its cores
  std::string model, cluster, machine;
  std::string dtype = "bf16";
  double arithmetic = 0.5, bandwidth = 0.8;  // of the sheet's, what kernels reach
  double reserve = 0.1;                      // of memory, for neither weights nor KV

  // Its engines.
  // As many as find room; with fixed times 1 Mi tokens', by a profile 1024.
  std::optional<std::uint32_t> kv_blocks, prefill_kv_blocks;
  std::optional<std::uint32_t>
      swap_blocks;  // of a replica that decodes, in its hosts' memory: those of its devices take turns
  std::optional<std::string> swap_by;   // "sequence", or "microbatch": all blocks are there then
  std::optional<float> stage_swap;      // milliseconds that a block of a stage takes; 0
  std::optional<float> swap_bandwidth;  // or bytes a second of a GPU, each way; what its sheet or the profile says
  std::uint32_t block_tokens = 16, max_batched_tokens = 1024, max_running = 256;
  std::optional<std::uint32_t> max_requests;  // of a replica; 4096, or as many as clients of a closed loop

  // Stages' hosts that are lost (failures.hpp), and what becomes of what they had.
  std::vector<std::string> fail;
  std::optional<float> mtbf;            // seconds
  std::optional<float> detect;          // until the others know; 5
  std::optional<float> repair;          // from then on until another is there; 10, or until its weights are loaded
  std::optional<float> load_bandwidth;  // bytes a second of them; 2e9
  std::uint32_t kv_copies = 0;
  std::optional<std::string> ask_again;  // "told": with what was told as part of the prompt; or "start"
  std::optional<float> patience;         // seconds for which a request waits for a replica; 10

  workload::demand load;
  std::optional<std::uint32_t> closed_loop;  // so many clients, each of which asks when it was answered
  std::optional<float> slo_ttft, slo_tpot;
  bool find_goodput = false;
  double attainment = 0.9;
  std::string json, plot, timeline;
};

// The exit code: 1 when no request was answered.
int run(const options& o, cli::streams io);

}  // namespace cokv::simulate
