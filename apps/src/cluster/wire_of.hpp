// What an engine is to its peers: how its KV lies on the wire, the name that links greet each other with, and how much it has to do.
#pragma once

#include <numeric>

#include "cluster/ticket.hpp"
#include "cluster/worker_info.hpp"
#include "cokv/engine/engine.hpp"

namespace cokv::cluster {

// Of all of the model, also where this is a part of it.
inline kv_wire wire_of(const model& m, std::uint32_t block_tokens) {
  const auto& c = m.config();
  const auto all = m.kv_shard();
  return {.layers = all.of_layers ? all.of_layers : c.layers,
          .kv_heads = all.of_heads ? all.of_heads : c.kv_heads,
          .head_dim = c.head_dim,
          .block_tokens = block_tokens,
          .type = m.compute_type()};
}
inline kv_wire wire_of(const engine& e) { return wire_of(e.running(), e.pool().shape().block_tokens()); }

// Links are for workers of one model; blocks and dtype are told in offers and tickets, which can say what does not fit.
inline namespace_id links_of(const id256& fingerprint) {
  namespace_id ns;
  static_cast<id256&>(ns) = fingerprint;
  return ns;
}

// Of a worker's links that bring KV, or take it.
inline link_options greeting_of(const id256& fingerprint, const std::string& name, const std::string& life) {
  link_options out;
  out.name = "kv/" + name + '/' + life;
  out.ns = links_of(fingerprint);
  return out;
}

inline offer offer_of(const engine& e, std::string name, std::string life, bool converts = false) {
  return {.name = std::move(name),
          .life = std::move(life),
          .topology = e.running().part().split,
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
  out.broken = c.broken || c.lender_lost || !c.joined;
  return out;
}

// The way of a prompt's KV, cut to blocks that both sides' are made of. Throws config_error: one of the topologies has more
// stages than the model has layers.
inline route way_of(const topology& from, const topology& to, kv_wire receiver, std::uint32_t cut) {
  receiver.block_tokens = cut;
  return {from, to, receiver.shape()};
}

// Where a worker has a prompt: blocks of its pool, seen as `memory`, of so many tokens, of which the receiver has the first.
struct prompt_place {
  const geometry& shape;
  const kv_view& memory;
  std::span<const block_index> blocks;
  std::uint32_t tokens = 0, first = 0;
};

// A worker's end of a stream to or from one whose KV is `other`.
inline stream_side side_of(const topology& from, const topology& to, worker self, const kv_wire& other,
                           const kv_wire& receiver, const prompt_place& at) {
  const auto mine = at.shape.block_tokens();
  const auto cut = std::gcd(mine, other.block_tokens);
  const auto blocks = at.blocks.first(std::min<std::size_t>(at.blocks.size(), (at.tokens + mine - 1) / mine));
  return {way_of(from, to, receiver, cut),
          self,
          at.shape.in_blocks_of(cut),
          at.memory.in_blocks_of(cut),
          {{in_smaller_blocks(blocks, mine / cut), at.tokens, at.first}}};
}

}  // namespace cokv::cluster
