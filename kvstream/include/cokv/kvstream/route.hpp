// The way of a batch's KV from the workers of one topology to those of another: which worker sends which layers and
// heads to which, so that every byte comes to every worker that keeps it, once. A pure function: both sides compute the
// same legs in the same order, so a leg's index names a transfer, and a digest tells peers that they mean the same.
//
//     cokv::route way(prompt, token, model, {.sequences = 8});
//     if (way.digest() != peers_digest) co_return errc::protocol;      // compared in the handshake
//     for (auto index : way.sent_by({.stage = 1, .rank = 0})) {
//       auto& leg = way.legs()[index];                                 // leg.from.layers, leg.from.heads: in our pool
//       for (auto s = leg.sequences.first; s < leg.sequences.end(); ++s) send(index, s);
//     }
//
// Where sequence s of the batch is: its number on a side is s after that side's first, and the topology there says
// which microbatch and slot that is. A leg stays within one microbatch of either side, for what is computed together is
// ready together. Legs are in order of the batch's sequences, microbatch after microbatch, and for each in order of layers.
//
// Who sends what several ranks keep (planes without heads; heads when there are fewer than ranks): such twins share it
// in order of receivers and layers, so that each sends few and large legs. For each microbatch pair, stage and thing
// kept, a twin's bytes differ from the twins' mean by less than one piece: a layer's part for one receiver. Where that
// would make fewer pieces than twins, a piece is one sequence of that. So no twin is idle while another sends two
// pieces of equal size. Sizes are for equally many tokens in every layer and sequence.
#pragma once

#include <cstdint>
#include <vector>

#include "cokv/kvstream/topology.hpp"

namespace cokv {

// Sequences of a request that move together. On each side they are numbered from a first one, as when batches of a
// prompt's workers are put together to larger ones.
struct request_batch {
  std::uint32_t sequences = 1;
  std::uint32_t from_first = 0;
  std::uint32_t to_first = 0;
  friend bool operator==(const request_batch&, const request_batch&) = default;
};

// One end of a leg, numbered as that worker numbers its own (placement.hpp).
struct leg_end {
  cokv::worker worker;
  index_range layers;
  index_range heads;
  batch_slot first;  // where the leg's first sequence is; the others follow it
  friend bool operator==(const leg_end&, const leg_end&) = default;
};

// `planes` says whether it moves what has heads, what has none, or both. Layers without such planes may lie between
// those that have them, and add nothing; likewise `heads` is of those layers that have heads, and empty for `shared`.
struct leg {
  index_range sequences;  // of the batch
  index_range layers;     // of the model, like the heads
  index_range heads;
  plane_set planes = plane_set::all;
  leg_end from, to;
  friend bool operator==(const leg&, const leg&) = default;
};

// Bytes that a leg moves for one token of one sequence, where no window leaves layers out.
std::uint64_t token_bytes(const geometry& model, const leg& of);

// Immutable.
class route {
 public:
  static constexpr std::uint32_t max_sequences = 4096;
  static constexpr std::size_t max_legs = std::size_t{1} << 20;

  // Throws config_error when the model has too few layers for one of the topologies, the batch is empty or beyond
  // max_sequences, its numbers beyond 32 bits, or the legs more than max_legs: so a peer's topology may be tried.
  route(const topology& from, const topology& to, const geometry& model, request_batch batch = {});

  const std::vector<leg>& legs() const noexcept { return legs_; }
  // Indexes of legs, ascending.
  std::vector<std::uint32_t> sent_by(worker from) const;
  std::vector<std::uint32_t> received_by(worker to) const;

  // Of both topologies, the geometry and the batch; XXH3-64 of a text, the same on every machine.
  std::uint64_t digest() const noexcept { return digest_; }

 private:
  std::vector<leg> legs_;
  std::uint64_t digest_ = 0;
};

}  // namespace cokv
