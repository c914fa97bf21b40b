// The simulated sides of the seams, made for one host of a sim_context.
#pragma once

#include "cokv/runtime/detail/seed_source.hpp"
#include "cokv/runtime/sim_context.hpp"

namespace cokv::detail {

void add_sim_clock(sim_domain& domain);
void add_sim_network(sim_domain& domain);
void add_sim_files(sim_domain& domain);

inline void add_sim_services(sim_domain& domain) {
  add_sim_clock(domain);
  add_sim_network(domain);
  add_sim_files(domain);
  asio::add_service(domain.context, new seed_source(domain.context, [&core = domain.core] { return core.random(); }));
}

}  // namespace cokv::detail
