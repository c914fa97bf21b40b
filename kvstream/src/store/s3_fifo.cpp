#include "store/s3_fifo.hpp"

#include <algorithm>

namespace cokv::detail {

void s3_fifo::insert(const stored_id& id, std::uint64_t bytes, std::uint64_t serial) {
  bool returned = false;
  if (auto ghost = ghost_of_.find(id); ghost != ghost_of_.end()) {
    ghosts_.erase(ghost->second);
    ghost_of_.erase(ghost);
    returned = true;
  }
  auto& to = returned ? main_ : small_;
  entry e{id, bytes, serial != 0 ? serial : ++serial_};
  e.in_main = returned;
  entries_[id] = to.list.insert(to.list.end(), std::move(e));
  to.bytes += bytes;
}

void s3_fifo::touch(const stored_id& id) {
  if (auto e = entries_.find(id); e != entries_.end()) e->second->uses = std::min(e->second->uses + 1, 3);
}

void s3_fifo::erase(const stored_id& id) {
  auto e = entries_.find(id);
  if (e == entries_.end()) return;
  auto& from = e->second->in_main ? main_ : small_;
  from.bytes -= e->second->bytes;
  if (e->second->pins > 0) count_unpinned(*e->second);
  from.list.erase(e->second);
  entries_.erase(e);
}

std::uint64_t s3_fifo::pin(const stored_id& id) {
  auto e = entries_.find(id);
  if (e == entries_.end()) return 0;
  if (e->second->pins++ == 0) count_pinned(*e->second);
  return e->second->serial;
}

void s3_fifo::unpin(const stored_id& id, std::uint64_t pin) {
  auto e = entries_.find(id);
  if (e == entries_.end() || e->second->serial != pin || e->second->pins == 0) return;
  if (--e->second->pins == 0) count_unpinned(*e->second);
}

void s3_fifo::move_to(queue& from, queue& to, std::list<entry>::iterator e) {
  from.bytes -= e->bytes;
  to.bytes += e->bytes;
  e->in_main = &to == &main_;
  to.list.splice(to.list.end(), from.list, e);
}

void s3_fifo::give(queue& from, std::list<entry>::iterator e, s3_fifo& to) {
  auto& into = e->in_main ? to.main_ : to.small_;
  from.bytes -= e->bytes;
  into.bytes += e->bytes;
  if (e->pins > 0) {
    count_unpinned(*e);
    to.count_pinned(*e);
  }
  entries_.erase(e->id);
  to.entries_[e->id] = e;
  into.list.splice(into.list.end(), from.list, e);
}

std::optional<stored_id> s3_fifo::take(queue& from, std::list<entry>::iterator e) {
  auto id = e->id;
  from.bytes -= e->bytes;
  from.list.erase(e);
  entries_.erase(id);
  return id;
}

std::optional<stored_id> s3_fifo::evict() {
  bool small_first = main_.list.empty() || small_.bytes > bytes() / 10;
  if (small_first)
    if (auto id = evict_small()) return id;
  if (auto id = evict_main()) return id;
  return evict_small();
}

std::optional<stored_id> s3_fifo::evict_small() {
  for (auto n = small_.list.size(); n-- > 0;) {
    auto e = small_.list.begin();
    if (e->pins > 0) {
      move_to(small_, small_, e);
    } else if (e->uses > 0) {
      e->uses = 0;
      move_to(small_, main_, e);
    } else {
      remember(e->id);
      return take(small_, e);
    }
  }
  return std::nullopt;
}

std::optional<stored_id> s3_fifo::evict_main() {
  for (auto n = main_.list.size() * 4; n-- > 0;) {  // three uses at most, and then it goes
    auto e = main_.list.begin();
    if (e->pins == 0 && e->uses == 0) return take(main_, e);
    if (e->pins == 0) --e->uses;
    move_to(main_, main_, e);
  }
  return std::nullopt;
}

void s3_fifo::remember(const stored_id& id) {
  ghost_of_[id] = ghosts_.insert(ghosts_.end(), id);
  while (ghosts_.size() > std::max<std::size_t>(entries_.size(), 16)) {
    ghost_of_.erase(ghosts_.front());
    ghosts_.pop_front();
  }
}

}  // namespace cokv::detail
