// How a deployment does at a rate, and the greatest at which enough requests are within the bounds.
//
//     const auto at = tried(options, deployment, {.ttft_ms = 200}, 10);
//     print(at.share, at.run.makespan);
#pragma once

#include <functional>

#include "load/measures.hpp"
#include "simulate/outcome.hpp"

namespace cokv::simulate {

struct trial {
  double rate = 0;   // requests a second
  double share = 0;  // of them that met the bounds
  outcome run;
};
trial tried(const options& o, const deployment& d, const workload::slo& bounds, double rate);

// From o.load.rate on, by runs in which requests come for o.load.seconds. The best run; where none is good, the last, and
// `found` is 0.
struct goodput_found {
  double found = 0;
  trial best;
};
// `tell`: of each run, as it ends. Throws config_error where runs are too short to say anything.
goodput_found goodput(const options& o, const deployment& d, const workload::slo& bounds,
                      const std::function<void(const trial&)>& tell);

}  // namespace cokv::simulate
