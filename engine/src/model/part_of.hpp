// A part of a model: which rows and columns of which tensors it has, and which of its KV.
#pragma once

#include "cokv/engine/model.hpp"
#include "model/decoder_tensors.hpp"

namespace cokv {

shard kv_shard_of(const model_config& whole, const model_part& part);
// ALiBi's, of its heads; empty where positions are told otherwise.
std::vector<float> slopes_of(const model_config& whole, const model_part& part);
decoder_tensors part_of(const decoder_tensors& all, const model_config& whole, const model_part& part);

}  // namespace cokv
