#include "cokv/kvstream/load_policy.hpp"

#include <algorithm>
#include <cmath>

namespace cokv {
namespace {

constexpr double load_fades = 0.8;
constexpr double far_off = 4;            // a load so many times slower than expected is an exception,
constexpr int exceptions = 3;            // until so many came in a row
constexpr double prompt_tokens = 16;     // a step of fewer tells little of prompts
constexpr double for_others = 0.1;       // what others pay while the engine computes this one's
constexpr double explore_share = 0.25;   // of what computing a whole prompt takes, for one try,
constexpr double explore_budget = 0.02;  // and in the long run

constexpr duration least_patience = std::chrono::milliseconds(10);

double seconds(duration d) { return std::chrono::duration<double>(d).count(); }
duration of_seconds(double s) {
  return std::chrono::duration_cast<duration>(std::chrono::duration<double>(std::min(s, 1e9)));
}

}  // namespace

load_policy::load_policy(std::size_t tiers, load_policy_options options) : options_(options), tiers_(tiers) {}

void load_policy::computed(compute_work work, duration took) {
  if (work.tokens >= prompt_tokens) steps_.add(work, took);
}

void load_policy::looked_up(std::size_t tier, duration took) {
  auto& t = tiers_.at(tier);
  const double s = seconds(took);
  t.lookup = t.lookup == 0 ? s : std::min(0.8 * t.lookup + 0.2 * s, 2 * t.lookup);
}

// Loads share a tier: with n of them, a second brings each as much as 1 / n of one alone.
void load_policy::tier_line::pass(time_point now) {
  if (loads > 0) alone += seconds(now - at) / loads;
  at = now;
}

void load_policy::tier_line::add(double x, double t) {
  const double expected = latency + per_byte * x;
  if (seen > 0 && t > far_off * expected && ++slower < exceptions) {
    t = far_off * expected;
  } else {
    const bool changed = seen > 0 && (slower >= exceptions || t * 2 < expected);
    slower = 0;
    if (changed) sum = {};  // it is another tier now
  }
  const double w = 1 / (t * t);
  const std::array<double, 5> one{w, w * x, w * x * x, w * t, w * x * t};
  for (int i = 0; i < 5; ++i) sum[i] = sum[i] * load_fades + one[i];
  ++seen;
  // What a lookup takes stands for a load of nothing: loads of one size alone don't tell latency from rate.
  auto s = sum;
  const double l = lookup > 0 ? lookup : t / 10;
  const double prior = 0.1 / (t * t);
  s[0] += prior;
  s[3] += prior * l;
  const double det = s[0] * s[2] - s[1] * s[1];
  per_byte = (s[0] * s[4] - s[1] * s[3]) / det;
  latency = (s[3] - per_byte * s[1]) / s[0];
  if (latency < 0) latency = 0, per_byte = s[4] / s[2];
  if (per_byte < 0) per_byte = 0, latency = s[3] / s[0];
}

load_policy::ticket load_policy::begin(std::size_t tier, time_point now) {
  auto& t = tiers_.at(tier);
  t.pass(now);
  ++t.loads;
  return {tier, now, t.alone};
}

void load_policy::end(const ticket& load, std::uint64_t bytes, time_point now) {
  auto& t = tiers_.at(load.tier);
  t.pass(now);
  --t.loads;
  const double took = seconds(now - load.begun), alone = t.alone - load.alone;
  if (bytes == 0 || took <= 0 || alone <= 0) return;
  t.add(static_cast<double>(bytes) * took / alone, took);
}

void load_policy::abandon(const ticket& load) { --tiers_.at(load.tier).loads; }

bool load_policy::ready(std::size_t tier) const noexcept { return steps_.steps() > 0 && tiers_.at(tier).seen > 0; }

double load_policy::seconds_to_load(const tier_line& t, double bytes, double others) const noexcept {
  return t.latency + t.per_byte * bytes * (1 + others);
}

double load_policy::seconds_to_compute(double tokens, double context) const noexcept {
  const auto work = compute_work::of(tokens, context);
  return steps_.cost().seconds(work, std::ceil(tokens / options_.step_tokens));
}

duration load_policy::load_time(std::size_t tier, std::uint64_t bytes, double others) const noexcept {
  return of_seconds(seconds_to_load(tiers_.at(tier), static_cast<double>(bytes), others));
}

duration load_policy::compute_time(std::uint32_t tokens, std::uint32_t context) const noexcept {
  return of_seconds(seconds_to_compute(tokens, context));
}

// Tiers load beside each other; as many blocks as pay, counted over all runs.
load_policy::estimate load_policy::best_cut(const question& q, std::span<const run> found, bool idle) const {
  const double before = steps_.cost().b * q.ahead;
  auto total = [&](double loading, double have) {
    const double computing = before + seconds_to_compute(q.tokens - have, have);
    return std::max(loading, computing) + std::min(loading, computing) / options_.layers + for_others * computing;
  };
  estimate e{total(0, q.on_device), 0, 0};
  double finished = 0;  // of the runs before
  std::uint32_t blocks = 0;
  for (const auto& r : found) {
    const auto& t = tiers_[r.tier];
    const double others = idle ? 0 : t.loads;
    double loading = finished;
    for (std::uint32_t i = 1; i <= r.blocks; ++i) {
      loading = std::max(finished, seconds_to_load(t, static_cast<double>(q.block_bytes) * i, others));
      const double s = total(loading, q.on_device + static_cast<double>(blocks + i) * q.block_tokens);
      if (s <= e.best) {
        e.best = s;
        e.blocks = blocks + i;
        e.loading = loading;
      }
    }
    finished = loading;
    blocks += r.blocks;
  }
  return e;
}

std::uint32_t load_policy::little(const question& q, const tier_line& t, std::uint32_t most) const {
  const double allowed = explore_share * seconds_to_compute(q.tokens - q.on_device, q.on_device) - t.latency;
  const double each = t.per_byte * static_cast<double>(q.block_bytes);
  const double n = each > 0 ? allowed / each : most;
  return static_cast<std::uint32_t>(std::clamp<double>(n, 1, most));
}

bool load_policy::worth_asking(const question& q, std::span<const run> before, std::size_t tier) {
  if (!ready(tier)) return true;
  for (const auto& r : before)
    if (!ready(r.tier)) return true;
  std::uint32_t blocks = 0;
  for (const auto& r : before) blocks += r.blocks;
  const auto most = (q.tokens - 1 - q.on_device) / q.block_tokens;
  if (most <= blocks) return false;
  std::vector<run> all(before.begin(), before.end());
  all.push_back({tier, most - blocks});
  auto& t = tiers_[tier];
  const auto with = best_cut(q, all, false), without = best_cut(q, before, false);
  if (with.blocks > blocks && with.best + t.lookup < without.best) return true;
  return explores(q, t);
}

// Whether a choice against a tier is one time in so many, and a try has been saved up for. True until it was tried.
bool load_policy::explores(const question& q, tier_line& t) const {
  ++t.against;
  t.saved += explore_budget * seconds_to_compute(q.tokens - q.on_device, q.on_device);
  return t.against >= options_.explore_every &&
         t.saved >= seconds_to_load(t, static_cast<double>(q.block_bytes) * little(q, t, q.tokens), t.loads);
}

load_policy::choice load_policy::choose(const question& q, std::span<const run> found) {
  choice c;
  std::uint32_t all = 0;
  bool known = true;
  for (const auto& r : found) {
    all += r.blocks;
    known = known && ready(r.tier);
  }
  auto wanted = all;
  if (known) {
    const auto e = best_cut(q, found, false);
    wanted = e.blocks;
    c.loading = of_seconds(e.loading);
    if (wanted < all) c.why = best_cut(q, found, true).blocks > wanted ? reason::busy : reason::slow;
  }
  std::uint32_t taken = 0;
  bool explored = false;
  for (const auto& r : found) {
    auto n = std::min(r.blocks, wanted - taken);
    auto& t = tiers_[r.tier];
    if (n == r.blocks) {
      t.against = 0;
    } else if (n == 0 && !explored && explores(q, t)) {
      // Only the first tier that is not loaded from: what comes behind would have a gap before it.
      t.against = 0;
      t.saved = 0;
      n = little(q, t, r.blocks);
      wanted += n;
      c.loading = std::max(c.loading, of_seconds(seconds_to_load(t, static_cast<double>(q.block_bytes) * n, t.loads)));
    }
    explored = explored || n < r.blocks;
    taken += n;
    c.take.push_back(n);
  }
  if (known && taken > 0) {
    c.instead = of_seconds(seconds_to_compute(static_cast<double>(taken) * q.block_tokens, q.on_device));
    c.patience = std::max({c.instead, 2 * c.loading, least_patience});
  }
  return c;
}

}  // namespace cokv
