#include "cokv/engine/sampler.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include "cokv/runtime/error.hpp"
#include "kernel/philox.hpp"

namespace cokv {
namespace {

template <class T>
std::string text(T value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

}  // namespace

std::optional<std::string> check(const sampling_params& p) {
  if (!(p.temperature >= 0 && p.temperature <= 100))
    return "temperature: " + text(p.temperature) + " is not in 0 to 100";
  if (!(p.top_p > 0 && p.top_p <= 1)) return "top_p: " + text(p.top_p) + " is not above 0 and at most 1";
  if (!(p.min_p >= 0 && p.min_p <= 1)) return "min_p: " + text(p.min_p) + " is not in 0 to 1";
  if (!(p.repetition_penalty >= 0.01f && p.repetition_penalty <= 100))
    return "repetition_penalty: " + text(p.repetition_penalty) + " is not in 0.01 to 100";
  for (auto [name, value] :
       {std::pair("presence_penalty", p.presence_penalty), {"frequency_penalty", p.frequency_penalty}})
    if (!(value >= -100 && value <= 100)) return std::string(name) + ": " + text(value) + " is not in -100 to 100";
  for (auto& b : p.logit_bias)
    if (b.token < 0 || !(b.bias < std::numeric_limits<float>::infinity()))
      return "logit_bias: " + text(b.bias) + " for token " + text(b.token);
  return std::nullopt;
}

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> c, std::array<std::uint32_t, 2> k) noexcept {
  const auto r = kernel::philox({{c[0], c[1], c[2], c[3]}}, k[0], k[1]);
  return {r.all[0], r.all[1], r.all[2], r.all[3]};
}

double uniform(std::uint64_t seed, std::uint64_t position) noexcept { return kernel::uniform_of(seed, position); }

error_code sampler::adjust(std::span<const float> logits, const sampling_params& p, const sampling_history& before) {
  const auto known = [&](token_id t) { return t >= 0 && static_cast<std::size_t>(t) < logits.size(); };
  for (auto& b : p.logit_bias)
    if (!known(b.token)) return errc::invalid_argument;
  adjusted_.assign(logits.begin(), logits.end());
  if (p.look_back()) {
    constexpr std::uint32_t seen = 1u << 31;
    times_.resize(std::max(times_.size(), logits.size()));
    for (auto t : before.prompt)
      if (known(t)) times_[static_cast<std::size_t>(t)] |= seen;
    for (auto t : before.answer)
      if (known(t)) times_[static_cast<std::size_t>(t)] = (times_[static_cast<std::size_t>(t)] | seen) + 1;
    // Each token once: what it was is forgotten behind it.
    for (auto& tokens : {before.prompt, before.answer})
      for (auto t : tokens) {
        if (!known(t)) continue;
        auto& times = times_[static_cast<std::size_t>(t)];
        auto& logit = adjusted_[static_cast<std::size_t>(t)];
        if (times == 0) continue;
        logit = logit > 0 ? logit / p.repetition_penalty : logit * p.repetition_penalty;
        if (const auto n = times & ~seen; n > 0)
          logit -= p.presence_penalty + static_cast<float>(n) * p.frequency_penalty;
        times = 0;
      }
  }
  for (auto& b : p.logit_bias) adjusted_[static_cast<std::size_t>(b.token)] += b.bias;
  return {};
}

result<token_id> sampler::sample(std::span<const float> logits, const sampling_params& params, std::uint64_t position,
                                 const sampling_history& before) {
  if (params.look_back() || !params.logit_bias.empty()) {
    if (auto ec = adjust(logits, params, before)) return ec;
    logits = adjusted_;
  }
  constexpr auto lowest = -std::numeric_limits<float>::infinity();
  token_id best = 0;
  float top = lowest;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!(logits[i] < std::numeric_limits<float>::infinity())) return make_error_code(errc::invalid_argument);
    if (logits[i] > top) {
      top = logits[i];
      best = static_cast<token_id>(i);
    }
  }
  if (top == lowest) return make_error_code(errc::invalid_argument);
  if (params.temperature == 0 || params.top_k == 1) return best;

  auto larger = [](const candidate& a, const candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  auto& c = candidates_;
  c.clear();
  for (std::size_t i = 0; i < logits.size(); ++i) c.push_back({logits[i], static_cast<token_id>(i), 0});
  std::size_t sorted = 0;
  if (params.top_k != 0 && params.top_k < c.size()) {
    sorted = params.top_k;
    std::partial_sort(c.begin(), c.begin() + params.top_k, c.end(), larger);
    c.resize(sorted);
  }
  double total = 0;
  for (auto& x : c) {
    x.weight = std::exp((double{x.logit} - top) / params.temperature);
    total += x.weight;
  }
  if (params.top_p < 1) {
    if (sorted == 0) {
      // All that weigh less than this weigh less than 1 - p together, so none of them is needed.
      double least = (1 - double{params.top_p}) * total / static_cast<double>(c.size());
      std::erase_if(c, [&](auto& x) { return x.weight < least; });
    }
    // Sorted only as far as the mass reaches: usually a few dozen of a hundred thousand.
    double mass = 0;
    std::size_t kept = 0;
    while (kept < c.size() && mass < params.top_p * total) {
      if (kept == sorted) {
        sorted = std::min(c.size(), std::max<std::size_t>(64, sorted * 8));
        auto from = c.begin() + static_cast<std::ptrdiff_t>(kept), to = c.begin() + static_cast<std::ptrdiff_t>(sorted);
        std::nth_element(from, to, c.end(), larger);
        std::sort(from, to, larger);
      }
      mass += c[kept++].weight;
    }
    c.resize(kept);
    total = mass;
  }
  if (params.min_p > 0) {
    std::erase_if(c, [&](auto& x) { return x.weight < params.min_p; });  // the likeliest weighs 1
    total = 0;
    for (auto& x : c) total += x.weight;
  }
  double target = uniform(params.seed, position) * total, sum = 0;
  const candidate* last = nullptr;
  for (auto& x : c) {
    if (x.weight == 0) continue;
    last = &x;
    sum += x.weight;
    if (target < sum) break;
  }
  return last ? last->id : best;
}

token_logprobs logprobs_of(std::span<const float> logits, token_id chosen, std::uint32_t top) {
  const float highest = *std::ranges::max_element(logits);
  double sum = 0;
  for (auto l : logits) sum += std::exp(double{l} - highest);
  const double rest = std::log(sum);
  const auto of = [&](token_id t) {
    return static_cast<float>(double{logits[static_cast<std::size_t>(t)]} - highest - rest);
  };
  token_logprobs out{.chosen = of(chosen)};
  // Few of many: a heap of the best so far, the worst of them in front.
  const auto better = [&](token_id a, token_id b) {
    const auto x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
  std::vector<token_id> best;
  for (token_id t = 0; top > 0 && static_cast<std::size_t>(t) < logits.size(); ++t) {
    if (best.size() == top) {
      if (!better(t, best.front())) continue;
      std::ranges::pop_heap(best, better);
      best.pop_back();
    }
    best.push_back(t);
    std::ranges::push_heap(best, better);
  }
  std::ranges::sort(best, better);
  for (auto t : best) out.top.push_back({t, of(t)});
  return out;
}

}  // namespace cokv
