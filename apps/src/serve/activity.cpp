#include "serve/activity.hpp"

namespace cokv::serve {
namespace {

std::uint64_t microseconds(duration d) {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(d).count());
}

}  // namespace

cluster::worker_activity activity_of(const engine& e, const std::vector<kv_tier>& tiers) {
  const auto c = e.counters();
  cluster::worker_activity out{.at_us = microseconds(clock::of(e.get_executor()).now().time_since_epoch()),
                               .computing_us = microseconds(c.stepping),
                               .steps = c.steps,
                               .prompt_tokens = c.prompt_tokens,
                               .cached_tokens = c.cached_tokens,
                               .generated_tokens = c.generated_tokens};
  const auto kv = e.kv_counters();
  for (std::size_t i = 0; i < kv.tiers.size(); ++i) {
    const auto stored = tiers.at(i).blocks->info();
    const auto& t = kv.tiers[i];
    const bool elsewhere = stored.kind == "http" || stored.kind == "cluster" || stored.kind == "redis";
    out.tiers.push_back({t.name, elsewhere ? 0 : stored.blocks, t.loaded_bytes, t.saved_bytes, t.bad});
  }
  return out;
}

}  // namespace cokv::serve
