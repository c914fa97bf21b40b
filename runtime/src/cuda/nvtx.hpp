// Names for NVIDIA's profilers. Without one attached a call costs a few instructions; in a build without CUDA, nothing.
#pragma once

#include <cstdint>
#include <string>

namespace cokv::cuda {

// A range of the process: it may end on another thread, and overlap others, as coroutines do.
std::uint64_t begin_range(const std::string& name);
void end_range(std::uint64_t range);

void name_stream(void* native, const std::string& name);

}  // namespace cokv::cuda
