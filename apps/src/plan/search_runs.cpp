#include "plan/search_runs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace cokv::plan {
namespace {

constexpr std::uint32_t without_load = 50;  // requests

std::uint64_t room(const simulate::role_deployment& r) {
  return std::uint64_t{r.each.engine.kv_blocks} * r.each.engine.block_tokens;
}

std::uint32_t longest(const workload::length_distribution& d, std::optional<std::uint32_t> cut) {
  return std::min(d.most, cut.value_or(d.most));
}

// The least value that a share of them are not above.
double value_at(std::vector<double> all, double share) {
  if (all.empty()) return 0;
  std::ranges::sort(all);
  const auto n = static_cast<std::size_t>(std::ceil(share * static_cast<double>(all.size())));
  return all[std::max<std::size_t>(n, 1) - 1];
}

}  // namespace

simulate::options options_of(const search_problem& p, const placement& w, double rate) {
  auto o = p.base;
  o.replicas = w.answer_replicas, o.pipeline = w.answers.pipeline, o.tensor = w.answers.tensor;
  o.pairs = w.pairs;
  if (w.apart()) {
    o.prefill_replicas = w.prompt_replicas;
    o.prefill_pipeline = w.prompts.pipeline, o.prefill_tensor = w.prompts.tensor;
  }
  o.load.rate = rate;
  o.load.seconds = std::max(p.seconds, static_cast<float>(std::ceil(p.requests / rate)));
  return o;
}

search_runs::search_runs(const search_problem& p)
    : p_(p), bounds_{.ttft_ms = *p.base.slo_ttft, .tpot_ms = *p.base.slo_tpot} {}

simulate::options search_runs::options(phase what, const placement& where, double rate) const {
  auto o = options_of(p_, where, rate);
  if (what == phase::prompts) o.load.max_output = 1;
  return o;
}

simulate::deployment search_runs::made(phase what, const placement& where) const {
  const auto o = options(what, where, 1);
  auto d = simulate::deployment_of(o);
  const auto all = workload::parse_lengths(o.load.lengths).value();
  const std::uint64_t prompt = longest(all.prompt, o.load.max_prompt), output = longest(all.output, o.load.max_output);
  const auto check = [](const simulate::role_deployment& r, std::uint64_t tokens) {
    if (room(r) < tokens)
      throw config_error(fmt::format("memory: room for {} tokens of KV beside the weights, and a sequence may have {}",
                                     room(r), tokens));
  };
  check(d.answers, prompt + output);
  if (d.prompts) check(*d.prompts, prompt + 1);
  return what == phase::answers ? decoding_alone(std::move(d)) : std::move(d);
}

// Whether the prompts' arithmetic alone takes longer than there is time. Prompts are computed in their order, so that those before the
// last of all that may meet the bound are computed when it does.
bool search_runs::too_much(const simulate::options& o, const simulate::deployment& d) const {
  if (o.model.empty()) return false;
  constexpr double many = 1e6;  // in one step: weights are read, and kernels launched, once for all of them
  const auto items = workload::items_of(o.load);
  const auto count = static_cast<std::size_t>(p_.base.attainment * static_cast<double>(items.size()));
  const auto stages = d.answers.pipeline;
  for (std::uint32_t s = 0; s < stages; ++s) {
    double seconds = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const simulate::step all{.load = step_load::of(items[i].prompt_tokens).times(many), .prompts = 1};
      seconds += d.answers.each.what->seconds(all, s) / many;
    }
    if (seconds / d.answers.replicas > *o.load.seconds + *bounds_.ttft_ms / 1e3) return true;
  }
  return false;
}

run_figures search_runs::at(phase what, const placement& where, const simulate::deployment& d, double rate) {
  const auto o = options(what, where, rate);
  run_figures out{.rate = rate};
  if (what == phase::prompts && too_much(o, d)) {
    out.binds = binding::ttft;
    return out;
  }
  const auto bounds = what == phase::prompts ? workload::slo{.ttft_ms = bounds_.ttft_ms} : bounds_;
  const auto got = simulate::simulated(o, d, rate, simulate::wanted_share{bounds, p_.base.attainment});
  ++runs_, events_ += got.handlers;
  out.told = workload::summarise(got.asked.records, bounds);
  out.share = out.told.attainment.value_or(0);
  out.binds = binding_of(got.asked, bounds);
  return out;
}

std::optional<nearest_miss> search_runs::miss_without_load(phase what, const placement& where,
                                                           const simulate::deployment& d) {
  auto o = options(what, where, 1);
  o.closed_loop = 1, o.load.requests = without_load, o.load.seconds.reset();
  const auto got = simulate::simulated(o, d, 1);
  ++runs_, events_ += got.handlers;
  const auto miss = [&](binding b, auto value, double bound) -> std::optional<nearest_miss> {
    std::vector<double> all;
    for (auto& r : got.asked.records)
      if (const std::optional<double> v = value(r)) all.push_back(*v);
    const double ms = value_at(std::move(all), p_.base.attainment);
    return ms > bound ? std::optional(nearest_miss{where.answers, b, ms}) : std::nullopt;
  };
  if (auto m = miss(binding::ttft, [](auto& r) { return std::optional(r.ttft_ms); }, *bounds_.ttft_ms)) return m;
  if (what == phase::prompts) return std::nullopt;
  return miss(binding::tpot, [](auto& r) { return r.tpot_ms(); }, *bounds_.tpot_ms);
}

}  // namespace cokv::plan
