// One profile of several that were measured one after the other, on one machine.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "fit/profile.hpp"

namespace cokv::fit {

double middle_of(std::vector<double> all);  // the median; of none, 0

// Each figure is the median of all. What can't be and noise says all the same is left out: more rows, pauses or neighbours never take
// less, and nothing takes less than no time. All are of the same points, workers and sequences, and there is one at least.
profile merged(std::span<const profile> all);

// What they say of it that tells how even a machine is, a line each: a token by itself, and those of pipelines; median, least, most.
std::vector<std::string> spread_of(std::span<const profile> all);

}  // namespace cokv::fit
