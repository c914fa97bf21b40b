// A process with an engine as GET /v1/status tells it: what it has to do, what KV is where, and a picture of the last
// seconds.
//
//     json::object now = engine_status({.role = "both", .counters = engine.counters(), .cached = cached,
//                                       .doing = activity_of(engine, tiers), .drawn = timeline_of(trace::of(ex), 5s)});
//
// A function of its arguments.
#pragma once

#include <boost/json/object.hpp>
#include <string>

#include "cluster/worker_activity.hpp"
#include "cokv/engine/engine.hpp"
#include "view/timeline.hpp"

namespace cokv::view {

struct engine_now {
  std::string role;
  engine_counters counters;
  std::uint64_t cached = 0;  // of its blocks: not in use, and found when they are asked for
  cluster::worker_activity doing;
  timeline drawn;
};

boost::json::object engine_status(const engine_now& e);

}  // namespace cokv::view
