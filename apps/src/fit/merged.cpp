#include "fit/merged.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace cokv::fit {
namespace {

template <class F>
std::vector<double> each_of(std::span<const profile> all, F of) {
  std::vector<double> out;
  for (const auto& p : all) out.push_back(of(p));
  return out;
}

template <class F>
double middle(std::span<const profile> all, F of) {
  return middle_of(each_of(all, of));
}

curve middle_curve(std::span<const profile> all, curve profile::* which) {
  auto points = (all.front().*which).points();
  double most = 0;
  for (std::size_t i = 0; i < points.size(); ++i)
    points[i].second = most = std::max(most, middle(all, [&](auto& p) { return (p.*which).points()[i].second; }));
  return curve(std::move(points));
}

std::vector<double> middle_times(std::span<const profile> all, std::vector<double> profile::* which) {
  std::vector<double> out{1};
  for (std::size_t i = 1; i < (all.front().*which).size(); ++i)
    out.push_back(std::max(out.back(), middle(all, [&](auto& p) { return (p.*which)[i]; })));
  return out;
}

// Seconds of a step for a token, without the engine.
double token_by_itself(const profile& p) { return (p.layers - 1) * p.answers.at(1) + p.answers_end.at(1); }

}  // namespace

double middle_of(std::vector<double> all) {
  if (all.empty()) return 0;
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
  std::ranges::nth_element(all, middle);
  return *middle;
}

profile merged(std::span<const profile> all) {
  profile out = all.front();
  for (auto which : {&profile::prompts, &profile::answers, &profile::prompts_end, &profile::answers_end,
                     &profile::prompts_idle, &profile::answers_idle})
    out.*which = middle_curve(all, which);
  for (auto which : {&profile::prompt_pair, &profile::answer_pair, &profile::step, &profile::token,
                     &profile::copy_bytes_per_second, &profile::link_bytes_per_second, &profile::link_seconds})
    out.*which = std::max(0.0, middle(all, [&](auto& p) { return p.*which; }));
  for (auto which : {&profile::prompts_beside, &profile::answers_beside}) out.*which = middle_times(all, which);
  for (std::size_t n = 0; n < out.pipeline_tokens.size(); ++n)
    for (std::size_t i = 0; i < out.pipeline_tokens[n].size(); ++i)
      out.pipeline_tokens[n][i] = middle(all, [&](auto& p) { return p.pipeline_tokens[n][i]; });
  for (std::size_t n = 0; n < out.pipeline_prompts.size(); ++n)
    out.pipeline_prompts[n] = middle(all, [&](auto& p) { return p.pipeline_prompts[n]; });
  return out;
}

std::vector<std::string> spread_of(std::span<const profile> all) {
  std::vector<std::string> out;
  const auto told = [&](std::string_view what, auto of) {
    const auto each = each_of(all, of);
    const auto [least, most] = std::ranges::minmax(each);
    out.push_back(fmt::format("{}: {:.2f} ms; {:.2f} to {:.2f}", what, 1e3 * middle_of(each), 1e3 * least, 1e3 * most));
  };
  told("a token by itself", token_by_itself);
  const auto& first = all.front();
  for (std::size_t n = 0; n < first.pipeline_tokens.size(); ++n) {
    const auto pipeline = fmt::format("a pipeline of {}, ", n + 2);
    if (n < first.pipeline_prompts.size())
      told(pipeline + "a prompt's first token", [&](auto& p) { return p.pipeline_prompts[n]; });
    for (std::size_t i = 0; i < first.pipeline_tokens[n].size(); ++i)
      told(fmt::format("{}a token of {}", pipeline, i + 1), [&](auto& p) { return p.pipeline_tokens[n][i]; });
  }
  return out;
}

}  // namespace cokv::fit
