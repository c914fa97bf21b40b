// Workers that each have a part of a model (model_options::part) and compute its steps together: the leader, stage 0's rank
// 0, is an engine, which plans every step and has the requests; each of the others does in its part what the leader orders.
//
//     cokv::stage_worker mine(ex, device, part, sizes);               // the leader's sizes: block i is block i everywhere
//     error_code why = co_await mine.run(links);                      // until a link ends
//     ...and at the leader:
//     cokv::engine engine(ex, device, part, tokenizer, {.on_ranks_lost = report});
//     engine.join(links);                                             // from here on it takes requests
//
// A step's order goes from the leader to each; rows of the residual stream go from a rank to the same rank of the next stage,
// summands between the ranks of a stage, unless their GPUs add up (rank_group.hpp), and what was sampled from the last stage's rank 0 back to the
// leader. Steps are computed everywhere in the order in which they were planned, so that a block is written and read everywhere in that
// order too; several are under way at once, in different stages.
//
// With stage_sizes::host_blocks sequences take turns on the devices, as in one process: each worker moves its part of them to the
// host's memory and back while others are computed, when the leader says so, and tells it when that is done.
//
// With stage_sizes::slots microbatches do, step by step: KV is in the host's memory at each worker, and the device has room for a few
// steps' (slot_space.hpp). Each moves its part by itself, and computes in the meantime.
//
// With stage_sizes::copies each also keeps what the worker before it has computed (stage_recovery.hpp), and computes a token of an
// answer when all before it are kept, a chunk of a prompt when all but the chunk before it are. Behind a loss each says what it has, holding(); of that all are told what
// goes on. A worker that begins anew takes its KV from who keeps it, and the others' stays where it is.
//
// | stage_worker::run |                                                                                               |
// |-------------------|-----------------------------------------------------------------------------------------------|
// | completes         | when a link ended, its own device failed, or somebody broke the protocol: with why; nothing is |
// |                   | written to its KV any more then                                                               |
// | cancellation      | every kind: of the scope; what the device has begun drains                                    |
// | errors            | the links'; protocol; the device's; invalid_argument: links that are not the ones of its place                                                            |
//
// Behind an end, which closes all links that were given, all of them begin anew, with new ones. One run() at a time. Belongs to one context.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "cokv/engine/model.hpp"
#include "cokv/engine/prompt_sink.hpp"
#include "cokv/engine/stage_recovery.hpp"
#include "cokv/kvstream/kv_pool.hpp"
#include "cokv/kvstream/mpi_group.hpp"
#include "cokv/kvstream/peer_link.hpp"
#include "cokv/kvstream/window.hpp"
#include "cokv/runtime/asio.hpp"
#include "cokv/runtime/device.hpp"

namespace cokv {

// What the leader has decided, and everybody goes by.
struct stage_sizes {
  std::uint32_t kv_blocks = 0;
  std::uint32_t block_tokens = 16;
  std::uint32_t max_batched_tokens = 1024;  // of one step
  std::uint32_t max_running = 256;          // requests of one step
  std::uint32_t max_requests = 4096;
  std::uint32_t max_sequence = 0;  // tokens
  std::uint32_t microbatches = 1;  // steps under way at once
  static constexpr std::uint32_t most_microbatches = 64;
  std::uint64_t copies = 0;  // bytes in which each keeps the KV of the one before it; 0: nobody keeps any
  std::uint32_t host_blocks =
      0;  // of memory where each has its part of sequences that are not on the device; 0: all are
  // Blocks that each has room for on its device, where all kv_blocks are in the host's memory; one step has half of them at the most. 0:
  // all are on the device. Not together with host_blocks.
  std::uint32_t slots = 0;
  friend bool operator==(const stage_sizes&, const stage_sizes&) = default;
};

// One link for each purpose, also where several lead to the same worker.
struct stage_links {
  std::vector<peer_link> ranks;     // of the same stage, by rank, one's own empty; none where it is alone there
  std::shared_ptr<mpi_group> sums;  // of the same ranks: they add up by MPI, and not over those links
  peer_link before, behind;         // the same rank of the stage before and of the next; empty at the ends
  std::vector<peer_link> workers;   // the leader's: to each, by number (topology::number), its own empty
  peer_link leader;                 // everybody else's
  // Where copies of KV are kept (keeper_of()): to who keeps this worker's, unless it leads, and from whose KV this one keeps,
  // unless that is the leader.
  peer_link keeper, kept;
};

class stage_worker {
 public:
  // `windows`: those of its links, where copies are kept. Throws config_error where the KV of so many blocks does not fit, or
  // naming the size that makes no sense.
  stage_worker(asio::any_io_executor ex, device where, std::shared_ptr<model> part, stage_sizes sizes,
               memory_kind kv_memory = memory_kind::device, std::optional<window_table> windows = {});
  ~stage_worker();

  // `how`: with copies, as recover() made it of what all have.
  awaitable<error_code> run(stage_links links, std::optional<stage_recovery> how = {});
  stage_holding holding() const;
  // Completes when run() is behind what a worker that begins anew takes from its keeper, which is written wherever it lay: before that
  // nobody else may write into its KV. Once each run(), also when that begins later. One waits at a time; every kind of
  // cancellation ends the wait. Errors: operation_aborted.
  awaitable<error_code> restored();

  // Is told of prompts' KV in this worker's layers and heads, as it is computed, as long as it is there: of the request that the
  // leader's sink of this number is told of, from its next step on. Its blocks are those of the leader, who alone holds them.
  // Not with slots.
  void watch(std::uint64_t number, std::weak_ptr<prompt_sink> sink);

  const kv_pool& pool() const noexcept;
  kv_view view() const;  // of all of it, with slots as it was behind the steps that are over; outlives the worker
  const model& running() const noexcept;
  const stage_sizes& sizes() const noexcept;
  std::uint64_t steps() const noexcept;       // computed so far
  std::string_view sums_by() const noexcept;  // rank_group::by(); empty: they have not met
  std::uint64_t bytes_kept() const noexcept;  // of another's KV

 private:
  struct state;
  std::shared_ptr<state> state_;
};

}  // namespace cokv
