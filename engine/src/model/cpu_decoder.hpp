// Every family's decoder on the CPU.
#pragma once

#include "cokv/engine/model.hpp"
#include "model/decoder_tensors.hpp"

namespace cokv {

// `keep` holds the memory that the tensors' views point into; the packed matrices do not need it, the embedding does.
std::shared_ptr<model> make_cpu_decoder(model_config config, const decoder_tensors& tensors,
                                        std::shared_ptr<const void> keep, id256 fingerprint, dtype compute);

}  // namespace cokv
