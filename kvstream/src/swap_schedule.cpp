#include "cokv/kvstream/swap_schedule.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "cokv/runtime/error.hpp"

namespace cokv {
namespace {

[[noreturn]] void fail(const std::string& what) { throw std::invalid_argument("swap schedule: " + what); }

}  // namespace

swap_schedule::swap_schedule(options o) : used_(o.slots), prefetch_(o.prefetch) {
  if (o.slots == 0) throw config_error("swap schedule: no slots");
  if (o.prefetch >= o.slots)
    throw config_error("swap schedule: prefetch of " + std::to_string(o.prefetch) +
                       " and the current one need more than " + std::to_string(o.slots) + " slots");
}

swap_schedule::item& swap_schedule::known(microbatch_id m) {
  auto it = items_.find(m);
  if (it == items_.end() || it->second.removed) fail("no microbatch " + std::to_string(m));
  return it->second;
}

void swap_schedule::add(microbatch_id m, std::uint32_t host_tokens) {
  auto [it, is_new] = items_.try_emplace(m);
  if (!is_new) fail("microbatch " + std::to_string(m) + " is there already");
  it->second.tokens = it->second.on_host = host_tokens;
  // Behind whoever had the last turn.
  order_.insert(order_.begin() + static_cast<std::ptrdiff_t>(turn_), m);
  ++turn_;
  if (turn_ == order_.size()) turn_ = 0;
}

void swap_schedule::remove(microbatch_id m) {
  auto& it = known(m);
  if (it.computing) fail("microbatch " + std::to_string(m) + " is computing");
  auto place = static_cast<std::size_t>(std::ranges::find(order_, m) - order_.begin());
  order_.erase(order_.begin() + static_cast<std::ptrdiff_t>(place));
  if (place < turn_) --turn_;
  if (turn_ == order_.size()) turn_ = 0;
  it.removed = true;
  free_if_removed(m);
}

void swap_schedule::free_if_removed(microbatch_id m) {
  auto it = items_.find(m);
  if (!it->second.removed || it->second.moving) return;
  if (it->second.slot) used_[*it->second.slot] = false;
  items_.erase(it);
}

const swap_schedule::item* swap_schedule::turn() const { return order_.empty() ? nullptr : &items_.at(order_[turn_]); }

std::optional<swap_schedule::microbatch_id> swap_schedule::current() const {
  if (order_.empty()) return std::nullopt;
  return order_[turn_];
}

bool swap_schedule::ready() const {
  auto* it = turn();
  return it && it->here() && !it->computing;
}

std::uint32_t swap_schedule::slot() const {
  auto* it = turn();
  if (!it || !it->here()) fail("nothing is ready");
  return *it->slot;
}

void swap_schedule::begin() {
  if (!ready()) fail("nothing is ready");
  items_.at(order_[turn_]).computing = true;
}

void swap_schedule::end(std::uint32_t new_tokens) {
  if (!turn() || !turn()->computing) fail("nothing computes");
  auto& it = items_.at(order_[turn_]);
  if (new_tokens > std::numeric_limits<std::uint32_t>::max() - it.tokens) fail("more than 2^32 tokens");
  it.computing = false;
  it.tokens += new_tokens;
  turn_ = (turn_ + 1) % order_.size();
}

// A free slot, or that of whoever is needed last, if that is later than so many turns from now.
std::optional<std::uint32_t> swap_schedule::slot_for(std::size_t turns_ahead) {
  if (auto free = std::ranges::find(used_, false); free != used_.end()) {
    *free = true;
    return static_cast<std::uint32_t>(free - used_.begin());
  }
  for (auto later = order_.size() - 1; later > turns_ahead; --later) {
    auto& it = items_.at(order_[(turn_ + later) % order_.size()]);
    if (!it.slot || it.moving || it.computing || it.on_host < it.tokens) continue;
    auto slot = *it.slot;
    it.slot.reset();
    return slot;
  }
  return std::nullopt;
}

std::vector<swap_schedule::move> swap_schedule::next() {
  std::vector<move> out;
  if (order_.size() > used_.size())
    for (std::size_t i = 0; i < order_.size(); ++i) {
      auto m = order_[(turn_ + i) % order_.size()];
      auto& it = items_.at(m);
      if (!it.slot || it.moving || it.computing || it.on_host == it.tokens) continue;
      it.moving = move{move::kind::write_out, m, *it.slot, {it.on_host, it.tokens - it.on_host}};
      out.push_back(*it.moving);
    }
  for (std::size_t i = 0; i <= prefetch_ && i < order_.size(); ++i) {
    auto m = order_[(turn_ + i) % order_.size()];
    auto& it = items_.at(m);
    if (it.slot) continue;
    it.slot = slot_for(i);
    if (!it.slot) break;  // and there is none for a later one
    if (it.tokens == 0) continue;
    it.moving = move{move::kind::bring_in, m, *it.slot, {0, it.tokens}};
    out.push_back(*it.moving);
  }
  return out;
}

swap_schedule::item& swap_schedule::ended(const move& m) {
  auto it = items_.find(m.microbatch);
  if (it == items_.end() || it->second.moving != m) fail("no such move of microbatch " + std::to_string(m.microbatch));
  it->second.moving.reset();
  return it->second;
}

void swap_schedule::done(const move& m) {
  auto& it = ended(m);
  if (m.what == move::kind::write_out) it.on_host = static_cast<std::uint32_t>(m.tokens.end());
  free_if_removed(m.microbatch);
}

void swap_schedule::failed(const move& m) {
  auto& it = ended(m);
  if (m.what == move::kind::bring_in && !it.removed) {
    used_[*it.slot] = false;
    it.slot.reset();
  }
  free_if_removed(m.microbatch);
}

void swap_schedule::lost(microbatch_id m) {
  auto& it = known(m);
  if (it.computing || it.on_host < it.tokens) fail("microbatch " + std::to_string(m) + " is not all on the host");
  if (!it.slot || it.moving) return;
  used_[*it.slot] = false;
  it.slot.reset();
}

std::uint32_t swap_schedule::slots_used() const { return static_cast<std::uint32_t>(std::ranges::count(used_, true)); }

}  // namespace cokv
