#include <cuda_runtime.h>

#include <cstdint>

namespace cokv::bench {

__device__ std::uint64_t device_now() {
  std::uint64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

__global__ void spin_kernel(std::uint64_t nanoseconds) {
  const auto start = device_now();
  while (device_now() - start < nanoseconds) {
  }
}

int launch_spin(void* native, std::uint64_t nanoseconds) {
  spin_kernel<<<1, 1, 0, static_cast<cudaStream_t>(native)>>>(nanoseconds);
  return static_cast<int>(cudaGetLastError());
}

}  // namespace cokv::bench
