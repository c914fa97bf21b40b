// The leader's side of a model's workers: orders of steps to all of them, its own part of each, and what was sampled of it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <vector>

#include "cokv/engine/stage_worker.hpp"
#include "cokv/runtime/channel.hpp"
#include "cokv/runtime/event.hpp"
#include "stage/slot_space.hpp"
#include "stage/stage.hpp"
#include "stage/stage_ring.hpp"
#include "stage/step_order.hpp"

namespace cokv::detail {

class stage_leader {
 public:
  // `ring`: where copies of KV are kept, behind recover(). `slots`: where steps are computed, if not in the pool.
  stage_leader(std::shared_ptr<model> part, const kv_pool& pool, device where, stream compute, stage_links links,
               stage_sizes sizes, std::shared_ptr<stage_ring> ring = {}, std::shared_ptr<slot_space> slots = {});

  // Orders, computes and hears until a link ends, or close(): why. Then every step that was begun is ready, and error() says
  // so; nothing is written to the pool any more. Once.
  awaitable<error_code> run();
  void close();

  // At most sizes.microbatches at a time. `sampling`: whose tokens step->sampled are, in order; `told`: who is told of its KV,
  // here and at the others; `copied`: of which sequences copies are kept. Ready when the tokens are there.
  // `refreshed`: what is in these blocks came from elsewhere, with slots.
  event begin(std::shared_ptr<batch> step, const std::vector<request_id>& sampling, std::vector<sink_part> told = {},
              std::vector<ordered_copy> copied = {}, std::vector<block_index> refreshed = {});
  // Is called once, at once or later, when all others have done their part of it (its number is given here): with an error,
  // where one has not.
  using on_swapped = std::function<void(error_code)>;
  void swap(swap_order o, on_swapped ended);
  void over(request_id id);                               // nothing more is sampled of it
  void forget(copy_id id) { forgotten_.push_back(id); }   // no copy of it is of use any more
  bool own_fault() const noexcept { return own_fault_; }  // it was its own device that failed
  error_code error() const noexcept { return error_; }
  std::string_view sums_by() const noexcept { return sums_by_; }  // of its stage; empty: not known yet

 private:
  struct work {
    std::uint64_t number = 0;
    std::shared_ptr<batch> step;
    std::vector<std::byte> order, with_samples;
    std::vector<sink_part> told;
    std::vector<ordered_copy> copied;
    std::vector<block_index> refreshed = {};
    event home = {};  // with slots: what it computed is there
  };
  // Of which some have not answered yet.
  struct swapping {
    std::vector<bool> awaited;  // by number
    error_code why;
    on_swapped ended;
  };
  awaitable<error_code> tell();
  awaitable<error_code> bring();
  awaitable<error_code> compute();
  awaitable<error_code> hand_on();
  awaitable<error_code> hear(std::size_t worker);
  error_code swapped(std::size_t worker, const swap_outcome& o);
  void step_over(std::size_t worker, std::uint64_t number);

  stage mine_;
  const stage_links links_;
  const stage_sizes sizes_;
  const std::size_t last_;                   // the number of who samples; 0: the leader
  const std::shared_ptr<slot_space> slots_;  // none: all KV is on the device
  // By worker: the last step that it said is over. Of the last stage's ranks with slots; else of who samples.
  std::map<std::size_t, std::uint64_t> over_at_;
  std::shared_ptr<timeline_core> line_;
  std::uint64_t begun_ = 0, swaps_ = 0;
  channel<work> to_tell_, to_bring_, to_compute_, to_hand_on_;
  channel<char> closing_;
  std::deque<std::shared_ptr<batch>> awaited_;  // whose tokens will come, oldest first
  std::map<std::uint64_t, swapping> moving_;
  std::set<request_id> known_;              // whose sampling the last stage knows
  std::vector<request_id> over_;            // to be told
  std::vector<copy_id> forgotten_;          // likewise
  const std::shared_ptr<stage_ring> ring_;  // none: no copies are kept
  bool own_fault_ = false;
  std::string_view sums_by_;
  error_code error_;
};

}  // namespace cokv::detail
