// The names that Llama's tensors have are those of the families built like it.
#pragma once

#include "model/family.hpp"

namespace cokv {

decoder_tensors bind_llama(const model_config& c, tensor_source& from);

}  // namespace cokv
