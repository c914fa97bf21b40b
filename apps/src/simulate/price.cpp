#include "simulate/price.hpp"

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
  const auto& rows = s.prompts > 0 ? p_.prompts : p_.answers;
  const double all = rows.at(s.load.tokens) + p_.prompt_pair * s.prompt_pairs + p_.answer_pair * s.answer_pairs;
  double out = all * split_.layers(p_.layers, stage).count / p_.layers;
  if (stage + 1 == split_.depth()) out += p_.logits.at(static_cast<double>(s.sampled));
  if (stage == 0) out += p_.step + p_.token * static_cast<double>(s.sampled);
  return out;
}

}  // namespace cokv::simulate
