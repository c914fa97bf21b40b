// Losses of stages' hosts while a load is under way, and another one in each one's place.
//
//     outages all(ex, answers, prompts, {.plan = failures_of(options), .seed = 1, .detect = 5s});
//     group.spawn(all.run(begun));                                   // until it is cancelled
//     print(all.seen().size());
#pragma once

#include <deque>
#include <string>

#include "simulate/clients.hpp"
#include "simulate/failures.hpp"

namespace cokv::simulate {

// Times as the simulation has them.
struct outage {
  std::string host;
  cluster::worker_role role = cluster::worker_role::both;
  std::uint32_t replica = 0, stage = 0;
  time_point at{};
  std::optional<time_point> known, replaced;  // by the others; another host is there
  std::optional<time_point> whole;            // all stages are together again
};

struct outage_options {
  failure_plan plan;
  std::uint64_t seed = 1;
  duration detect{};
};

class outages {
 public:
  // They outlive it.
  outages(asio::any_io_executor ex, clients::replicas& answers, clients::replicas& prompts, outage_options how);

  // Given times count from then.
  awaitable<void> run(time_point begun);
  // So far, in order.
  std::vector<outage> seen() const;

 private:
  awaitable<void> given(given_failure f, time_point begun);
  awaitable<void> random(replica& r, std::uint32_t number, std::uint32_t stage, std::uint64_t host);
  awaitable<void> happen(replica& r, std::uint32_t number, std::uint32_t stage);

  clock& time_;
  clients::replicas &answers_, &prompts_;
  outage_options how_;
  struct one {
    const replica* of;
    outage what;
  };
  std::deque<one> seen_;
};

// Seconds in which they were not whole, of all replicas, until `end`.
double seconds_lost(const std::vector<outage>& all, time_point end);

}  // namespace cokv::simulate
