// The Llama family: RMSNorm before attention and before a gated MLP, rotary positions, grouped query heads, no biases.
#pragma once

#include "cokv/engine/model.hpp"
#include "cokv/engine/weights.hpp"

namespace cokv {

// Throws config_error for tensors that are missing or of another shape.
std::shared_ptr<model> make_llama(model_config config, weights tensors, id256 fingerprint, dtype compute);

}  // namespace cokv
