// Which of a checkpoint's tensors a stage of a pipeline computes with: what its workers read, and what names it.
#pragma once

#include "cokv/kvstream/topology.hpp"
#include "model/decoder_tensors.hpp"
#include "model/weight_scan.hpp"

namespace cokv {

// Whatever its number of ranks: columns of a matrix lie all over it. With all vectors, which are small and are read as they are bound.
some_tensors tensors_of_stage(const weights& all, const decoder_tensors& bound, const model_config& whole,
                              const topology& split, std::uint32_t stage);

}  // namespace cokv
