// Functions of kernels that are compiled for devices and, for tests, for the host. Loops marked COKV_UNROLL have arrays in
// registers of a device.
#pragma once

#if defined(__CUDACC__)
#define COKV_ON_DEVICE __device__ __forceinline__
#define COKV_PRAGMA(text) _Pragma(#text)
#define COKV_UNROLL COKV_PRAGMA(unroll)
#define COKV_UNROLL_BY(n) COKV_PRAGMA(unroll n)
#else
#define COKV_ON_DEVICE inline
#define COKV_UNROLL
#define COKV_UNROLL_BY(n)
#endif
