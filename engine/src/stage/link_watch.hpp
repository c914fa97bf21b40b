// The links of a worker's scope: the first that ends is the scope's error.
#pragma once

#include "cokv/engine/stage_recovery.hpp"
#include "cokv/engine/stage_worker.hpp"
#include "cokv/kvstream/peer_link.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"

namespace cokv::detail {

inline awaitable<error_code> until_closed(peer_link link) {
  (void)co_await link.async_closed(as_result);
  co_return link.error() ? link.error() : make_error_code(errc::closed);
}

template <class F>
void each_link(const stage_links& links, F f) {
  for (auto& l : links.ranks)
    if (l) f(l);
  for (auto& l : links.workers)
    if (l) f(l);
  for (auto* l : {&links.before, &links.behind, &links.leader, &links.keeper, &links.kept})
    if (*l) f(*l);
}

// Those that this part of a model needs, and no others.
inline bool fit(const stage_links& l, const model_part& p, bool copies) {
  const bool leads = p.who == worker{};
  const auto there = [](const std::vector<peer_link>& of, std::size_t own) {
    for (std::size_t i = 0; i < of.size(); ++i)
      if (static_cast<bool>(of[i]) == (i == own)) return false;
    return true;
  };
  return l.ranks.size() == (p.alone() ? 0 : p.split.degree()) && there(l.ranks, p.who.rank) &&
         l.workers.size() == (leads ? p.split.workers() : 0) && there(l.workers, 0) &&
         static_cast<bool>(l.leader) == !leads && static_cast<bool>(l.before) == !p.first() &&
         static_cast<bool>(l.behind) == !p.last() && static_cast<bool>(l.keeper) == (copies && !leads) &&
         static_cast<bool>(l.kept) == (copies && kept_by(p.split, p.split.number(p.who)) != 0) &&
         (!l.sums || l.sums->size() == p.split.degree());
}

}  // namespace cokv::detail
