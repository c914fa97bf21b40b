#include "cluster/placement.hpp"

#include <algorithm>
#include <tuple>

namespace cokv::cluster {
namespace {

// The smaller the better, the first that differs decides.
struct rank {
  int late = 0;  // 1: beyond what was asked for
  double first = 0, second = 0;
  std::uint64_t requests = 0, given = 0;
  friend auto operator<=>(const rank&, const rank&) = default;
};

double seconds(duration d) { return std::chrono::duration<double>(d).count(); }

rank rank_of_prompt(const worker_table::worker& w, std::uint32_t there, const step_cost& cost,
                    const placement_wish& wish, const placement_options& how) {
  const auto before = std::max(static_cast<double>(w.tokens), static_cast<double>(w.facts.prompt_tokens_left));
  const double mine = wish.prompt - there;
  rank out{.requests = w.requests, .given = w.given};
  if (how.by == policy::slo && cost.known()) {
    compute_work work = compute_work::of(mine, there);
    work += {before, before * wish.prompt / 2};
    const auto expected = cost.seconds(work);
    out.late = expected > seconds(how.ttft);
    out.first = out.late ? expected : mine;
    out.second = expected;
  } else {
    out.first = how.by == policy::least_loaded ? before : before + mine;
  }
  return out;
}

rank rank_of_answer(const worker_table::worker& w, std::uint32_t there, const step_cost& cost,
                    const placement_wish& wish, const placement_options& how) {
  const auto& f = w.facts;
  const auto blocks = static_cast<double>(std::max<std::uint64_t>(f.blocks, 1));
  const auto holds = blocks * std::max<std::uint32_t>(f.self.wire.block_tokens, 1);
  const auto used =
      std::max(static_cast<double>(w.tokens) / holds, static_cast<double>(f.blocks - f.blocks_free) / blocks);
  rank out{.first = used, .requests = w.requests, .given = w.given};
  if (how.by == policy::least_loaded) return out;
  out.first += (static_cast<double>(wish.length) - there) / holds;
  if (how.by == policy::slo && cost.known()) {
    const auto sequences = static_cast<double>(std::max(w.requests, f.running)) + 1;
    const auto expected = cost.seconds({sequences, used * holds + wish.prompt});
    out.late = expected > seconds(how.tpot);
    if (out.late) out.first = expected;
  }
  return out;
}

}  // namespace

std::string_view to_string(policy p) noexcept {
  switch (p) {
    case policy::least_loaded:
      return "least-loaded";
    case policy::prefix:
      return "prefix";
    case policy::slo:
      break;
  }
  return "slo";
}

std::optional<policy> parse_policy(std::string_view text) noexcept {
  for (auto p : {policy::least_loaded, policy::prefix, policy::slo})
    if (text == to_string(p)) return p;
  return {};
}

std::span<const block_key> placement_wish::keys_for(const worker_table::worker& w) const {
  if (!keys) return {};
  const auto found = keys->find(w.facts.self.wire.block_tokens);
  return found == keys->end() ? std::span<const block_key>() : found->second;
}

std::uint32_t tokens_there(const worker_table::worker& w, worker_table::id id, const prefix_index& index,
                           const placement_wish& wish) {
  if (wish.prompt == 0) return 0;
  const auto tokens = std::uint64_t{index.leading(id, wish.keys_for(w))} * w.facts.self.wire.block_tokens;
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(tokens, wish.prompt - 1));
}

std::optional<worker_table::id> place(const worker_table& table, const prefix_index& index, const placement_wish& wish,
                                      const placement_options& how, const std::set<worker_table::id>& without) {
  std::uint32_t most = 0;
  step_cost another;
  for (const auto& [id, w] : table.all()) {
    if (!w.usable(wish.what)) continue;
    most = std::max(most, w.facts.max_sequence);
    if (!another.known()) another = w.facts.step;
  }
  std::optional<worker_table::id> best;
  rank least;
  for (const auto& [id, w] : table.all()) {
    if (!w.usable(wish.what) || without.contains(id) || w.facts.max_sequence < std::min(wish.length, most)) continue;
    const auto there = how.by == policy::least_loaded ? 0 : tokens_there(w, id, index, wish);
    const auto& cost = w.facts.step.known() ? w.facts.step : another;
    const auto mine = wish.what == worker_role::prefill ? rank_of_prompt(w, there, cost, wish, how)
                                                        : rank_of_answer(w, there, cost, wish, how);
    if (best && !(mine < least)) continue;
    best = id;
    least = mine;
  }
  return best;
}

}  // namespace cokv::cluster
