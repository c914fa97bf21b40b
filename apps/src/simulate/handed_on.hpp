// What a step takes longer that one worker of a machine hands on to the next, found by runs of the simulation itself: as much as makes 1,
// 2, .. sequences in a pipeline of the machine's workers as slow as they were measured to be (fit::profile::pipeline_tokens), and a
// prompt's first token as late.
#pragma once

#include "fit/profile.hpp"
#include "simulate/price.hpp"
#include "simulate/simulate.hpp"

namespace cokv::simulate {

// While 1, 2, .. of options::workers_a_machine compute; none where they share nothing, or nothing was measured.
hops handed_on(const options& o, const fit::profile& p);

}  // namespace cokv::simulate
