// Functions of kernels that are compiled for devices and, for tests, for the host.
#pragma once

#if defined(__CUDACC__)
#define COKV_ON_DEVICE __device__ __forceinline__
#else
#define COKV_ON_DEVICE inline
#endif
