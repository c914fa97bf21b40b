#include "cokv/kvstream/step_cost.hpp"

namespace cokv {
namespace {

constexpr double fade = 0.95;

// The best x >= 0 of a 3 by 3 system of normal equations; what would be negative is left out.
std::array<double, 3> solve(const std::array<std::array<double, 3>, 3>& m, const std::array<double, 3>& v) {
  std::array<bool, 3> out{};
  for (;;) {
    auto a = m;
    auto b = v;
    std::array<double, 3> x{};
    for (int i = 0; i < 3; ++i) {
      a[i][i] = a[i][i] * (1 + 1e-6) + 1e-30;  // steps that are all alike say how much, not of what
      if (!out[i]) continue;
      for (int k = 0; k < 3; ++k) a[i][k] = a[k][i] = 0;
      a[i][i] = 1;
      b[i] = 0;
    }
    for (int i = 0; i < 3; ++i)
      for (int r = i + 1; r < 3; ++r) {
        const double f = a[r][i] / a[i][i];
        for (int k = i; k < 3; ++k) a[r][k] -= f * a[i][k];
        b[r] -= f * b[i];
      }
    for (int i = 2; i >= 0; --i) {
      x[i] = b[i];
      for (int k = i + 1; k < 3; ++k) x[i] -= a[i][k] * x[k];
      x[i] /= a[i][i];
    }
    // In this order: the work of a token is what there surely is.
    int negative = -1;
    for (int i : {2, 0, 1})
      if (x[i] < 0 && negative < 0) negative = i;
    if (negative < 0) return x;
    out[negative] = true;
  }
}

}  // namespace

void step_fit::add(const compute_work& work, duration took) {
  if (took <= duration::zero()) return;
  const double t = std::chrono::duration<double>(took).count();
  const std::array<double, 3> f{1, work.tokens, work.pairs};
  for (int i = 0; i < 3; ++i) {
    right_[i] = right_[i] * fade + f[i] / t;
    for (int k = 0; k < 3; ++k) normal_[i][k] = normal_[i][k] * fade + f[i] * f[k] / (t * t);
  }
  const auto x = solve(normal_, right_);
  cost_ = {x[0], x[1], x[2]};
  ++steps_;
}

}  // namespace cokv
