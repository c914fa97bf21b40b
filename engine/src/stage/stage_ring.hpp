// A worker's part in the ring of a model's workers: the KV that it computes goes to the one behind it, step by step of each
// sequence, and it keeps what the one before it computes. After a loss it has what is left of both (stage_recovery.hpp).
//
// Steps are counted here by sequence; a replicator carries them. One whose copy finds no room at the keeper's goes without.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "cokv/engine/model.hpp"
#include "cokv/engine/stage_recovery.hpp"
#include "cokv/engine/stage_worker.hpp"
#include "cokv/kvstream/packer.hpp"
#include "cokv/kvstream/replicator.hpp"
#include "stage/step_order.hpp"

namespace cokv::detail {

class stage_ring {
 public:
  // `view`: of the whole pool. The leader's KV is kept by nobody.
  stage_ring(window_table windows, device where, const model_part& part, kv_view view, stage_sizes sizes);

  // What an order says of copies, as orders come. errc::protocol: a sequence that was begun twice, or never.
  error_code ordered(std::span<const ordered_copy> copied, std::span<const copy_id> forgotten);
  // Until the keeper has all steps of these sequences; of one whose prompt is computed, all but the last.
  awaitable<error_code> may_compute(const batch& step, const std::vector<ordered_copy>& copied);
  // Its KV is there.
  void computed(const batch& step, const std::vector<ordered_copy>& copied);

  stage_holding holding() const;
  void forget();  // what was computed here is not to be trusted any more, nor what is kept
  // As everybody was told: what goes on, and from where.
  error_code recover(const stage_recovery& how);
  // Behind it: what a worker that has nothing needs comes from its keeper.
  awaitable<error_code> restore(const stage_recovery& how, peer_link keeper);
  // Until the link ends. send() behind both.
  awaitable<error_code> send(peer_link keeper) { return copies_->send(std::move(keeper)); }
  awaitable<error_code> keep(peer_link kept);

  std::uint64_t bytes_kept() const noexcept { return copies_->bytes_kept(); }

 private:
  struct sequence {
    std::uint32_t room = 0;   // tokens
    std::uint32_t steps = 0;  // computed
    std::uint32_t end = 0;    // tokens of them
    bool copied = true;
  };
  std::unique_ptr<replicator> fresh_copies();
  std::uint64_t bytes(std::uint32_t tokens) const;
  replicated_step part_of(std::span<const block_index> blocks, index_range tokens) const;
  std::vector<replicated_step> steps_of(const held_sequence& s) const;
  error_code go_on(const stage_recovery& how);
  awaitable<error_code> until_kept(copy_id id, bool chunk);
  bool sends() const noexcept { return number_ != 0; }

  const window_table windows_;
  const topology split_;
  const std::uint32_t number_;
  const kv_view view_;
  const stage_sizes sizes_;
  packer packs_;
  std::unique_ptr<replicator> copies_;
  stage_epoch last_;
  std::map<copy_id, sequence> sequences_;
};

}  // namespace cokv::detail
