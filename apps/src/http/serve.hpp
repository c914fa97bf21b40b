// Runs a server as a command does: says where it listens, serves until SIGINT or SIGTERM, lets requests in flight
// finish, and returns. A second signal ends them at once.
//
//     server.listen(options.listen);
//     co_await serve_until_signalled(server, "cokv cache", io.out);
#pragma once

#include <ostream>
#include <string_view>

#include "http/server.hpp"

namespace cokv::http {

// Prints "NAME: listening on http://HOST:PORT". Runs on a real context. SIGHUP calls `reload`, which may throw
// config_error: that is logged, and what was read before goes on. Without one SIGHUP does nothing.
awaitable<void> serve_until_signalled(server& s, std::string_view name, std::ostream& out,
                                      duration grace = std::chrono::seconds(30), std::function<void()> reload = {});

}  // namespace cokv::http
