// GET /v1/events: a log, told as it grows, in server-sent events (docs/protocol.md). A cache has such a route, and a worker.
//
//     server.route(verb::get, "/v1/events", [&log](exchange& x) { return cache::follow(x, log); }, {.query = {"namespace"}});
#pragma once

#include "cache/event_log.hpp"
#include "http/exchange.hpp"

namespace cokv::cache {

// Until the client goes or the server ends; the log is there as long as the server is. 503 where too many follow.
awaitable<void> follow(http::exchange& x, event_log& log);

}  // namespace cokv::cache
