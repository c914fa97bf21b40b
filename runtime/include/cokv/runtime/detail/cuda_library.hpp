// Kernels that a program carries as data, for several kinds of devices: loaded once for all devices of the process, when
// one of them is asked for, and never unloaded, since a launch may be under way at the process's end. Thread-safe.
//
//     static cuda_library kernels(cokv_pack_image);
//     auto pack = kernels.find("cokv_pack");                 // in a stream's launch_native
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "cokv/runtime/error.hpp"

namespace cokv::detail {

class cuda_library {
 public:
  explicit cuda_library(const unsigned char* image) noexcept : image_(image) {}

  // A cudaKernel_t. CUDA's error: no code for this kind of device, no such kernel; errc::unsupported without CUDA 12.8.
  result<void*> find(const std::string& name);

  void forget();  // tests: as if nothing had been loaded yet

 private:
  const unsigned char* const image_;
  std::mutex mutex_;
  void* library_ = nullptr;
  std::map<std::string, void*> found_;
};

}  // namespace cokv::detail
