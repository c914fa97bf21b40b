// Where a decode worker is told its place in the ring: PUT /v1/ring (ring.hpp), 204, also of one that it knows already; 409:
// it knows a later one. By the right admin alone.
#pragma once

#include "cluster/answer_copies.hpp"
#include "http/server.hpp"

namespace cokv::cluster {

// `copies` outlives the server's requests.
void route_ring(http::server& s, answer_copies& copies);

}  // namespace cokv::cluster
