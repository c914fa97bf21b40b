// What an engine is to its peers: how its KV lies on the wire, the name that links greet each other with, and how much it has to do.
#pragma once

#include <numeric>

#include "cluster/ticket.hpp"
#include "cluster/worker_info.hpp"
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

inline offer offer_of(const engine& e, std::string name, std::string life, bool converts = false) {
  return {.name = std::move(name),
          .life = std::move(life),
          .topology = topology(),
          .wire = wire_of(e),
          .fingerprint = e.running().fingerprint(),
          .converts = converts};
}

// What of a worker's facts is its engine's.
inline worker_facts facts_of(const engine& e, worker_role role, offer self) {
  const auto c = e.counters();
  worker_facts out{.role = role, .self = std::move(self), .max_sequence = e.max_sequence()};
  out.blocks = c.blocks, out.blocks_free = c.blocks_free;
  out.running = c.running, out.waiting = c.waiting;
  out.prompt_tokens_left = c.prompt_tokens_left;
  out.step = c.step;
  out.broken = c.broken || c.lender_lost;
  return out;
}

// A worker's end of a stream to or from one whose KV is `other`: in blocks of a size that both sizes are made of.
inline stream_side side_of(const engine& e, const kv_wire& other, const kv_wire& receiver, const kv_view& memory,
                           std::span<const block_index> blocks, std::uint32_t tokens, std::uint32_t first) {
  const topology alone;
  const auto& shape = e.pool().shape();
  const auto cut = std::gcd(shape.block_tokens(), other.block_tokens);
  auto wire = receiver;
  wire.block_tokens = cut;
  return {route(alone, alone, wire.shape()),
          {},
          shape.in_blocks_of(cut),
          memory.in_blocks_of(cut),
          {{in_smaller_blocks(blocks, shape.block_tokens() / cut), tokens, first}}};
}

}  // namespace cokv::cluster
