// When a worker of a model in parts is lost: what those that are left have of each sequence's KV, and from where all of them go
// on. Workers stand in a ring in which each keeps a copy of the KV of the one before it (stage_worker.hpp); the leader's is
// kept by nobody: it has the requests, and they end with it. Pure, but for the bytes in which workers tell each other.
//
//     std::vector<stage_holding> said = ...;                       // by number; of a worker that begins anew: {}
//     auto how = recover(split, {.leader = life, .number = 4}, said, held);      // told to everybody, and gone by
//
// A sequence goes on from the fewest steps that anybody has of it: a worker that lives by what it computed, a lost one by what the one
// behind it keeps. What somebody has nothing of is not among recovery.sequences, and is computed again from its beginning.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "cokv/engine/scheduler.hpp"
#include "cokv/kvstream/topology.hpp"
#include "cokv/runtime/result.hpp"

namespace cokv {

struct stage_sizes;

// A sequence between two preemptions: its blocks stay its own so long. Never used again by the same leader.
using copy_id = std::uint64_t;

// A time that the workers were together: of this leader, the later the higher. 0: none.
struct stage_epoch {
  std::uint64_t leader = 0;
  std::uint64_t number = 0;
  friend bool operator==(const stage_epoch&, const stage_epoch&) = default;
};

// Of a worker's layers and heads.
struct stage_holding {
  stage_epoch last;                           // that it has part in
  std::map<copy_id, std::uint32_t> computed;  // steps
  std::map<copy_id, std::uint32_t> kept;      // steps of the worker before it
};

// What the leader knows of it.
struct held_sequence {
  copy_id id = 0;
  std::uint32_t room = 0;           // tokens that it has at the most
  std::vector<block_index> blocks;  // of its tokens, in order
  std::vector<std::uint32_t> ends;  // of its steps, in tokens: ascending
  friend bool operator==(const held_sequence&, const held_sequence&) = default;
};

struct stage_recovery {
  stage_epoch now;
  std::vector<std::uint32_t> fresh;      // numbers of workers that have nothing, ascending
  std::vector<held_sequence> sequences;  // of each at least one step; by id
  friend bool operator==(const stage_recovery&, const stage_recovery&) = default;
};

// The number of who keeps this worker's KV: of the next stage's same rank, behind the last the first; in a single stage, of the
// next rank.
std::uint32_t keeper_of(const topology& split, std::uint32_t number);
std::uint32_t kept_by(const topology& split, std::uint32_t number);  // the other way round: whose KV this worker keeps

// `said` by all workers, by number, the leader's own among them, which is of the epoch before `now`; what is of another leader, or
// of an earlier epoch than the leader's own, counts as nothing.
stage_recovery recover(const topology& split, stage_epoch now, std::span<const stage_holding> said,
                       std::vector<held_sequence> held);

std::vector<std::byte> encode(const stage_holding& h);
std::vector<std::byte> encode(const stage_recovery& r);
// errc::protocol for what encode() does not make, or names blocks, tokens or workers that there are none of.
result<stage_holding> decode_holding(std::span<const std::byte> bytes, const stage_sizes& sizes);
result<stage_recovery> decode_recovery(std::span<const std::byte> bytes, const stage_sizes& sizes,
                                       std::uint32_t workers);
constexpr std::size_t most_recovery_bytes = std::size_t{256} << 20;

}  // namespace cokv
