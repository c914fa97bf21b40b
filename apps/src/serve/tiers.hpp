// The stores behind the device that a command line asks for, from the fastest to the slowest: host memory, a folder, a
// cache server.
#pragma once

#include <vector>

#include "cokv/engine/connector.hpp"
#include "serve/options.hpp"

namespace cokv::serve {

awaitable<std::vector<kv_tier>> open_tiers(const options& o);

}  // namespace cokv::serve
