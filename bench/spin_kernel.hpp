// Work of a known length for a device, and what CUDA itself offers to wait for it.
#pragma once

#include <cstdint>
#include <vector>

#include "cokv/runtime/stream.hpp"

namespace cokv::bench {

// A kernel of so many nanoseconds, on whatever device the stream is of.
error_code spin(stream& s, std::uint64_t nanoseconds);

// The copies as one would enqueue them by CUDA alone, one call each, and nothing between them.
error_code copy_by_hand(stream& s, const std::vector<copy_op>& ops);

// What the host does when it waits for a stream by CUDA alone.
enum class blocking_wait { spin, yield, block };
bool set_blocking_wait(blocking_wait how);  // false: this build or device can't
error_code synchronize(stream& s);          // cudaStreamSynchronize

// The CUDA side of spin(): 0, or a cudaError_t.
int launch_spin(void* native_stream, std::uint64_t nanoseconds);

}  // namespace cokv::bench
