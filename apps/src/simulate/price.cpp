#include "simulate/price.hpp"

#include <algorithm>

namespace cokv::simulate {

step step_of(const batch& b) {
  step out;
  for (const auto& s : b.sequences) {
    const auto n = s.tokens.size();
    const auto load = plan::step_load::of(static_cast<double>(n), s.start);
    const bool prompt = n > 1 || s.tokens.back() != answer_token;
    out.load += load;
    (prompt ? out.prompt_pairs : out.answer_pairs) += load.pairs;
    out.prompts += prompt;
    out.sampled += s.sample;
  }
  return out;
}

double profile_price::seconds(const step& s, std::uint32_t stage) const {
  constexpr double longest = 1e6;
  const bool prompts = s.prompts > 0, last = stage + 1 == split_.depth();
  const auto tokens = s.load.tokens;
  const auto layers = split_.layers(p_.layers, stage).count;
  const double row = (prompts ? p_.prompts : p_.answers).at(tokens) + p_.prompt_pair * s.prompt_pairs;
  double out = (layers - (last ? 1 : 0)) * row + layers * p_.answer_pair * s.answer_pairs + p_.step;
  if (last) out += (prompts ? p_.prompts_end : p_.answers_end).at(tokens);
  if (stage == 0) out += p_.token * static_cast<double>(s.sampled);
  return std::min(out, longest);
}

// Workers that hand nothing on wait for a processor all the same, when they begin, where others have taken it.
double profile_price::late(const step& s, std::uint32_t stage, double idle, std::uint32_t workers) const {
  const bool alone = split_.depth() == 1;
  if (idle <= 0 && alone) return 0;
  const auto& all = handed_on_.by_workers;
  double handed = all[std::min<std::size_t>(workers, all.size()) - 1];
  if (alone)
    handed = std::max(0.0, handed - all.front());
  else if (s.prompts > 0)
    handed += handed_on_.prompts.value_or(all.front()) - all.front();
  const auto& measured = s.prompts > 0 ? p_.prompts_idle : p_.answers_idle;
  if (measured.points().empty()) return handed;
  const double whole = measured.at(std::min(idle, measured.points().back().first));
  return std::max(handed, whole * split_.layers(p_.layers, stage).count / p_.layers);
}

}  // namespace cokv::simulate
