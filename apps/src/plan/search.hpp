// Which placement of a model carries the most requests a second and GPU within bounds on TTFT and TPOT, with prompts computed apart
// from answers or not: DistServe's search (arXiv 2401.09670), over runs of `cokv simulate`.
//
//     const auto found = search({.base = options, .gpus = 32, .machine_gpus = 8, .replica_gpus = 8, .layers = 40});
//     if (found.apart) print(found.apart->at.rate, found.apart->where.gpus());
//
// Each phase alone: one replica of each number of stages and of GPUs a stage, prompts against the bound on TTFT (answers are one
// token), answers as if prompts took no time, against both, for who waits for room waits for a first token. Then both: as many
// replicas of the best of each as keep up with each other, anywhere; and pairs of replicas, stage by stage on one machine. These are
// runs of both phases, and what is told of the best is what its own run came to.
//
// No phase carries more beside the other than alone: what is too much for one replica there is not tried, nor what prompts take too
// long for by the roofline.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/binding.hpp"
#include "plan/contest.hpp"
#include "plan/shape.hpp"
#include "simulate/simulate.hpp"

namespace cokv::plan {

struct search_problem {
  simulate::options
      base;  // what a step takes, engines, lengths and arrivals, both bounds and how many are to meet them
  std::uint32_t gpus = 1;  // that there are,
  std::uint32_t machine_gpus = 1;
  std::uint32_t replica_gpus = 1;  // the most of one replica
  std::uint32_t layers = 1;
  // Requests come for so many seconds, or for so long that they are so many.
  float seconds = 30;
  std::uint32_t requests = 100;
  std::optional<double> rate = {};  // a second, which is to be carried
};

// A run, and how many of its requests met the bounds.
struct run_figures {
  double rate = 0, share = 0;
  workload::summary told;
  binding binds = binding::nothing;  // of those that did not
};

struct tried_shape {
  shape what;
  std::string why_not = {};         // it can't be, or does not meet the bounds even without load
  contest_entry a_gpu = {};         // else. Found where it is better than all of fewer GPUs
  run_figures good = {}, bad = {};  // at the greatest rate that was good, at the least that was not
};

// Where no shape is good enough for its bound even without load, the one that comes nearest, and what bound it would meet.
struct nearest_miss {
  shape what;
  binding binds = binding::nothing;
  double ms = 0;
};

struct tried_phase {
  std::vector<tried_shape> shapes;  // by GPUs
  std::optional<nearest_miss> miss;
  const tried_shape* best() const noexcept;
};

struct found_placement {
  placement where;
  double a_gpu = 0;         // requests a second
  run_figures at, above;    // `above`: at the least rate that was too much, or with the fewest GPUs that are too few
  std::uint32_t times = 1;  // that it finds room in the cluster
};

struct search_answer {
  tried_phase prompts, answers, both;
  std::optional<found_placement> apart, together;
  // With a rate that is to be carried: the fewest GPUs that were found to.
  std::optional<found_placement> carries_apart, carries_together;
  std::size_t runs = 0, events = 0;
};

// The options of a run in which requests come at that rate.
simulate::options options_of(const search_problem& p, const placement& where, double rate);

// Throws config_error naming a flag of the base's.
search_answer search(const search_problem& p);

}  // namespace cokv::plan
