// Copies between host memory, in a stream's order. CUDA's own call for them returns when the stream has got there and
// the bytes are copied, and the loop must not stand still for that: they are made by a host function, on CUDA's thread.
#pragma once

#include <cstddef>

namespace cokv::cuda {

struct host_copy {
  void* dst = nullptr;
  const void* src = nullptr;
  std::size_t bytes = 0;
};

// For cudaLaunchHostFunc: makes the copies of an array that ends with one of 0 bytes and stays where it is until then.
void copy_on_host(void* list);

}  // namespace cokv::cuda
