// `cokv fit`: measures what a model's steps take on this machine, and writes it down for `cokv simulate --profile`.
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint.hpp"
#include "cli/cli.hpp"

namespace cokv::fit {

struct options {
  checkpoint_options model;
  std::string dtype = "bf16";
  std::string device = "cpu";
  std::uint32_t threads = 0;                // of a worker; 0: one a core
  std::uint32_t max_batched_tokens = 1024;  // of a step
  std::uint32_t context = 1024;             // of the longest sequence that is measured
  std::uint32_t workers = 1;                // that share this machine
  std::string sheet;  // of this GPU instead: a published one, or a file; empty: what is here is measured
  double arithmetic = 0.5, bandwidth = 0.8;  // of the sheet's, what kernels reach
  std::string out;                           // empty: to the standard output
};

int run(const options& o, cli::streams io);

}  // namespace cokv::fit
