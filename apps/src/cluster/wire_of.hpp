// What an engine's KV is to its peers: how it lies on the wire, and the name that links greet each other with.
#pragma once

#include "cluster/ticket.hpp"
#include "cokv/engine/engine.hpp"

namespace cokv::cluster {

inline kv_wire wire_of(const engine& e) {
  const auto& c = e.running().config();
  return {.layers = c.layers,
          .kv_heads = c.kv_heads,
          .head_dim = c.head_dim,
          .block_tokens = e.pool().shape().block_tokens(),
          .type = e.running().compute_type()};
}

// Links are for workers of one model; blocks and dtype are told in offers and tickets, which can say what does not fit.
inline namespace_id links_of(const engine& e) {
  namespace_id ns;
  static_cast<id256&>(ns) = e.running().fingerprint();
  return ns;
}

inline offer offer_of(const engine& e, std::string name, std::string life) {
  return {.name = std::move(name),
          .life = std::move(life),
          .topology = topology(),
          .wire = wire_of(e),
          .fingerprint = e.running().fingerprint()};
}

}  // namespace cokv::cluster
