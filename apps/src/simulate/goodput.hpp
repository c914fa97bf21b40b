// The greatest rate at which a deployment serves enough requests within the bounds.
//
//     const auto got = goodput(options, deployment, {.ttft_ms = 200}, [](const trial& t) { print(t.rate, t.share); });
//     print(got.found, got.best.run.makespan);
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
