// Requests of a model in parts that go on behind the loss of a worker, by the copies that the others keep of its KV.
#include <algorithm>

#include "engine_state.hpp"

namespace cokv::detail {

std::vector<ordered_copy> engine_state::copies_of(const schedule& plan) {
  std::vector<ordered_copy> out;
  if (!ring_) return out;
  for (std::uint32_t i = 0; i < plan.items.size(); ++i) {
    const auto& item = plan.items[i];
    auto& g = *live_.at(item.id);
    const bool begins = g.copy == 0;
    if (begins) g.copy = next_copy_++;
    g.copied_ends.push_back(item.start + item.count);
    out.push_back({i, g.copy, begins ? scheduler_.limit(item.id) : 0});
  }
  return out;
}

void engine_state::forget_copy(generation_state& g) {
  g.copied_ends.clear();
  if (const auto id = std::exchange(g.copy, 0); id != 0 && leader_) leader_->forget(id);
}

// Steps that a loss ended are planned again. But not for ever: what is lost with each step of one request may be lost for it.
awaitable<void> engine_state::take_back() {
  constexpr std::uint32_t most_taken_back = 5;
  for (auto& f : flying_) (void)co_await f.over.async_wait(asio::as_tuple(asio::deferred));
  std::set<request_id> ids;
  for (auto& f : flying_)
    for (auto& item : f.plan->items)
      if (std::ranges::count(f.gone, item.id) == 0) ids.insert(item.id);
  flying_.clear();
  scheduler_.take_back();
  for (const auto id : ids)
    if (const auto found = live_.find(id); found != live_.end() && ++found->second->taken_back > most_taken_back)
      finish(std::shared_ptr(found->second), errc::unavailable);
}

// Steps that sampled what is not known do not count: their last token is computed again, for its logits.
std::vector<held_sequence> engine_state::held() const {
  constexpr std::size_t most_ends = most_recovery_bytes / 16;  // of all of them: what is beyond begins anew
  std::size_t told = 0;
  std::vector<held_sequence> out;
  for (const auto& [id, g] : live_) {
    if (g->copy == 0) continue;
    auto ends = g->copied_ends;
    while (!ends.empty() && ends.back() >= scheduler_.known_tokens(id).size()) ends.pop_back();
    if (ends.empty() || told + ends.size() > most_ends) continue;
    told += ends.size();
    const auto blocks = scheduler_.blocks(id).first((ends.back() + options.block_tokens - 1) / options.block_tokens);
    out.push_back({g->copy, scheduler_.limit(id), {blocks.begin(), blocks.end()}, std::move(ends)});
  }
  return out;
}

stage_recovery engine_state::recover(std::vector<stage_holding> said) {
  said.resize(runs->part().split.workers());
  said[0] = ring_->holding();
  return cokv::recover(runs->part().split, {options.copies->life, ++epoch_}, said, held());
}

// Whether another request has the block that this one would go on to write.
bool engine_state::shares(const generation_state& g, std::uint32_t token) const {
  const auto blocks = scheduler_.blocks(g.id);
  const auto at = token / options.block_tokens;
  return at < blocks.size() && cache.uses(blocks[at]) > 1;
}

void engine_state::go_on(const stage_recovery& how) {
  bool some = false;
  auto left = how.sequences;
  const auto begin_anew = [&](request_id id, std::uint32_t before) {
    if (before > scheduler_.cached_tokens(id)) {
      counters_.recomputed_tokens += before;
      ++counters_.restarted_requests;
      some = true;
    }
    scheduler_.restart(id);
  };
  for (auto& [id, g] : live_) {
    const auto before = scheduler_.computed_tokens(id);
    if (g->copy == 0) {  // computed in no step yet, though it may have found blocks, or its KV have come
      if (!scheduler_.blocks(id).empty()) begin_anew(id, before);
      continue;
    }
    const auto at = std::ranges::find(left, g->copy, &held_sequence::id);
    some = true;
    if (at != left.end() && !shares(*g, at->ends.back())) {
      g->copied_ends = std::move(at->ends);
      left.erase(at);
      scheduler_.resume(id, g->copied_ends.back());
      ++counters_.resumed_requests;
      counters_.recomputed_tokens += before - std::min(before, g->copied_ends.back());
      continue;
    }
    if (at != left.end()) left.erase(at);
    forget_copy(*g);
    forget_told(*g);
    begin_anew(id, before);
  }
  for (const auto& s : left) leader_->forget(s.id);
  counters_.recoveries += some;
}

}  // namespace cokv::detail
