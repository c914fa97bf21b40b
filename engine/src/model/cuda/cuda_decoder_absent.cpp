#include "cokv/runtime/error.hpp"
#include "model/cuda/cuda_decoder.hpp"

namespace cokv {

std::shared_ptr<model> make_cuda_decoder(device where, const model_config&, const decoder_tensors&, model_names,
                                         const model_options&) {
  throw config_error("device " + std::string(where.name()) + ": this cokv was built without kernels for it");
}

}  // namespace cokv
