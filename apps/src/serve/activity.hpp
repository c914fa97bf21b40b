// What an engine and the tiers behind it did so far, as watchers are told.
//
//     cluster::worker_activity now = activity_of(engine, tiers.list);
#pragma once

#include <vector>

#include "cluster/worker_activity.hpp"
#include "cokv/engine/connector.hpp"
#include "cokv/engine/engine.hpp"

namespace cokv::serve {

// `tiers`: as the engine was given them.
cluster::worker_activity activity_of(const engine& e, const std::vector<kv_tier>& tiers);

}  // namespace cokv::serve
