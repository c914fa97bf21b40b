#include "cuda.hpp"

#include <cuda_runtime_api.h>

#include "cuda_device.hpp"
#include "cuda_error.hpp"

namespace cokv::cuda {
namespace {

// What cudaGetDeviceCount says first on a machine without a driver.
cudaError_t find(int ordinal) {
  int count = 0;
  const auto status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) return status;
  return ordinal >= 0 && ordinal < count ? cudaSuccess : cudaErrorInvalidDevice;
}

}  // namespace

result<opened> open(const asio::any_io_executor& ex, int ordinal, const device_options& options) {
  const bool lost = primary_context::lost_before(ordinal);
  if (lost) progress::of(ex).poll();  // this context's own device lets go of it now, if it hasn't yet
  const auto e = lost ? cudaSuccess : find(ordinal);
  if (e != cudaSuccess && !sticks(e)) {
    (void)cudaGetLastError();
    return means_no_device(e) ? error_code(errc::no_device) : make_error(e);
  }
  auto context = primary_context::open(ordinal);
  if (!context) return context.error();
  std::optional<stream_words> words;
  if (options.signal != completion_signal::event) words = stream_words::find(ordinal);
  if (options.signal == completion_signal::word && !words) return (*context)->leave(), errc::unsupported;
  auto made = std::make_shared<cuda_device>(ex, std::move(*context), words);
  if (auto ec = made->create()) return ec;
  return opened{made, made};
}

std::string explain(int ordinal) {
  const auto name = "cuda:" + std::to_string(ordinal);
  int count = 0;
  if (const auto e = cudaGetDeviceCount(&count); e != cudaSuccess) {
    (void)cudaGetLastError();
    return name + ": no device: " + cudaGetErrorString(e);
  }
  if (ordinal < 0 || ordinal >= count)
    return name + ": no such device: this machine has " + std::to_string(count) + " CUDA devices";
  cudaDeviceProp properties{};
  if (const auto e = cudaGetDeviceProperties(&properties, ordinal); e != cudaSuccess)
    return name + ": " + cudaGetErrorString(e);
  return name + ": " + properties.name + ", " + std::to_string(properties.totalGlobalMem >> 20) +
         " MiB, completion by " + (stream_words::find(ordinal) ? "pinned words" : "events");
}

}  // namespace cokv::cuda
