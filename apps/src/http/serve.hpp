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

// Prints "NAME: listening on http://HOST:PORT" (https:// with TLS). Runs on a real context. SIGHUP calls `reload`, which may throw
// config_error: that is logged, and what was read before goes on. Without one SIGHUP does nothing.
awaitable<void> serve_until_signalled(server& s, std::string_view name, std::ostream& out,
                                      duration grace = std::chrono::seconds(30), std::function<void()> reload = {});

// Drains it, and says how many requests are waited for.
void drain(server& s, std::string_view name, duration left);

// What --tls-cert and --tls-key name; empty, without TLS, where neither does. config_error names the flag.
tls_context load_tls(const std::string& certificate_file, const std::string& key_file);

// The same for something that is served in another way.
struct served_by {
  endpoint at;
  bool secure = false;
  std::function<awaitable<void>()> run;
  std::function<void(duration)> drain;
};
awaitable<void> serve_until_signalled(served_by what, std::string_view name, std::ostream& out,
                                      duration grace = std::chrono::seconds(30), std::function<void()> reload = {});

}  // namespace cokv::http
