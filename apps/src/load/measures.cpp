#include "load/measures.hpp"

#include <algorithm>
#include <cmath>
#include <map>

namespace cokv::workload {

std::optional<double> request_record::tpot_ms() const {
  if (!answered() || output_tokens < 2 || gaps_ms.empty()) return std::nullopt;
  return (total_ms - ttft_ms) / (output_tokens - 1);
}

bool slo::met_by(const request_record& r) const {
  if (!r.answered() || (ttft_ms && r.ttft_ms > *ttft_ms)) return false;
  const auto t = r.tpot_ms();
  return !tpot_ms || !t || *t <= *tpot_ms;
}

figures figures_of(std::vector<double> values) {
  figures f{.count = values.size()};
  if (values.empty()) return f;
  std::ranges::sort(values);
  for (double v : values) f.mean += v / static_cast<double>(values.size());
  const auto rank = [&](double share) {
    const auto n = static_cast<std::size_t>(std::ceil(share * static_cast<double>(values.size())));
    return values[std::max<std::size_t>(n, 1) - 1];
  };
  f.p50 = rank(0.5), f.p90 = rank(0.9), f.p99 = rank(0.99), f.most = values.back();
  return f;
}

summary summarise(const std::vector<request_record>& all, const slo& bounds) {
  summary s{.asked = all.size()};
  std::vector<double> late, ttft, tpot, itl, total;
  std::map<std::string, std::size_t> errors;
  double last_asked = 0;
  std::size_t met = 0;
  for (const auto& r : all) {
    if (r.stopped) {
      ++s.stopped;
      continue;
    }
    const double at = static_cast<double>(r.asked.at.count()) / 1e6;
    last_asked = std::max(last_asked, at);
    met += bounds.met_by(r);
    if (!r.sent) {
      ++s.not_sent;
      continue;
    }
    ++s.sent;
    late.push_back(r.late_ms);
    s.seconds = std::max(s.seconds, at + (r.late_ms + r.total_ms) / 1e3);
    if (!r.answered()) {
      ++s.failed;
      ++errors[r.error.empty() ? "no token" : r.error];
      continue;
    }
    ++s.answered;
    s.prompt_tokens += r.prompt_tokens;
    s.output_tokens += r.output_tokens;
    ttft.push_back(r.ttft_ms);
    total.push_back(r.total_ms);
    itl.insert(itl.end(), r.gaps_ms.begin(), r.gaps_ms.end());
    if (const auto t = r.tpot_ms()) tpot.push_back(*t);
  }
  const auto due = static_cast<double>(s.asked - s.stopped);
  if (last_asked > 0) s.asked_per_s = due / last_asked;
  if (s.seconds > 0) {
    s.answered_per_s = static_cast<double>(s.answered) / s.seconds;
    s.output_tokens_per_s = static_cast<double>(s.output_tokens) / s.seconds;
  }
  s.late = figures_of(std::move(late)), s.ttft = figures_of(std::move(ttft)), s.tpot = figures_of(std::move(tpot));
  s.itl = figures_of(std::move(itl)), s.total = figures_of(std::move(total));
  s.errors.assign(errors.begin(), errors.end());
  std::ranges::sort(s.errors,
                    [](auto& a, auto& b) { return std::pair(b.second, a.first) < std::pair(a.second, b.first); });
  if (bounds.asked() && due > 0) s.attainment = static_cast<double>(met) / due;
  return s;
}

}  // namespace cokv::workload
