#include "kernel/cuda/device_graph.hpp"

#include <cuda_runtime_api.h>

#include "cokv/runtime/detail/cuda_error.hpp"
#include "cokv/runtime/error.hpp"

namespace cokv::kernel {
namespace {

// What can't be captured spoils the capture alone: the calling thread's last error is not to be found by others.
error_code failed(cudaError_t e) {
  (void)cudaGetLastError();
  const bool spoilt = e >= cudaErrorStreamCaptureUnsupported && e <= cudaErrorStreamCaptureWrongThread;
  return spoilt ? error_code(errc::unsupported) : detail::cuda_error(e);
}

}  // namespace

error_code device_graph::begin(void* native) {
  const auto e = cudaStreamBeginCapture(static_cast<cudaStream_t>(native), cudaStreamCaptureModeThreadLocal);
  return e == cudaSuccess ? error_code() : failed(e);
}

// Ends the capture whatever has become of it, so that the stream can go.
result<device_graph> device_graph::end(stream& recorder, void* native) {
  cudaGraph_t graph = nullptr;
  auto e = cudaStreamEndCapture(static_cast<cudaStream_t>(native), &graph);
  cudaGraphExec_t exec = nullptr;
  if (e == cudaSuccess) e = cudaGraphInstantiate(&exec, graph, 0);
  if (graph) (void)cudaGraphDestroy(graph);
  if (e != cudaSuccess) return failed(e);
  // With a device that is lost it is gone: its stream takes no calls.
  return device_graph(std::shared_ptr<void>(exec, [on = recorder](void* p) mutable {
    (void)on.launch_native("", {}, [p](void*) { (void)cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(p)); });
  }));
}

error_code device_graph::launch(void* stream) const {
  return detail::cuda_error(
      cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph_.get()), static_cast<cudaStream_t>(stream)));
}

}  // namespace cokv::kernel
