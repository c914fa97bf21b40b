// A stand-in for the CUDA runtime's calls, linked in their place: streams and events that do nothing until they are
// stepped, and fail when they are told to. What the CUDA backend promises is tested on it without a device.
//
//     fake_cuda::reset();
//     auto device = open_device(ex, "cuda:0").value();
//     ... enqueue ...
//     fake_cuda::step();                                   // one operation of each stream that can go on
#pragma once

#include <cstddef>

namespace cokv::test::fake_cuda {

void reset(int devices = 1);
bool step();                            // false: every stream is empty or blocked
void fail_from_now(int cuda_error);     // the device: operations stop, queries say so, host functions are not called
void refuse_next_copy(int cuda_error);  // the next cudaMemcpyAsync returns it
std::size_t live_streams();
std::size_t live_events();
std::size_t live_allocations();
std::size_t host_functions();  // how many were enqueued since reset

}  // namespace cokv::test::fake_cuda
