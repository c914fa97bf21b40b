#include "simulate/handed_on.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "simulate/outcome.hpp"
#include "simulate/price.hpp"
#include "simulate/quiet.hpp"

namespace cokv::simulate {
namespace {

constexpr double near_enough = 0.002;
constexpr int most_tries = 12;

options pipeline_of(std::uint32_t workers, std::uint32_t answer_tokens) {
  options o;
  o.pipeline = o.workers_a_machine = workers;
  o.load.lengths = "fixed:1:" + std::to_string(answer_tokens);
  o.kv_blocks = workers * (answer_tokens / o.block_tokens + 2);
  return o;
}

// Seconds between two tokens of so many sequences.
double gap(options o, const fit::profile& p, const hops& handed, std::size_t sequences) {
  constexpr double at_once = 1e6;  // a second
  o.load.requests = static_cast<std::uint32_t>(sequences);
  const auto got = simulated(o, deployment_of(o, p, handed), at_once);
  return got.asked.records.front().tpot_ms().value_or(0) / 1e3;
}

// Where f, which ascends, is `wanted`; 0 where it is more from there on.
template <class F>
double where(F f, double wanted, double guess) {
  double low = 0, below = f(low);
  if (below >= wanted) return 0;
  double high = guess, above = f(high);
  for (int i = 0; above < wanted && i < most_tries; ++i) low = high, below = above, high *= 2, above = f(high);
  for (int i = 0; std::abs(above - wanted) > near_enough * wanted && above > below && i < most_tries; ++i) {
    const double x = low + (high - low) * std::clamp((wanted - below) / (above - below), 0.05, 0.95), y = f(x);
    if (std::abs(y - wanted) <= near_enough * wanted) return x;
    y < wanted ? (low = x, below = y) : (high = x, above = y);
  }
  return high;
}

// A prompt's step is handed on once a stage, and each of them has been idle before it, so that it needs no runs.
double of_prompts(const fit::profile& p, std::uint32_t workers) {
  const auto load = plan::step_load::of(p.prompt_tokens);
  const step prompt{.load = load, .prompts = 1, .sampled = 1, .prompt_pairs = load.pairs};
  const double idle = std::chrono::duration<double>(fit::first_pause).count();
  const double wanted = p.pipeline_prompts[workers - 2];
  const topology split(workers);
  const double link = p.link_seconds + 4. * p.hidden * p.prompt_tokens / p.link_bytes_per_second;
  const auto until_first = [&](double hop) {
    const profile_price price(p, split, {.by_workers = {hop}});
    double all = (workers - 1) * link;
    for (std::uint32_t s = 0; s < workers; ++s) all += price.seconds(prompt, s) + price.late(prompt, s, idle, 1);
    return all;
  };
  return where(until_first, wanted, wanted / workers);
}

}  // namespace

hops handed_on(const options& o, const fit::profile& p) {
  const auto workers =
      std::min<std::size_t>({o.workers_a_machine, p.pipeline_tokens.size() + 1, p.layers, most_stages});
  if (workers < 2) return {};
  const only_errors quiet;
  const auto like = pipeline_of(static_cast<std::uint32_t>(workers), p.answer_tokens);
  hops out;
  out.by_workers.clear();
  for (const double wanted : p.pipeline_tokens[workers - 2]) {
    auto& all = out.by_workers;
    all.push_back(0);
    const auto trial = [&](double seconds) {
      all.back() = seconds;
      return gap(like, p, out, all.size());
    };
    all.back() = where(trial, wanted, wanted / static_cast<double>(workers));
  }
  if (p.prompt_tokens > 0) out.prompts = of_prompts(p, static_cast<std::uint32_t>(workers));
  return out;
}

}  // namespace cokv::simulate
