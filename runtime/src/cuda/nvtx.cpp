#include "nvtx.hpp"

#include <nvtx3/nvToolsExtCudaRt.h>

namespace cokv::cuda {

void name_stream(cudaStream_t s, const std::string& name) {
  if (!name.empty()) nvtxNameCudaStreamA(s, name.c_str());
}

}  // namespace cokv::cuda
