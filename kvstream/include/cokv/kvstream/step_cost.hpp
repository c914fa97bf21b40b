// What a step of an engine takes, learned from steps that it made: a + b * tokens + c * pairs, pairs being the sum over its
// tokens of the context before each (DistServe's prefill model, arXiv 2401.09670, appendix A). A step that decodes has a
// token a sequence, and its pairs are all their contexts.
//
//     cokv::step_fit fit;
//     fit.add(compute_work::of(1000, 0), 80ms);               // a step of 1000 tokens of a prompt
//     fit.cost().seconds(compute_work::of(500, 1000));        // what 500 behind those would take
//
// By least squares of relative errors, what is old fading. Pure; belongs to one context.
#pragma once

#include <array>
#include <cstdint>

#include "cokv/runtime/clock.hpp"

namespace cokv {

// What an engine computes: so many tokens, and for each of them the tokens before it, all summed.
struct compute_work {
  double tokens = 0;
  double pairs = 0;

  static compute_work of(double tokens, double context) { return {tokens, tokens * (context + tokens / 2)}; }
  compute_work& operator+=(const compute_work& o) {
    tokens += o.tokens;
    pairs += o.pairs;
    return *this;
  }
};

// Seconds: a step, a token, a pair; none below 0. All 0: not known.
struct step_cost {
  double a = 0, b = 0, c = 0;

  bool known() const noexcept { return a > 0 || b > 0 || c > 0; }
  // Of that work in so many steps.
  double seconds(const compute_work& w, double steps = 1) const noexcept {
    return a * steps + b * w.tokens + c * w.pairs;
  }
};

class step_fit {
 public:
  // Nothing is learned from a step that took no time.
  void add(const compute_work& work, duration took);
  const step_cost& cost() const noexcept { return cost_; }
  std::uint64_t steps() const noexcept { return steps_; }  // that it was made of

 private:
  std::array<std::array<double, 3>, 3> normal_{};
  std::array<double, 3> right_{};
  step_cost cost_;
  std::uint64_t steps_ = 0;
};

}  // namespace cokv
