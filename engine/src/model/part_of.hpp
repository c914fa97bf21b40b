// A part of a model: what its config is, and which rows and columns of which tensors it has.
#pragma once

#include "cokv/engine/model.hpp"
#include "model/decoder_tensors.hpp"

namespace cokv {

// Of the whole model's. Throws config_error naming the number that can't be divided so.
model_config part_of(const model_config& whole, const model_part& part);
shard kv_shard_of(const model_config& whole, const model_part& part);
decoder_tensors part_of(const decoder_tensors& all, const model_config& whole, const model_part& part);

}  // namespace cokv
