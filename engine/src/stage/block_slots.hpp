// Which blocks of KV are on a device that has room for fewer than there are: slots, which a step's blocks have before it is
// computed. Pure; slot_space.hpp copies what this says.
//
// Steps of microbatches come round in the same order again and again, so that what was computed last is needed latest: of blocks
// that no step needs its slot is taken first. (The least recently used, in a round, would always be the next to be needed.) But first those
// that no step of a few rounds had: of sequences that are over.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cokv/engine/scheduler.hpp"

namespace cokv::detail {

struct slot_move {
  block_index block = 0;
  std::uint32_t slot = 0;
};

struct slot_moves {
  std::vector<slot_move> in;
  bool taken = false;  // a slot that held something is another block's: what was in it may still be on its way home
};

class block_slots {
 public:
  // `stale`: steps after which a block that none of them had counts as over.
  block_slots(std::uint32_t blocks, std::uint32_t slots, std::uint64_t stale);

  // The next step's blocks, each once, have slots until end(): those of `filled` need what they hold, and what is not there
  // has to come in; what `fresh` ones hold is of no use. False, and nothing has changed: steps before it have the slots.
  bool begin(std::span<const block_index> filled, std::span<const block_index> fresh, slot_moves& out);
  // That step, or the oldest that has not ended, has been computed.
  void end();
  // What is known of the block has changed elsewhere. False: a step has it, and until its end() nothing has changed.
  bool forget(block_index b);
  void forget_all();  // no step has begun, or none that did will end

  std::uint32_t slot_of(block_index b) const;  // of a step that has begun

 private:
  static constexpr std::uint32_t none = ~std::uint32_t{0};
  struct slot {
    block_index holds = none;
    std::uint32_t steps = 0;  // that have it
    std::uint64_t last = 0;   // the step that had it last, from 1
  };
  std::vector<std::uint32_t> victims(std::size_t n) const;

  std::vector<slot> slots_;
  std::vector<std::uint32_t> at_;  // by block
  const std::uint64_t stale_;
  std::uint64_t begun_ = 0;
  std::vector<std::vector<block_index>> under_way_;  // blocks of steps, oldest first
};

}  // namespace cokv::detail
