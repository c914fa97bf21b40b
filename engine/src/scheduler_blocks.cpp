// The part of the scheduler that counts the blocks of a step, where there may not be more than so many.
#include <algorithm>
#include <utility>

#include "scheduler_entry.hpp"

namespace cokv {

// A prompt whose turn it is has its blocks in the step before others'.
void scheduler::begin_counting(bool prompt_first) {
  step_blocks_ = 0;
  began_with_prompt_ = full_ = false;
  if (options_.most_step_blocks == 0) return;
  std::ranges::fill(counted_, char{0});
  if (!prompt_first) return;
  const auto first = std::ranges::find_if(running_, [&](auto* e) { return ready(*e) && e->remaining() > 1; });
  if (first == running_.end()) return;
  const auto room = static_cast<std::uint32_t>((*first)->blocks.size()) * options_.block_tokens - (*first)->computed;
  began_with_prompt_ = fitting(**first, std::min({options_.max_batched_tokens, (*first)->remaining(), room})) > 0;
}

// For one token more of it, whose block it may not have yet.
bool scheduler::has_room(const entry& e) const {
  const auto all = blocks_for(std::size_t{e.computed} + 1);
  const auto there = std::min(all, e.blocks.size());
  const auto more = static_cast<std::size_t>(
      std::ranges::count_if(std::span(e.blocks).first(there), [&](auto b) { return !counted_[b]; }));
  return step_blocks_ + more + (all - there) <= options_.most_step_blocks;
}

// Of so many tokens of it those whose blocks find room in the step, which has them from now on.
std::uint32_t scheduler::fitting(const entry& e, std::uint32_t count) {
  if (options_.most_step_blocks == 0) return count;
  const auto all = blocks_for(std::size_t{e.computed} + count);
  auto left = options_.most_step_blocks - step_blocks_;
  std::size_t n = 0;
  for (; n < all; ++n)
    if (!counted_[e.blocks[n]] && left-- == 0) break;
  const auto end = std::min<std::size_t>(std::size_t{e.computed} + count, n * options_.block_tokens);
  if (end <= e.computed) return 0;
  for (std::size_t i = 0; i < n; ++i) step_blocks_ += !std::exchange(counted_[e.blocks[i]], char{1});
  return static_cast<std::uint32_t>(end - e.computed);
}

void scheduler::plan_prompt(entry& e, std::uint32_t count) {
  if (const auto fits = fitting(e, count)) return plan(e, fits);
  full_ = true;
  prompt_first_ = !began_with_prompt_;
}

}  // namespace cokv
