// One run of a deployment under a load, and what came of it.
//
//     const auto out = simulated(options, deployment_of(options), 10);      // requests a second
//     print(out.makespan, out.asked.records.size());
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cokv/runtime/sim_context.hpp"
#include "simulate/clients.hpp"
#include "simulate/deployment.hpp"
#include "simulate/outages.hpp"

namespace cokv::simulate {

struct stage_figures {
  cluster::worker_role role = cluster::worker_role::both;
  std::uint32_t replica = 0, stage = 0;
  std::string host;
  std::uint64_t steps = 0;
  double busy = 0, bubble = 0;  // seconds; a share: see priced_stage
  std::uint64_t rows = 0;
  double sending = 0;  // seconds in which KV was on its way out
};

// What went over one link, from a stage to the next or from one that computed a prompt to one that decodes.
struct link_traffic {
  std::string from, to;  // hosts
  double bytes = 0;
  bool kv = false;
};

// Copies of a stage's KV to who keeps them, and back.
struct copy_traffic {
  std::uint32_t stage = 0, keeper = 0;
  std::string from, to;  // their hosts
  std::uint64_t tokens = 0;
  double bytes = 0;  // 0 where nothing is known of them
};

struct outcome {
  std::unique_ptr<sim_context> context;  // whose recorder has the timeline
  asked_requests asked;
  std::vector<stage_figures> stages;
  std::vector<link_traffic> links;
  std::vector<copy_traffic> copies;
  std::vector<outage> outages;  // in order
  replica_counts counts;        // of all replicas
  std::uint64_t handlers = 0;
  time_point begun{};   // the first request's time
  double makespan = 0;  // seconds, from the first request to the last answer's end

  double since_begun(time_point t) const { return std::chrono::duration<double>(t - begun).count(); }
  double utilisation(const stage_figures& s) const { return makespan > 0 ? s.busy / makespan : 0; }
};

// What is to be known of a run: whether so many of its requests meet the bounds. It ends when they can't any more.
struct wanted_share {
  workload::slo bounds;
  double attainment = 0;
};

// Throws config_error for a load or a deployment that can't be, naming the flag.
outcome simulated(const options& o, const deployment& d, double rate,
                  const std::optional<wanted_share>& wanted = std::nullopt);

}  // namespace cokv::simulate
