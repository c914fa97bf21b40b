// How workers come to a router and leave it, and who is there.
//
// | route                       | answer                                                                             |
// |-----------------------------|------------------------------------------------------------------------------------|
// | GET /v1/workers             | {"workers":[{"url","role","state","leaving","requests","name","life",...}]}        |
// | POST /v1/workers            | {"url":"http://HOST:PORT"}: 204, also when it is there already. It gets requests   |
// |                             | once it has said that it is of the same model                                      |
// | DELETE /v1/workers?url=URL  | 204: it gets nothing new, and is forgotten when what it has is over. 404           |
//
// All need the right admin: whoever adds a worker may read every prompt, and whoever asks gets the key's bearer.
#pragma once

#include <boost/json/object.hpp>

#include "cluster/members.hpp"
#include "http/server.hpp"

namespace cokv::cluster {

// Without `may_change` only who is there is told: where no keys are asked for, whoever reaches the server could be sent
// prompts, and the key that workers know.
void route_members(http::server& s, members& workers, bool may_change = true);

// One of them, as GET /v1/workers tells it.
boost::json::object to_json(const worker_table::worker& w);

}  // namespace cokv::cluster
