#include "stage/block_slots.hpp"

#include <algorithm>
#include <stdexcept>
#include <tuple>

namespace cokv::detail {

block_slots::block_slots(std::uint32_t blocks, std::uint32_t slots, std::uint64_t stale)
    : slots_(slots), at_(blocks, none), stale_(stale) {}

bool block_slots::begin(std::span<const block_index> filled, std::span<const block_index> fresh, slot_moves& out) {
  std::vector<block_index> mine, missing;
  mine.reserve(filled.size() + fresh.size());
  for (const auto these : {filled, fresh})
    for (const auto b : these) {
      mine.push_back(b);
      if (at_[b] == none) missing.push_back(b);
    }
  const auto filled_missing = std::ranges::count_if(filled, [&](auto b) { return at_[b] == none; });
  for (const auto b : mine)
    if (at_[b] != none) ++slots_[at_[b]].steps;
  const auto taken = victims(missing.size());
  if (taken.size() < missing.size()) {
    for (const auto b : mine)
      if (at_[b] != none) --slots_[at_[b]].steps;
    return false;
  }
  ++begun_;
  for (std::size_t i = 0; i < missing.size(); ++i) {
    auto& s = slots_[taken[i]];
    if (s.holds != none) at_[s.holds] = none, out.taken = true;
    s.holds = missing[i];
    s.steps = 1;
    at_[missing[i]] = taken[i];
    if (static_cast<std::ptrdiff_t>(i) < filled_missing) out.in.push_back({missing[i], taken[i]});
  }
  for (const auto b : mine) slots_[at_[b]].last = begun_;
  under_way_.push_back(std::move(mine));
  return true;
}

// Of those that no step has: empty ones, then those of what is over, the oldest first, then the latest.
std::vector<std::uint32_t> block_slots::victims(std::size_t n) const {
  std::vector<std::uint32_t> out;
  if (n == 0) return out;
  for (std::uint32_t i = 0; i < slots_.size(); ++i)
    if (slots_[i].steps == 0) out.push_back(i);
  if (out.size() <= n) return out;
  const auto order = [&](std::uint32_t i) {
    const auto& s = slots_[i];
    const bool over = s.last + stale_ <= begun_;
    return std::tuple(s.holds != none, !over, over ? s.last : ~s.last, i);
  };
  std::ranges::nth_element(out, out.begin() + static_cast<std::ptrdiff_t>(n), {}, order);
  out.resize(n);
  std::ranges::sort(out);  // so that blocks that follow each other may be copied in one
  return out;
}

void block_slots::end() {
  if (under_way_.empty()) throw std::logic_error("block_slots::end: no step has begun");
  for (const auto b : under_way_.front()) --slots_[at_[b]].steps;
  under_way_.erase(under_way_.begin());
}

bool block_slots::forget(block_index b) {
  if (at_[b] == none) return true;
  auto& s = slots_[at_[b]];
  if (s.steps > 0) return false;
  s.holds = none;
  at_[b] = none;
  return true;
}

void block_slots::forget_all() {
  std::ranges::fill(slots_, slot());
  std::ranges::fill(at_, none);
  under_way_.clear();
}

std::uint32_t block_slots::slot_of(block_index b) const { return at_[b]; }

}  // namespace cokv::detail
