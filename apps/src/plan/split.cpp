#include "plan/split.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cokv/runtime/error.hpp"

namespace cokv::plan {
namespace {

void check(const split_problem& p) {
  const auto positive = [](double v, const char* name) {
    if (!std::isfinite(v) || v <= 0) throw config_error(std::string("split: ") + name + " is not a positive number");
  };
  positive(p.machines, "machines");
  positive(p.machine_bytes, "machine_bytes");
  positive(p.layers, "layers");
  positive(p.layer_bytes, "layer_bytes");
  positive(p.kv_bytes, "kv_bytes");
  positive(p.prompt, "prompt");
  positive(p.output, "output");
  positive(p.microbatch, "microbatch");
  positive(p.prompt_seconds, "prompt_seconds");
  positive(p.token_seconds, "token_seconds");
  if (!(p.overhead >= 1) || !std::isfinite(p.overhead)) throw config_error("split: overhead is not 1 or more");
  if (!(p.first_bytes >= 0 && p.last_bytes >= 0 && p.both_bytes >= 0))
    throw config_error("split: bytes of the ends are below 0");
}

double stage_layers(const split_problem& p, std::uint32_t depth) { return (p.layers + depth - 1) / depth; }

// The smallest depth that `fits`; 0: none.
template <class Fits>
std::uint32_t least(const split_problem& p, Fits fits) {
  for (std::uint32_t d = 1; d <= p.layers; ++d)
    if (fits(d)) return d;
  return 0;
}

struct depths {
  std::uint32_t prompt = 0, token = 0;
  double rate = 0;
};

depths with_token_depth(const split_problem& p, std::uint32_t token) {
  const auto prompt = std::min(p.machines - token, p.layers);
  return {prompt, token, std::min(p.prompt_rate(prompt), p.token_rate(token))};
}

bool fits(const split_problem& p, const depths& d) { return p.prompt_fits(d.prompt) && p.token_fits(d.token); }

// Of all splits that fit, the first by `better`.
template <class Better>
std::optional<depths> best(const split_problem& p, Better better) {
  std::optional<depths> found;
  for (std::uint32_t t = 1; t < p.machines && t <= p.layers; ++t)
    if (const auto d = with_token_depth(p, t); fits(p, d) && (!found || better(d, *found))) found = d;
  return found;
}

bool feasible(const split_problem& p) {
  return best(p, [](auto&, auto&) { return false; }).has_value();
}

std::string gigabytes(double bytes) { return fmt::format("{:.4g} GB", bytes / 1e9); }

std::string why_not(const split_problem& p) {
  const auto prompt = least(p, [&](auto d) { return p.prompt_fits(d); });
  const auto token = least(p, [&](auto d) { return p.token_fits(d); });
  std::string why;
  if (p.machines < 2)
    why = "two pipelines need two machines";
  else if (prompt == 0 || token == 0)
    why = fmt::format("memory binds: of {} a machine a {} stage of one layer takes {}", gigabytes(p.machine_bytes),
                      prompt == 0 ? "prompt" : "token",
                      gigabytes(prompt == 0 ? p.prompt_bytes(p.layers) : p.token_bytes(p.layers)));
  else
    why = fmt::format("memory binds: of {} a machine prompts take {} machines at least and answers {}, of {}",
                      gigabytes(p.machine_bytes), prompt, token, p.machines);
  auto more = p;
  while (more.machines < 2 * p.layers && !feasible(more)) ++more.machines;
  if (more.machines > p.machines && feasible(more)) why += fmt::format("; {} machines suffice", more.machines);
  auto smaller = p;
  std::uint32_t low = 0, high = p.microbatch;  // the greatest that fits is below `high`
  while (high - low > 1) {
    smaller.microbatch = low + (high - low) / 2;
    (feasible(smaller) ? low : high) = smaller.microbatch;
  }
  if (low > 0) why += fmt::format("; on these, {} sequences a microbatch do, not {}", low, p.microbatch);
  return why;
}

}  // namespace

double split_problem::end_bytes(std::uint32_t d) const noexcept {
  return d == 1 ? both_bytes : std::max(first_bytes, last_bytes);
}

double split_problem::prompt_bytes(std::uint32_t d) const noexcept {
  return stage_layers(*this, d) * (layer_bytes + kv_bytes * microbatch * prompt) + end_bytes(d);
}

double split_problem::token_bytes(std::uint32_t d) const noexcept {
  const double k = kv_bytes * microbatch * (1. * prompt + output);
  return stage_layers(*this, d) * (layer_bytes + d * k) + end_bytes(d);
}

bool split_problem::prompt_fits(std::uint32_t depth) const noexcept { return prompt_bytes(depth) <= machine_bytes; }
bool split_problem::token_fits(std::uint32_t depth) const noexcept { return token_bytes(depth) <= machine_bytes; }

split_answer split(const split_problem& p) {
  check(p);
  const double answer = p.output * p.token_seconds;
  const double share = p.machines * answer / (p.overhead * p.prompt_seconds + answer);
  split_plan plan;
  plan.balanced_token =
      std::clamp(static_cast<std::uint32_t>(std::ceil(share - 1e-9)), 1u, std::max(p.machines, 2u) - 1);
  const auto far = [&](const depths& d) {
    return d.token > plan.balanced_token ? d.token - plan.balanced_token : plan.balanced_token - d.token;
  };
  const auto chosen = best(p, [&](auto& a, auto& b) { return far(a) != far(b) ? far(a) < far(b) : a.rate > b.rate; });
  if (!chosen) return {std::nullopt, why_not(p)};
  plan.prompt_depth = chosen->prompt, plan.token_depth = chosen->token, plan.rate = chosen->rate;
  plan.least_prompt = least(p, [&](auto d) { return p.prompt_fits(d); });
  plan.least_token = least(p, [&](auto d) { return p.token_fits(d); });
  plan.prompts_bind = p.prompt_rate(plan.prompt_depth) < p.token_rate(plan.token_depth);
  plan.memory_binds = plan.token_depth != std::min(plan.balanced_token, p.layers);
  const auto fastest = best(p, [](auto& a, auto& b) { return a.rate > b.rate; });
  if (fastest->rate > plan.rate * (1 + 1e-9)) plan.faster_token = fastest->token;
  return {plan, {}};
}

}  // namespace cokv::plan
