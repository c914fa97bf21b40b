#include <cuda_runtime.h>

#include <cstdint>

namespace cokv::bench {

__device__ std::uint64_t device_now() {
  std::uint64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

__global__ void spin_kernel(std::uint64_t nanoseconds, std::uint64_t* stamps) {
  const auto start = device_now();
  auto now = start;
  while (now - start < nanoseconds) now = device_now();
  if (!stamps) return;
  stamps[0] = start;
  stamps[1] = device_now();
}

int launch_spin(void* native, std::uint64_t nanoseconds, std::uint64_t* stamps) {
  spin_kernel<<<1, 1, 0, static_cast<cudaStream_t>(native)>>>(nanoseconds, stamps);
  return static_cast<int>(cudaGetLastError());
}

}  // namespace cokv::bench
