// The stores behind the device that a command line asks for, from the fastest to the slowest: host memory, a folder, a
// cache server or several.
#pragma once

#include <vector>

#include "cache/event_log.hpp"
#include "cokv/engine/connector.hpp"
#include "serve/options.hpp"
#include "serve/remote.hpp"

namespace cokv::serve {

struct tiers {
  std::vector<kv_tier> list;
  std::shared_ptr<serve::remote> remote = nullptr;  // where --kv-remote was told
};

// Those of this process tell `changes`, which outlives them, what they have.
awaitable<tiers> open_tiers(const options& o, cache::event_log& changes);

}  // namespace cokv::serve
