#include "cluster/worker_table.hpp"

#include <algorithm>

namespace cokv::cluster {

std::string_view to_string(presence p) noexcept {
  switch (p) {
    case presence::unheard:
      return "unheard";
    case presence::here:
      return "here";
    case presence::gone:
      return "gone";
    case presence::misfit:
      break;
  }
  return "misfit";
}

worker_table::id worker_table::add(std::string url) {
  if (const auto there = find(url)) {
    workers_.at(*there).leaving = false;
    return *there;
  }
  workers_[next_].url = std::move(url);
  return next_++;
}

bool worker_table::leave(std::string_view url) {
  const auto there = find(url);
  if (there) workers_.at(*there).leaving = true;
  return there.has_value();
}

// What its KV would be wrong by. Those that leave count: what they have may still be on its way.
std::string worker_table::misfit(id of, const worker_facts& facts) const {
  const auto& kv = facts.self.wire;
  if (model_ && (kv.layers != model_->layers || kv.kv_heads != model_->kv_heads || kv.head_dim != model_->head_dim))
    return "it serves another model than --model";
  for (const auto& [number, w] : workers_) {
    if (w.state != presence::here || number == of) continue;
    if (w.facts.self.fingerprint != facts.self.fingerprint) return "its weights are not those of " + w.url;
    if (!fits(w.facts.self.wire, kv, w.facts.self.converts && facts.self.converts))
      return "its KV is not that of " + w.url + " (--dtype; with --convert-kv on both it may be)";
  }
  return {};
}

worker_change worker_table::heard(id of, worker_facts facts, time_point now) {
  const auto found = workers_.find(of);
  if (found == workers_.end()) return worker_change::none;
  auto& w = found->second;
  const auto before = w.state;
  const bool another = before == presence::here && w.facts.self.life != facts.self.life;
  w.heard = now;
  ++w.hearings;
  w.doubted = false;
  // Who is here was found to fit the others when it came, or they when they did.
  if (before != presence::here || w.facts.self != facts.self) w.wrong = misfit(of, facts);
  w.facts = std::move(facts);
  if (!w.wrong.empty()) {
    w.state = presence::misfit;
    return before == presence::misfit ? worker_change::none : worker_change::misfit;
  }
  w.state = presence::here;
  return another ? worker_change::replaced : before == presence::here ? worker_change::none : worker_change::came;
}

worker_change worker_table::silent(id of, bool refused, time_point now) {
  const auto found = workers_.find(of);
  if (found == workers_.end()) return worker_change::none;
  auto& w = found->second;
  if (w.state != presence::here && w.state != presence::misfit) return worker_change::none;
  if (!refused && now - w.heard < options_.dead_after) return worker_change::none;
  const bool was_here = w.state == presence::here;
  w.state = presence::gone;
  return was_here ? worker_change::died : worker_change::none;
}

void worker_table::doubt(id of) {
  if (const auto found = workers_.find(of); found != workers_.end()) found->second.doubted = true;
}

duration worker_table::patience(id of, time_point now) const {
  const auto* w = find(of);
  if (!w || w->state != presence::here) return options_.dead_after;
  return std::max<duration>(w->heard + options_.dead_after - now, std::chrono::milliseconds(1));
}

void worker_table::give(id to, std::uint64_t tokens) {
  auto& w = workers_.at(to);
  ++w.requests, ++w.given;
  w.tokens += tokens;
}

void worker_table::ended(id of, std::uint64_t tokens, bool told) {
  const auto found = workers_.find(of);
  if (found == workers_.end()) return;
  auto& w = found->second;
  --w.requests;
  w.tokens -= tokens;
  if (told) w.facts.prompt_tokens_left -= std::min(w.facts.prompt_tokens_left, tokens);
}

const worker_table::worker* worker_table::find(id of) const {
  const auto found = workers_.find(of);
  return found == workers_.end() ? nullptr : &found->second;
}

std::optional<worker_table::id> worker_table::find(std::string_view url) const {
  for (const auto& [number, w] : workers_)
    if (w.url == url) return number;
  return {};
}

std::size_t worker_table::usable(worker_role what) const {
  return static_cast<std::size_t>(
      std::ranges::count_if(workers_, [&](const auto& one) { return one.second.usable(what); }));
}

std::uint32_t worker_table::max_sequence() const {
  std::uint32_t out = 0;
  for (const auto& [number, w] : workers_)
    if (w.state == presence::here) out = out == 0 ? w.facts.max_sequence : std::min(out, w.facts.max_sequence);
  return out;
}

id256 worker_table::fingerprint() const {
  const auto here = std::ranges::find_if(workers_, [](const auto& w) { return w.second.state == presence::here; });
  return here == workers_.end() ? id256() : here->second.facts.self.fingerprint;
}

std::set<std::uint32_t> worker_table::block_sizes() const {
  std::set<std::uint32_t> out;
  for (const auto& [number, w] : workers_)
    if (w.state == presence::here) out.insert(w.facts.self.wire.block_tokens);
  return out;
}

}  // namespace cokv::cluster
