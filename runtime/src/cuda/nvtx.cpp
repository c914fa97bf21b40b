#include "nvtx.hpp"

#include <nvtx3/nvToolsExtCudaRt.h>

namespace cokv::cuda {

std::uint64_t begin_range(const std::string& name) { return nvtxRangeStartA(name.c_str()); }

void end_range(std::uint64_t range) { nvtxRangeEnd(range); }

void name_stream(void* native, const std::string& name) {
  if (!name.empty()) nvtxNameCudaStreamA(static_cast<cudaStream_t>(native), name.c_str());
}

}  // namespace cokv::cuda
