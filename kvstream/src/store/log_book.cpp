#include "store/log_book.hpp"

#include <algorithm>

namespace cokv::detail {

void log_book::add_file(std::uint64_t serial, bool carried, std::uint64_t bytes) {
  auto& f = files_[serial];
  f.carried = carried;
  resize(serial, bytes);
}

void log_book::resize(std::uint64_t serial, std::uint64_t bytes) {
  auto& f = files_.at(serial);
  bytes_ += bytes - f.bytes;
  if (!f.carried) fresh_ += bytes - f.bytes;
  f.bytes = bytes;
}

void log_book::seal(std::uint64_t serial) { files_.at(serial).sealed = true; }

void log_book::suspect(std::uint64_t serial) { files_.at(serial).suspect = files_.at(serial).sealed = true; }

void log_book::hold(std::uint64_t serial) { ++files_.at(serial).holds; }

void log_book::release(std::uint64_t serial) {
  if (auto f = files_.find(serial); f != files_.end() && f->second.holds > 0) --f->second.holds;
}

bool log_book::held(std::uint64_t serial) const { return files_.at(serial).holds > 0; }

void log_book::vacate(std::uint64_t serial) {
  if (auto f = files_.find(serial); f != files_.end() && f->second.busy > 0) --f->second.busy;
}

bool log_book::occupied() const {
  return std::any_of(files_.begin(), files_.end(),
                     [](const auto& f) { return !f.second.gone && f.second.holds == 0 && f.second.busy > 0; });
}

std::size_t log_book::drop_file(std::uint64_t serial, bool cleaned) {
  auto& f = files_.at(serial);
  if (cleaned) saved_ = std::min(saved_ + f.live, most_saved_);
  std::size_t n = 0;
  for (const auto& g : f.groups) {
    std::vector<block_key> gone;
    for (std::uint32_t i = 0; i < g->blocks.size(); ++i) {
      const stored_id id{g->ns, g->blocks[i].key};
      const auto b = blocks_.find(id);
      if (b == blocks_.end() || b->second.group != g) continue;
      leave(id, b->second);
      blocks_.erase(b);
      quotas_.erase(id);
      if (cleaned && !f.carried) remember(id);
      gone.push_back(id.key);
    }
    n += gone.size();
    tell(store_change::kind::removed, g->ns, std::move(gone));
  }
  f.sealed = true;
  return n;
}

void log_book::unlinked(std::uint64_t serial) {
  resize(serial, 0);
  files_.at(serial).gone = true;
}

std::vector<std::uint64_t> log_book::unlinked_serials() const {
  std::vector<std::uint64_t> out;
  for (const auto& [serial, f] : files_)
    if (f.gone) out.push_back(serial);
  return out;
}

void log_book::forget_unlinked(std::span<const std::uint64_t> serials) {
  for (auto serial : serials) {
    const auto f = files_.find(serial);
    if (f == files_.end()) continue;
    for (const auto& g : f->second.groups)
      for (const auto& m : g->blocks) remains_.drop({g->ns, m.key}, serial);
    files_.erase(f);
  }
}

const log_book::block* log_book::find(const stored_id& id) const {
  const auto b = blocks_.find(id);
  return b == blocks_.end() ? nullptr : &b->second;
}

void log_book::leave(const stored_id& id, const block& b) {
  change_live(files_.at(b.group->serial), *b.group, 0 - bytes_of(*b.group));
  remains_.add(id, b.group->serial);
}

void log_book::change_live(file& f, const log_group& g, std::uint64_t by) {
  f.live += by;
  live_ += by;
  if (g.tenant.empty()) return;
  const auto who = tenants_.try_emplace(g.tenant).first;
  if ((who->second += by) == 0) tenants_.erase(who);
}

std::vector<tenant_info> log_book::tenants() const { return quotas_.tenants(tenants_); }

// Blocks of those who have one from now on are taken to have come in the order of their files.
void log_book::set_quotas(const tenant_quotas& quotas) {
  const auto fresh = quotas_.set_quotas(quotas);
  for (const auto& [serial, f] : files_)
    for (const auto& g : f.groups) {
      if (std::ranges::find(fresh, g->tenant) == fresh.end()) continue;
      for (auto m = g->blocks.rbegin(); m != g->blocks.rend(); ++m) {
        const stored_id id{g->ns, m->key};
        const auto* b = find(id);
        if (!b || b->group != g) continue;
        quotas_.insert(g->tenant, id, bytes_of(*g));
        for (int i = 0; i < b->uses; ++i) quotas_.touch(id);
      }
    }
}

void log_book::insert(const std::shared_ptr<const log_group>& group, std::span<const std::uint8_t> uses) {
  auto& f = files_.at(group->serial);
  f.groups.push_back(group);
  const auto each = bytes_of(*group);
  std::vector<block_key> replaced, stored;
  std::vector<stored_id> counted;
  for (std::uint32_t i = 0; i < group->blocks.size(); ++i) {
    const auto& key = group->blocks[i].key;
    auto [at, fresh] = blocks_.try_emplace({group->ns, key});
    if (!fresh) leave(at->first, at->second);
    if (!fresh && uses.empty()) replaced.push_back(key);
    if (fresh || uses.empty()) stored.push_back(key);
    // What is carried over keeps its place, unless it is laid out in another way.
    if (fresh || uses.empty() || bytes_of(*at->second.group) != each) counted.push_back(at->first);
    at->second = {group, i, uses.empty() ? std::uint8_t{0} : uses[i]};
    change_live(f, *group, each);
    f.put += each;
  }
  // From the last: a prefix loses its end first.
  for (auto id = counted.rbegin(); id != counted.rend(); ++id) quotas_.insert(group->tenant, *id, each);
  tell(store_change::kind::removed, group->ns, std::move(replaced));
  tell(store_change::kind::stored, group->ns, std::move(stored));
}

void log_book::tell(store_change::kind what, const namespace_id& ns, std::vector<block_key> keys) const {
  if (on_change_ && !keys.empty()) on_change_({what, ns, std::move(keys)});
}

void log_book::touch(const stored_id& id) {
  if (auto b = blocks_.find(id); b != blocks_.end() && b->second.uses < 3) ++b->second.uses;
  quotas_.touch(id);
}

bool log_book::erase(const stored_id& id) {
  const auto b = blocks_.find(id);
  if (b == blocks_.end()) return false;
  leave(id, b->second);
  blocks_.erase(b);
  quotas_.erase(id);
  tell(store_change::kind::removed, id.ns, {id.key});
  return true;
}

bool log_book::returns(const stored_id& id) {
  const auto ghost = ghost_of_.find(id);
  if (ghost == ghost_of_.end()) return false;
  ghosts_.erase(ghost->second);
  ghost_of_.erase(ghost);
  return true;
}

void log_book::remember(const stored_id& id) {
  if (ghost_of_.contains(id)) return;
  ghost_of_[id] = ghosts_.insert(ghosts_.end(), id);
  while (ghosts_.size() > std::max<std::size_t>(blocks_.size(), 16)) {
    ghost_of_.erase(ghosts_.front());
    ghosts_.pop_front();
  }
}

// What a file holds behind an entry that failed nobody knows.
std::uint64_t log_book::first_suspect_but(std::uint64_t serial) const {
  const auto f = std::ranges::find_if(files_, [&](const auto& x) { return x.second.suspect && x.first != serial; });
  return f == files_.end() ? ~std::uint64_t{0} : f->first;
}

bool log_book::needed(std::uint64_t serial, const undone& r, std::uint64_t suspect) const {
  if (suspect <= r.removal.horizon) return true;
  const auto counts = [&](std::uint64_t other) { return other != serial && other <= r.removal.horizon; };
  // A removal is entered before its block goes.
  if (const auto* b = find(r.removal.id); b && b->group->sequence < r.sequence && counts(b->group->serial)) return true;
  return remains_.need(r.removal.id, r.sequence, counts);
}

std::vector<log_book::undone> log_book::needed_removals(std::uint64_t serial) const {
  std::vector<undone> out;
  const auto suspect = first_suspect_but(serial);
  for (const auto& r : files_.at(serial).removals)
    if (needed(serial, r, suspect)) out.push_back(r);
  return out;
}

bool log_book::needless(std::uint64_t serial, const file& f) const {
  if (!free(f) || f.live != 0) return false;
  const auto suspect = first_suspect_but(serial);
  return std::ranges::none_of(f.removals, [&](const auto& r) { return needed(serial, r, suspect); });
}

std::optional<std::uint64_t> log_book::victim(std::uint64_t fresh_bytes) const {
  std::optional<std::uint64_t> of[2], dead, open;
  for (const auto& [serial, f] : files_) {
    if (!free(f)) continue;
    if (f.suspect || (f.sealed && needless(serial, f))) return serial;
    if (!f.sealed) {
      // The first row's is no better than the other's, but younger: it goes last.
      if (!open || !f.carried) open = serial;
      continue;
    }
    if (!dead && mostly_dead(f)) dead = serial;
    if (!of[f.carried]) of[f.carried] = serial;
  }
  if (dead) return dead;
  const bool first_row = fresh_ > fresh_bytes || !of[1];
  if (of[!first_row]) return of[!first_row];
  return of[first_row] ? of[first_row] : open;
}

log_book::pass log_book::plan(std::uint64_t serial, std::uint64_t room) {
  const auto& f = files_.at(serial);
  const bool all = mostly_dead(f) && !f.suspect;
  pass out{.carry = {}, .carried = f.carried || !all};
  std::vector<std::pair<std::uint8_t, chosen>> wanted;
  for (const auto& g : f.groups)
    for (std::uint32_t i = 0; i < g->blocks.size(); ++i) {
      const stored_id id{g->ns, g->blocks[i].key};
      const auto* b = find(id);
      if (b && b->group == g && (all || f.suspect || b->uses > 0)) wanted.push_back({b->uses, {id, g, i}});
    }
  std::vector<std::size_t> order(wanted.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) {
    return wanted[a].first != wanted[b].first ? wanted[a].first > wanted[b].first : a < b;
  });
  auto left = std::min(room, f.bytes / 2 + saved_);
  std::vector<std::size_t> taken;
  for (auto i : order) {
    const auto bytes = bytes_of(*wanted[i].second.group);
    if (bytes > left) continue;
    left -= bytes;
    taken.push_back(i);
  }
  std::ranges::sort(taken);
  for (auto i : taken) out.carry.push_back(wanted[i].second);
  const auto carried = std::min(room, f.bytes / 2 + saved_) - left;
  saved_ -= std::min(saved_, carried - std::min(carried, f.bytes / 2));
  return out;
}

std::uint8_t log_book::uses_after(const chosen& c) const {
  const auto& f = files_.at(c.group->serial);
  const auto* b = find(c.id);
  if (!b || b->uses == 0) return 0;
  return f.carried ? static_cast<std::uint8_t>(b->uses - 1) : std::uint8_t{0};
}

std::uint64_t log_book::evictable() const {
  std::uint64_t n = 0;
  for (const auto& [serial, f] : files_)
    if (!f.gone && f.holds == 0) n += f.bytes;
  return n;
}

std::vector<std::uint64_t> log_book::unwanted() const {
  std::vector<std::uint64_t> out;
  for (const auto& [serial, f] : files_)
    if (needless(serial, f)) out.push_back(serial);
  return out;
}

std::optional<std::uint64_t> log_book::emptied() const {
  for (const auto& [serial, f] : files_)
    if (f.sealed && free(f) && f.live == 0 && f.put != 0 && mostly_dead(f)) return serial;
  return std::nullopt;
}

bool log_book::suspected() const {
  return std::any_of(files_.begin(), files_.end(), [](const auto& f) { return f.second.suspect && free(f.second); });
}

}  // namespace cokv::detail
