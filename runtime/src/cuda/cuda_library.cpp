#include "cokv/runtime/detail/cuda_library.hpp"

#include <cuda_runtime_api.h>

#include "cokv/runtime/detail/cuda_error.hpp"

namespace cokv::detail {

#if CUDART_VERSION >= 12080
result<void*> cuda_library::find(const std::string& name) {
  std::lock_guard lock(mutex_);
  if (auto known = found_.find(name); known != found_.end()) return known->second;
  auto library = static_cast<cudaLibrary_t>(library_);
  if (!library)
    if (auto e = cudaLibraryLoadData(&library, image_, nullptr, nullptr, 0, nullptr, nullptr, 0)) return cuda_error(e);
  library_ = library;
  cudaKernel_t kernel = nullptr;
  if (auto e = cudaLibraryGetKernel(&kernel, library, name.c_str())) return cuda_error(e);
  return found_[name] = kernel;
}
#else
result<void*> cuda_library::find(const std::string&) { return errc::unsupported; }
#endif

void cuda_library::forget() {
  std::lock_guard lock(mutex_);
  library_ = nullptr;
  found_.clear();
}

}  // namespace cokv::detail
