// A deployment as numbers: what each stage takes, how much KV it holds, and what lies between hosts. Checked against the model
// and the cluster.
#pragma once

#include "cokv/runtime/sim_net.hpp"
#include "simulate/replica.hpp"
#include "simulate/simulate.hpp"

namespace cokv::simulate {

struct deployment {
  replica_options replica;
  sim::net_link network, inside;       // between machines; between GPUs of one
  double row_bytes = 0;                // of a token, from stage to stage
  std::uint32_t stages_a_machine = 1;  // of a replica, in order
  double machines = 0;                 // in use
  double price_per_hour = 0;           // of all of them
  bool shares_cores = false;           // stages of a machine compute on the same ones
};

// Throws config_error naming the flag, or the file and its field, and what would be feasible.
deployment deployment_of(const options& o);

}  // namespace cokv::simulate
