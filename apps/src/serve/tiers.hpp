// The stores behind the device that a command line asks for, from the fastest to the slowest: host memory, a folder, a
// cache server or several.
#pragma once

#include <vector>

#include "cokv/engine/connector.hpp"
#include "serve/options.hpp"
#include "serve/remote.hpp"

namespace cokv::serve {

struct tiers {
  std::vector<kv_tier> list;
  std::shared_ptr<serve::remote> remote = nullptr;  // where --kv-remote was told
};

awaitable<tiers> open_tiers(const options& o);

}  // namespace cokv::serve
