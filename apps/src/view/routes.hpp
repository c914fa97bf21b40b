// What people see of a process: a page, and what it shows, as it is now and as it changes.
//
//     route_view(server, [&] { return router_status(now(), time.now()); }, watch.events(), "tiny-kjv");
//
// | route                 | answer                                                                                       |
// |-----------------------|----------------------------------------------------------------------------------------------|
// | GET / and its files   | the page; it is the same for everybody and needs no key                                        |
// | GET /v1/status        | one JSON object: what `describe` says, model, at_ms (since 1970)                               |
// | GET /v1/status/stream | server-sent events, each such an object: every second, and when something happened, ten times  |
// |                       | a second at most. 503: 16 are watching                                                         |
//
// Both status routes need the right admin where keys are used: requests' ids and workers' addresses are told.
#pragma once

#include <boost/json/object.hpp>
#include <functional>
#include <string>

#include "http/server.hpp"
#include "view/journal.hpp"

namespace cokv::view {

inline constexpr std::size_t most_watchers = 16;

// `events` and what `describe` looks at outlive the server's run().
void route_view(http::server& s, std::function<boost::json::object()> describe, journal& events, std::string model);

}  // namespace cokv::view
