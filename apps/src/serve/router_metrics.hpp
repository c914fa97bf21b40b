// A router's state on the metrics page: its workers by role and state, requests, and what went on elsewhere.
#pragma once

#include "cluster/remote_answers.hpp"
#include "http/metrics.hpp"

namespace cokv::serve {

// Both outlive the page's last use.
void add_router_metrics(http::metrics& page, const cluster::members& workers, const cluster::remote_answers& answers);

}  // namespace cokv::serve
