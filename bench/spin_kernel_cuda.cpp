#include <cuda_runtime_api.h>

#include "cokv/runtime/error.hpp"
#include "spin_kernel.hpp"

namespace cokv::bench {

bool set_blocking_wait(blocking_wait how) {
  const unsigned flags = how == blocking_wait::spin    ? cudaDeviceScheduleSpin
                         : how == blocking_wait::yield ? cudaDeviceScheduleYield
                                                       : cudaDeviceScheduleBlockingSync;
  const auto e = cudaSetDeviceFlags(flags);
  if (e != cudaSuccess) (void)cudaGetLastError();
  return e == cudaSuccess;
}

error_code copy_by_hand(stream& s, const std::vector<copy_op>& ops) {
  return s.launch_native("", {}, [&](void* native) {
    for (const auto& op : ops)
      if (cudaMemcpyAsync(op.dst.data(), op.src.data(), op.src.size(), cudaMemcpyDefault,
                          static_cast<cudaStream_t>(native)) != cudaSuccess)
        return error_code(errc::device_failed);
    return error_code();
  });
}

error_code synchronize(stream& s) {
  return cudaStreamSynchronize(static_cast<cudaStream_t>(s.native_handle())) == cudaSuccess
             ? error_code()
             : error_code(errc::device_failed);
}

}  // namespace cokv::bench
