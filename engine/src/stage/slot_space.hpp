// Steps are computed in fewer blocks than there are: all KV has its home in the host's memory, and a step's blocks come into
// the device's slots before it is computed, while others are. What it computed goes home behind it. Each of a model's workers
// does this by itself, step by step as they are ordered. (DejaVu, arXiv 2403.01876, section 4.2.2: microbatch swapping. There a
// device has two microbatches' KV and no more; here what still is in a slot from a round before does not come in again.)
//
//     slot_space slots(gpu, home, {.slots = 200, .microbatches = 5});
//     co_await slots.bring(*step, {});             // waits for slots, not for copies
//     slots.enter(compute);                        // the device waits for those
//     ...the step is computed in slots.pool()...
//     event home_again = slots.leave(*step);       // its KV is at home
//
// bring(), enter() and leave() are called once for each step, each in the order of steps. A copy that fails is an error of the stream
// that computes, or of leave()'s event: what is at home is not to be trusted any more.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "cokv/engine/model.hpp"
#include "cokv/engine/stage_worker.hpp"
#include "cokv/kvstream/kv_pool.hpp"
#include "cokv/runtime/channel.hpp"
#include "pool_copies.hpp"
#include "stage/block_slots.hpp"

namespace cokv::detail {

class slot_space {
 public:
  // `home` outlives it. Throws config_error: the device has no memory of this kind for sizes.slots blocks.
  slot_space(asio::any_io_executor ex, device where, const kv_pool& home, const stage_sizes& sizes, memory_kind kind);

  // What all KV would be in is that of its home, as far as the host can reach it, and of slots, which no other process does.
  static memory_kind home_kind(memory_kind kv_memory) noexcept;
  static memory_kind slot_kind(memory_kind kv_memory) noexcept;

  const kv_pool& pool() const noexcept { return pool_; }
  // No step is under way any more, nor will one that was brought be: what is at home is all there is.
  void begin_again();
  // Until its blocks have slots, which they keep until leave(). The step's block tables name slots in between. `refreshed`: what
  // of these blocks is at home came from elsewhere. Cancelled, begin_again() is all that may be called.
  awaitable<error_code> bring(batch& step, std::span<const block_index> refreshed);
  error_code enter(stream& compute);
  // The stream has computed it.
  result<event> leave(batch& step);

  stream& going(bool out) noexcept { return copies_.going(out); }
  std::uint64_t bytes_in() const noexcept { return blocks_in_ * pool_.shape().block_bytes(); }
  std::uint64_t bytes_out() const noexcept { return blocks_out_ * pool_.shape().block_bytes(); }

 private:
  // A step that was brought.
  struct placed {
    std::vector<block_index> changed;              // blocks that it writes
    std::vector<std::vector<block_index>> tables;  // of its sequences
    event arrived;
  };
  struct needs {
    std::vector<block_index> filled, fresh, changed;
  };
  needs needs_of(batch& step);
  result<event> bring_in(const slot_moves& moves);

  const kv_pool& home_;
  const std::uint32_t block_tokens_;
  kv_pool pool_;
  block_slots slots_;
  pool_copies copies_;
  channel<char> room_;             // told when a step has left
  std::vector<std::uint64_t> in_;  // by block: the step that has it, from 1
  std::uint64_t steps_ = 0;
  std::deque<placed> placed_;
  std::size_t entered_ = 0;
  std::uint64_t blocks_in_ = 0, blocks_out_ = 0;
};

}  // namespace cokv::detail
