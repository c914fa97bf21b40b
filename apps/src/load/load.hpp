// `cokv load`: what a server does under load.
#pragma once

#include <optional>
#include <string>

#include "cli/cli.hpp"
#include "load/demand.hpp"
#include "load/measures.hpp"
#include "load/prompts.hpp"

namespace cokv::workload {

struct options {
  std::string url = "http://127.0.0.1:8000";
  std::string api_key_file, ca_file;
  prompt_options prompts;  // no model: the server's first
  std::string endpoint = "completions";
  demand what;
  std::optional<float> slo_ttft, slo_tpot;
  bool find_goodput = false;
  double attainment = 0.9;
  std::uint32_t timeout = 120;  // seconds, of a request
  std::uint32_t max_in_flight = 4096;
  std::string json, plot;
};

// The exit code: 1 when no request was answered.
int run(const options& o, cli::streams io);

}  // namespace cokv::workload
