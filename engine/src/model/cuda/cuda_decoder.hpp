// Every family's decoder on a CUDA device.
#pragma once

#include "cokv/engine/model.hpp"
#include "cokv/runtime/device.hpp"
#include "model/decoder_tensors.hpp"

namespace cokv {

// Reads the tensors, which are those of all parts, and is done with them when it returns. Throws config_error naming the device: it was built without
// kernels for it, cuBLASLt is not there, or there is no room for the weights.
std::shared_ptr<model> make_cuda_decoder(device where, const model_config& config, const decoder_tensors& tensors,
                                         model_names names, const model_options& how);

}  // namespace cokv
