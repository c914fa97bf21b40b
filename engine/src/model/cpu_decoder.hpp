// Every family's decoder on the CPU.
#pragma once

#include "cokv/engine/model.hpp"
#include "model/cpu_weights.hpp"

namespace cokv {

// `keep` holds the memory that the weights' tables lie in.
std::shared_ptr<model> make_cpu_decoder(model_config config, cpu_weights weights, std::shared_ptr<const void> keep,
                                        id256 fingerprint, dtype compute);

}  // namespace cokv
