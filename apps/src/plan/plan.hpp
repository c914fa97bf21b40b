// `cokv plan`: what a cluster would best do with a model and a workload, before anybody buys or starts anything.
#pragma once

#include <optional>
#include <string>

#include "cli/cli.hpp"
#include "load/demand.hpp"

namespace cokv::plan {

struct options {
  std::string model;    // a config.json, or a directory with one
  std::string cluster;  // cluster_file.hpp
  std::string machine;  // the kind; the first unless told
  std::string dtype = "bf16";
  workload::demand load;  // only its lengths, but for the search
  std::uint32_t microbatch = 8;
  std::optional<float> prompt_ms, token_ms;  // of a microbatch, through all layers; by the device's sheet unless told
  double overhead = 1;                       // of streaming a prompt's KV: its time with over its time without
  double arithmetic = 0.5, bandwidth = 0.8;  // of the sheet's, what kernels reach
  double reserve = 0.1;                      // of memory, for neither weights nor KV
  std::string json;

  // With bounds: the search instead.
  std::optional<float> slo_ttft, slo_tpot, rate;
  double attainment = 0.9;
  std::optional<std::uint32_t> max_gpus;  // of a replica
  std::uint32_t max_batched_tokens = 1024, max_running = 256;
};

// The exit code: 1 when no plan fits, which is told on io.err.
int run(const options& o, cli::streams io);
int run_search(const options& o, cli::streams io);

}  // namespace cokv::plan
