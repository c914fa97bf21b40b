#include "driver.hpp"

namespace cokv::cuda {
namespace {

template <class Function>
bool find_entry(const char* name, Function& function) {
  void* found = nullptr;
  auto status = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const auto error = cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &status);
#else
  const auto error = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &status);
#endif
  if (error != cudaSuccess) (void)cudaGetLastError();
  function = reinterpret_cast<Function>(found);
  return error == cudaSuccess && status == cudaDriverEntryPointSuccess && found;
}

}  // namespace

std::optional<stream_words> stream_words::find(int ordinal) {
  CUresult (*get)(CUdevice*, int) = nullptr;
  CUresult (*attribute)(int*, CUdevice_attribute, CUdevice) = nullptr;
  stream_words words;
  if (!find_entry("cuDeviceGet", get) || !find_entry("cuDeviceGetAttribute", attribute) ||
      !find_entry("cuStreamWriteValue64", words.write_) || !find_entry("cuStreamWaitValue64", words.wait_))
    return std::nullopt;
  CUdevice device = 0;
  int can = 0;
  if (get(&device, ordinal) != CUDA_SUCCESS ||
      attribute(&can, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, device) != CUDA_SUCCESS || !can)
    return std::nullopt;
  return words;
}

bool primary_context_active(int ordinal) {
  using get_state = CUresult (*)(CUdevice, unsigned*, int*);
  static const auto state = [] {
    get_state found = nullptr;
    return find_entry("cuDevicePrimaryCtxGetState", found) ? found : nullptr;
  }();
  unsigned flags = 0;
  int active = 1;
  return !state || state(ordinal, &flags, &active) != CUDA_SUCCESS || active;
}

cudaError_t mapped_bytes(void* base, std::size_t& bytes) {
  CUresult (*range)(CUdeviceptr*, std::size_t*, CUdeviceptr) = nullptr;
  if (!find_entry("cuMemGetAddressRange", range)) return cudaErrorNotSupported;
  CUdeviceptr start = 0;
  const auto e = static_cast<cudaError_t>(range(&start, &bytes, reinterpret_cast<CUdeviceptr>(base)));
  if (e == cudaSuccess) bytes -= reinterpret_cast<CUdeviceptr>(base) - start;
  return e;
}

}  // namespace cokv::cuda
