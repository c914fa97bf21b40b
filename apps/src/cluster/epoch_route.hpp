// A worker's gate between it and routers.
//
// | route          | answer                                                                                            |
// |----------------|---------------------------------------------------------------------------------------------------|
// | GET /v1/epoch  | {"epoch","router","left_ms"}: what is promised, to whom, and how long nobody else gets a promise    |
// | PUT /v1/epoch  | {"epoch","router","lease_ms"}: 200 as GET, it is promised; 409 with Cokv-Epoch: N, what is promised  |
//
// Any other request that carries Cokv-Epoch (router_claim.hpp) is a router's and asks the gate too: 409 `stale_epoch`
// where a later one is promised, 409 `held_epoch` where another one is heard of. Requests without it are nobody's: who has
// the right to send them may, and no lease is renewed by them.
#pragma once

#include "cluster/epoch_gate.hpp"
#include "http/server.hpp"

namespace cokv::cluster {

// `gate` outlives the server's requests.
void route_epoch(http::server& s, epoch_gate& gate);

}  // namespace cokv::cluster
