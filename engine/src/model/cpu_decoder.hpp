// Every family's decoder on the CPU.
#pragma once

#include "cokv/engine/model.hpp"
#include "model/cpu_weights.hpp"

namespace cokv {

// `config` is the whole model's, `weights` those of its part; `keep` holds the memory that their tables lie in.
std::shared_ptr<model> make_cpu_decoder(const model_config& config, cpu_weights weights,
                                        std::shared_ptr<const void> keep, model_names names, dtype compute,
                                        const model_part& part);

}  // namespace cokv
