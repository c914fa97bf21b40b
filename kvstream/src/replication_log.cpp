#include "cokv/kvstream/replication_log.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "cokv/runtime/error.hpp"

namespace cokv {
namespace {

[[noreturn]] void fail(const std::string& what) { throw std::invalid_argument("replication log: " + what); }

std::string name(std::uint64_t worker) { return "worker " + std::to_string(worker); }

}  // namespace

replication_log::replication_log(std::vector<worker_id> ring, std::uint32_t max_ahead) : max_ahead_(max_ahead) {
  if (max_ahead_ == 0) throw config_error("replication log: max_ahead is 0");
  for (auto id : ring) {
    if (find(id)) throw config_error("replication log: " + name(id) + " is there twice");
    ring_.emplace_back().id = id;
  }
  ring_changed();
}

replication_log::member* replication_log::find(worker_id w) {
  auto it = std::ranges::find(ring_, w, &member::id);
  return it == ring_.end() ? nullptr : &*it;
}

const replication_log::member* replication_log::find(worker_id w) const {
  return const_cast<replication_log*>(this)->find(w);
}

const replication_log::member& replication_log::at(worker_id w) const {
  auto* found = find(w);
  if (!found) fail("no " + name(w));
  return *found;
}

bool replication_log::lives(worker_id holder) const {
  auto* found = find(holder);
  return found ? !found->lost : leaving_.contains(holder);
}

std::uint32_t replication_log::steps_in(const copy& c, microbatch_id m) {
  auto it = c.acknowledged.find(m);
  return it == c.acknowledged.end() ? 0 : it->second;
}

std::uint32_t replication_log::safe(const member& w, microbatch_id m) {
  std::uint32_t most = 0;
  for (auto& c : w.copies) most = std::max(most, steps_in(c, m));
  return most;
}

void replication_log::open(microbatch_id m) {
  if (m < next_) fail("microbatch " + std::to_string(m) + " was open before");
  next_ = m + 1;
  open_.insert(m);
  for (auto& w : ring_) w.computed[m] = 0;
}

void replication_log::close(microbatch_id m) {
  if (open_.erase(m) == 0) fail("microbatch " + std::to_string(m) + " is not open");
  for (auto& w : ring_) {
    w.computed.erase(m);
    for (auto& c : w.copies) c.acknowledged.erase(m);
    settle(w);
  }
}

bool replication_log::may_compute(worker_id w, microbatch_id m) const {
  auto& who = at(w);
  auto done = who.computed.find(m);
  if (who.lost || done == who.computed.end()) return false;
  return !target(w) || done->second - safe(who, m) < max_ahead_;
}

void replication_log::computed(worker_id w, microbatch_id m) {
  if (!may_compute(w, m)) fail(name(w) + " may not compute microbatch " + std::to_string(m));
  ++find(w)->computed[m];
}

std::uint32_t replication_log::steps(worker_id w, microbatch_id m) const {
  auto& done = at(w).computed;
  auto it = done.find(m);
  return it == done.end() ? 0 : it->second;
}

std::optional<replication_log::worker_id> replication_log::target(worker_id w) const {
  auto place = static_cast<std::size_t>(&at(w) - ring_.data());
  for (std::size_t i = 1; i < ring_.size(); ++i)
    if (auto& next = ring_[(place + i) % ring_.size()]; !next.lost) return next.id;
  return std::nullopt;
}

std::uint32_t replication_log::acknowledged_steps(worker_id w, worker_id holder, microbatch_id m) const {
  for (auto& c : at(w).copies)
    if (c.holder == holder) return steps_in(c, m);
  return 0;
}

bool replication_log::acknowledged(worker_id w, worker_id holder, microbatch_id m, std::uint32_t steps,
                                   std::uint64_t epoch) {
  auto* who = find(w);
  if (!who || who->lost || epoch != epoch_) return false;
  auto done = who->computed.find(m);
  if (done == who->computed.end() || steps > done->second) return false;
  auto c = std::ranges::find(who->copies, holder, &copy::holder);
  if (c == who->copies.end()) return false;
  auto& known = c->acknowledged[m];
  known = std::max(known, steps);
  settle(*who);
  return true;
}

std::uint32_t replication_log::safe_steps(worker_id w, microbatch_id m) const { return safe(at(w), m); }

// Earlier copies may go when the last one has all that any of them has; until then one may have what another lacks.
void replication_log::settle(member& w) {
  for (auto& [m, done] : w.computed)
    if (w.copies.empty() || steps_in(w.copies.back(), m) < safe(w, m)) return;
  if (w.copies.size() > 1) w.copies.erase(w.copies.begin(), w.copies.end() - 1);
}

void replication_log::drop_dead_copies() {
  for (auto& w : ring_) std::erase_if(w.copies, [&](const copy& c) { return !lives(c.holder); });
}

void replication_log::ring_changed() {
  ++epoch_;
  drop_dead_copies();
  for (auto& w : ring_) {
    if (w.lost) continue;  // its copies are what its replacement starts from
    if (auto next = target(w.id)) {
      auto known = std::ranges::find(w.copies, *next, &copy::holder);
      if (known == w.copies.end())
        w.copies.push_back({*next, {}});
      else
        std::rotate(known, known + 1, w.copies.end());
      settle(w);
    }
  }
  std::erase_if(leaving_, [&](worker_id id) { return !needed(id); });
}

replication_log::recovery replication_log::lose(const std::vector<worker_id>& dead) {
  for (auto id : dead) {
    leaving_.erase(id);
    if (auto* w = find(id)) w->lost = true;
  }
  drop_dead_copies();
  recovery out;
  for (auto& w : ring_)
    if (w.lost)
      for (auto& [m, done] : w.computed) out.resume.emplace(m, done);
  for (auto& [m, resume] : out.resume)
    for (auto& w : ring_)
      if (auto done = w.computed.find(m); done != w.computed.end())
        resume = std::min(resume, w.lost ? safe(w, m) : done->second);

  for (auto& [m, resume] : out.resume)
    for (auto& w : ring_) {
      auto done = w.computed.find(m);
      if (done == w.computed.end()) continue;
      done->second = std::min(done->second, resume);
      for (auto& c : w.copies)
        if (steps_in(c, m) > resume) c.acknowledged[m] = resume;
      if (!w.lost || resume == 0) continue;
      auto from = std::ranges::find_if(w.copies, [&](const copy& c) { return steps_in(c, m) == resume; });
      out.restores.push_back({w.id, m, from->holder, resume});
    }
  ring_changed();
  return out;
}

void replication_log::replace(worker_id lost, worker_id fresh) {
  if (find(fresh) || leaving_.contains(fresh)) fail(name(fresh) + " is there already");
  auto* w = find(lost);
  if (!w || !w->lost) fail(name(lost) + " is not lost");
  w->id = fresh;
  w->lost = false;
  ring_changed();
}

void replication_log::join(worker_id w, worker_id behind) {
  if (find(w) || leaving_.contains(w)) fail(name(w) + " is there already");
  auto place = &at(behind) - ring_.data();
  ring_.insert(ring_.begin() + place + 1, member{.id = w, .lost = false, .computed = {}, .copies = {}});
  ring_changed();
}

void replication_log::leave(worker_id w) {
  auto& who = at(w);
  if (!who.lost) leaving_.insert(w);
  ring_.erase(ring_.begin() + (&who - ring_.data()));
  ring_changed();
}

bool replication_log::keeps(worker_id holder, worker_id w) const {
  auto* who = find(w);
  return who && std::ranges::find(who->copies, holder, &copy::holder) != who->copies.end();
}

bool replication_log::needed(worker_id w) const {
  return std::ranges::any_of(ring_, [&](const member& other) { return keeps(w, other.id); });
}

}  // namespace cokv
