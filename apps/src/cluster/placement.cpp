#include "cluster/placement.hpp"

#include <algorithm>
#include <tuple>

namespace cokv::cluster {
namespace {

double load_of(const worker_table::worker& w, worker_role what) {
  const auto& f = w.facts;
  const auto given = static_cast<double>(w.tokens);
  if (what == worker_role::prefill) return std::max(given, static_cast<double>(f.prompt_tokens_left));
  const auto all = static_cast<double>(std::max<std::uint64_t>(f.blocks, 1));
  const auto tokens = all * std::max<std::uint32_t>(f.self.wire.block_tokens, 1);
  return std::max(given / tokens, static_cast<double>(f.blocks - f.blocks_free) / all);
}

}  // namespace

std::optional<worker_table::id> place(const worker_table& table, worker_role what, std::uint32_t length,
                                      const std::set<worker_table::id>& without) {
  std::uint32_t most = 0;
  for (const auto& [id, w] : table.all())
    if (w.usable(what)) most = std::max(most, w.facts.max_sequence);
  std::optional<worker_table::id> best;
  std::tuple<double, std::uint64_t, std::uint64_t> least;
  for (const auto& [id, w] : table.all()) {
    if (!w.usable(what) || without.contains(id) || w.facts.max_sequence < std::min(length, most)) continue;
    const std::tuple mine(load_of(w, what), w.requests, w.given);
    if (best && !(mine < least)) continue;
    best = id;
    least = mine;
  }
  return best;
}

}  // namespace cokv::cluster
