#include "nvtx.hpp"

namespace cokv::cuda {

std::uint64_t begin_range(const std::string&) { return 0; }
void end_range(std::uint64_t) {}
void name_stream(void*, const std::string&) {}

}  // namespace cokv::cuda
