// The part of the scheduler that lets more requests decode than the device has blocks for.
#include <algorithm>
#include <stdexcept>

#include "scheduler_entry.hpp"

namespace cokv {
namespace {

// So much of the device's blocks may be on their way out at a time; they compute nothing meanwhile.
constexpr std::size_t leaving_part = 8;

}  // namespace

scheduler::under_way scheduler::moving() const {
  under_way out;
  if (!host_) return out;
  for (auto* e : running_) {
    if (e->where == state::leaving) ++out.leaving, out.leaving_blocks += e->blocks.size();
    if (e->where == state::leaving || e->where == state::coming) out.blocks += e->blocks.size();
  }
  return out;
}

// Whoever waits could be admitted, if there were room.
bool scheduler::waits() const {
  if (waiting_.empty()) return false;
  auto& e = *waiting_.front();
  return e.unknown == 0 && !e.asking && (e.outside == 0 || let_in(e));
}

// Of those that compute and don't leave, how many want another block within so many steps.
std::size_t scheduler::growing(std::size_t steps) const {
  return static_cast<std::size_t>(std::ranges::count_if(running_, [&](const entry* e) {
    if (e->where == state::leaving || e->tokens.size() >= e->limit) return false;
    const auto more = std::min(steps, e->limit - e->tokens.size() - 1);  // the last token's KV is not computed
    return e->blocks.size() * options_.block_tokens <= e->tokens.size() - 1 + more;
  }));
}

// Blocks that have to be left when one more request is let in: to admit into the last one only to preempt would waste a
// prefill, or a copy.
std::size_t scheduler::spare() const { return host_ ? growing(options_.max_sequence) : running_.size(); }

// Of so many that were planned, those that compute one and the same request.
std::uint64_t scheduler::own_steps(std::uint64_t steps) const noexcept {
  const std::uint64_t apart = options_.apart ? options_.ahead + 1 : 1;
  return (steps + apart - 1) / apart;
}

void scheduler::take_turns() {
  if (!host_) return;
  for (auto* e : running_)
    if (e->where == state::leaving && !e->moving && e->flying == 0) begin_out(*e);
  const auto waiting_first = [&] { return waiting_next_ && running_.size() < options_.max_running && waits(); };
  while (!parked_.empty() && !waiting_first() && bring_in(*parked_.front())) waiting_next_ = true;
  const bool first_waits = parked_.empty() ? waits() : waiting_first();
  make_turns(first_waits ? waiting_.front() : parked_.empty() ? nullptr : parked_.front());
}

// Room for `next`, who was not let in for want of blocks, and for those who grow.
void scheduler::make_turns(const entry* next) {
  auto now = moving();
  auto there = source_->available() + source_->coming() + now.leaving_blocks;
  const auto grow = growing(turns_.away() + 2);
  for (;;) {
    const auto others = running_.size() - now.leaving;
    const bool no_place = next && next->where == state::parked && others >= options_.max_running;
    const bool no_room = next && next->lacking > 0 && there < next->lacking + spare();
    if (there >= grow && !no_place && !no_room) return;
    auto* e = whose_turn_is_over(now, there < grow);
    if (!e || !leave(*e)) return;
    there += e->blocks.size();
    now = moving();
  }
}

// Of those that decode, whoever is here longest.
scheduler::entry* scheduler::whose_turn_is_over(const under_way& moved, bool for_growth) {
  entry* longest = nullptr;
  std::size_t running = 0;
  for (auto* e : running_) {
    running += e->where == state::running;
    if (e->where != state::running || e->remaining() != 1 || e->tokens.size() >= e->limit) continue;
    if (e->stayed < (for_growth ? 1 : turns_.steps())) continue;
    if (!longest || e->stayed >= longest->stayed) longest = e;
  }
  if (!longest || (for_growth && running < 2)) return nullptr;
  const auto most = source_->capacity() / leaving_part;
  return moved.blocks == 0 || moved.blocks + longest->blocks.size() <= most ? longest : nullptr;
}

// False: it has to stay, or to give its blocks back. It leaves when no step in flight computes it.
bool scheduler::leave(entry& e) {
  if (!host_ || e.where != state::running || e.remaining() != 1 || e.tokens.size() >= e.limit || !take_host(e))
    return false;
  e.where = state::leaving;
  e.since = steps_;
  if (e.flying == 0) begin_out(e);
  return true;
}

// Room for all of it on the host: others' that are on the device is given up for it, those' first who came last.
bool scheduler::take_host(entry& e) {
  const auto need = blocks_for(e.tokens.size()) - std::min(blocks_for(e.tokens.size()), e.host.size());
  while (host_->available() < need) {
    entry* last = nullptr;
    for (auto* r : running_)
      if (r != &e && r->where == state::running && !r->host.empty() && (!last || r->stayed < last->stayed)) last = r;
    if (!last) return false;
    release_host(*last);
  }
  return host_->allocate(need, e.host);
}

void scheduler::release_host(entry& e) {
  if (!e.host.empty()) host_->release(e.host);
  e.host.clear();
  e.on_host = 0;
}

void scheduler::begin_out(entry& e) {
  const auto first = e.on_host / options_.block_tokens;
  const auto end = static_cast<std::uint32_t>(blocks_for(e.computed));
  e.moving = true;
  now_->plan.swaps.push_back({e.id, true, first, end - first});
}

void scheduler::park(entry& e) {
  e.on_host = e.computed;
  release(e);
  e.where = state::parked;
  std::erase(running_, &e);
  parked_.push_back(&e);
}

// What of it is still on the device is found there; the rest is copied.
bool scheduler::bring_in(entry& e) {
  if (running_.size() >= options_.max_running) return false;
  if (e.lacking > 0 && source_->available() < e.lacking + spare()) return false;
  const auto most_hits = e.computed / options_.block_tokens;
  e.blocks = source_->match(e.id, std::span(e.tokens).first(std::size_t{most_hits} * options_.block_tokens));
  if (e.blocks.size() > most_hits) throw std::logic_error("block_source::match: more blocks than were asked for");
  const auto hits = static_cast<std::uint32_t>(e.blocks.size());
  const auto need = blocks_for(e.tokens.size()) - hits;
  if (source_->available() < need + spare() || !source_->allocate(need, e.blocks)) {
    release(e);
    e.lacking = need;
    return false;
  }
  e.lacking = 0;
  parked_.pop_front();
  running_.insert(std::upper_bound(running_.begin(), running_.end(), &e, by_turn), &e);
  e.since = steps_;
  e.stayed = 0;
  const auto count = static_cast<std::uint32_t>(blocks_for(e.computed)) - hits;
  if (count == 0) {
    e.where = state::running;
    return true;
  }
  e.where = state::coming;
  e.moving = true;
  now_->plan.swaps.push_back({e.id, false, hits, count});
  return true;
}

void scheduler::swapped(request_id id, bool there) {
  const auto found = requests_.find(id);
  if (found == requests_.end() || !found->second->moving) return;
  auto& e = *found->second;
  e.moving = false;
  if (e.where == state::leaving) {
    if (there) {
      turns_.out(own_steps(steps_ - e.since));
      return park(e);
    }
    // The block that was half there may be torn.
    e.on_host = e.on_host / options_.block_tokens * options_.block_tokens;
    e.where = state::running;
    e.stayed = 0;
  } else if (there) {
    turns_.in(own_steps(steps_ - e.since));
    e.where = state::running;
  } else {
    e.torn = true;
  }
}

void scheduler::recompute_torn() {
  for (std::size_t i = running_.size(); i-- > 0;)
    if (auto& e = *running_[i]; e.torn) {
      e.torn = false;
      preempt(e);
    }
}

}  // namespace cokv
