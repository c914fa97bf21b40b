// What every router of a simulated cluster has: its claim, the workers that it knows, and its own server.
#pragma once

#include <doctest/doctest.h>

#include "cluster/members_routes.hpp"
#include "http/server.hpp"
#include "serve/reign.hpp"

namespace cokv::test {

struct router_bed {
  router_bed(asio::any_io_executor ex, std::string life, const std::vector<std::string>& urls, std::string stands_by_of,
             http::client_options how = {}, std::uint32_t replicas = 0)
      : options(of(std::move(stands_by_of))),
        mine(ex, std::move(life), options, how),
        workers(ex, {.period = std::chrono::milliseconds(100), .dead_after = std::chrono::milliseconds(400)},
                mine.calls(how), {}, replicas),
        server(ex) {
    workers.stand_by();
    for (auto& url : urls) CHECK(!workers.add(url));
    cluster::route_members(server, workers, true);
    server.listen({"0.0.0.0", 80});
  }
  static serve::options of(std::string stands_by_of) {
    serve::options o;
    o.heartbeat = 100, o.dead_after = 400;
    o.standby_of = std::move(stands_by_of);
    return o;
  }

  serve::options options;
  serve::reign mine;
  cluster::members workers;
  http::server server;
};

}  // namespace cokv::test
