// What a decoder knows of positions before it sees one.
#pragma once

#include <vector>

#include "cokv/engine/model_config.hpp"

namespace cokv {

// ALiBi's: powers of 2^(-8/n) for n heads; where n is no power of two, those of the power below it and every other one of
// the power above. Empty where positions are told otherwise.
std::vector<float> alibi_slopes(const model_config& c);

// Radians a position, of each pair of elements that is turned, scaling included. Empty where positions are told otherwise.
std::vector<float> rotary_frequencies(const model_config& c);

}  // namespace cokv
