// Names for NVIDIA's profilers. Without one attached a call costs a few instructions.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace cokv::cuda {

void name_stream(cudaStream_t s, const std::string& name);

}  // namespace cokv::cuda
