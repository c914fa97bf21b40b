#include "simulate/price.hpp"

namespace cokv::simulate {

step step_of(const batch& b) {
  step out;
  for (const auto& s : b.sequences) {
    const auto n = s.tokens.size();
    out.load += plan::step_load::of(static_cast<double>(n), s.start);
    out.prompts += n > 1 || s.tokens.back() != answer_token;
    out.sampled += s.sample;
  }
  return out;
}

}  // namespace cokv::simulate
