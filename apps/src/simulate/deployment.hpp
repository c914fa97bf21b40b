// A deployment as numbers: what each stage takes, how much KV it holds, and what lies between hosts. Checked against the model
// and the cluster.
#pragma once

#include "cokv/runtime/sim_net.hpp"
#include "fit/profile.hpp"
#include "simulate/failures.hpp"
#include "simulate/replica.hpp"
#include "simulate/simulate.hpp"

namespace cokv::simulate {

struct role_deployment {
  std::uint32_t replicas = 1, pipeline = 1, tensor = 1;
  replica_options each;
  double stages() const { return 1. * replicas * pipeline; }
  double gpus() const { return stages() * tensor; }
};

struct deployment {
  role_deployment answers;                 // or what decodes, where others compute prompts
  std::optional<role_deployment> prompts;  // those, if there are any; their machines come first
  sim::net_link network, inside;           // between machines; between GPUs of one
  double row_bytes = 0;                    // of a token, from stage to stage
  double machines = 0;                     // in use
  double price_per_hour = 0;               // of all of them
  bool shares_cores = false;               // stages of a machine compute on the same ones
  failure_plan failures;
  double gpus() const { return answers.gpus() + (prompts ? prompts->gpus() : 0); }
};

// Throws config_error naming the flag, or the file and its field, and what would be feasible.
deployment deployment_of(const options& o);
// The same by a profile that was read, with what a step takes that is handed on (profile_price).
deployment deployment_of(const options& o, const fit::profile& p, const hops& handed_on);
// Of one role, as if prompts were computed elsewhere in no time, and their KV here at once: what decoding alone can do.
deployment decoding_alone(deployment d);
double detect_seconds(const options& o);

}  // namespace cokv::simulate
