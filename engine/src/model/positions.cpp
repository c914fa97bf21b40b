#include "model/positions.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace cokv {

std::vector<float> alibi_slopes(const model_config& c) {
  if (c.positions != position_type::alibi) return {};
  const auto heads = c.heads;
  const std::uint32_t below = std::bit_floor(heads);
  std::vector<float> out;
  for (std::uint32_t i = 0; i < heads; ++i)
    out.push_back(static_cast<float>(i < below ? std::exp2(-8.0 * (i + 1) / below)
                                               : std::exp2(-4.0 * (2 * (i - below) + 1) / below)));
  return out;
}

std::vector<float> rotary_frequencies(const model_config& c) {
  if (c.positions != position_type::rotary) return {};
  std::vector<float> out;
  const auto half = c.rotary_dims / 2;
  for (std::uint32_t i = 0; i < half; ++i) {
    double f = std::pow(c.rope_theta, -static_cast<double>(i) / half);
    if (auto& s = c.rope_scaling) {
      const double turns = s->original_positions * f / (2 * 3.14159265358979323846);  // over the original context
      const double span = s->high_frequency_factor - s->low_frequency_factor;
      const double blend = std::clamp((turns - s->low_frequency_factor) / span, 0.0, 1.0);
      f = f / s->factor * (1 - blend) + f * blend;
    }
    out.push_back(static_cast<float>(f));
  }
  return out;
}

}  // namespace cokv
