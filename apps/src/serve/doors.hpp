// The doors by which KV comes in, as --link and --advertise have them.
#pragma once

#include <string>
#include <vector>

#include "cluster/link_door.hpp"
#include "serve/options.hpp"

namespace cokv::serve {

// Those of --link, or the default ones of a worker of this life, at `host`. Throws config_error naming the flag.
void open_doors(cluster::link_door& door, const options& o, const std::string& host, const std::string& life);

// How others reach them.
std::vector<std::string> advertised(const cluster::link_door& door, const options& o);

}  // namespace cokv::serve
