// Seconds of a price or a flag, as time. Longer than any run is as long as that.
#pragma once

#include <algorithm>

#include "cokv/runtime/clock.hpp"

namespace cokv::simulate {

inline duration of_seconds(double s) {
  constexpr double longest = 1e9;
  return std::chrono::duration_cast<duration>(std::chrono::duration<double>(std::min(s, longest)));
}

}  // namespace cokv::simulate
