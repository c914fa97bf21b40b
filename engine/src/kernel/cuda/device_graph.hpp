// Kernels that were enqueued once, to be enqueued again by one call: a CUDA graph. Their arguments are those of then.
//
//     auto graph = device_graph::capture(recorder, [&](void* native) { return enqueue_all(native); });
//     compute.launch_native("step", uses, [&](void* native) { return graph->launch(native); });
//
// From one thread. It may be destroyed while a launch of it runs.
#pragma once

#include <memory>

#include "cokv/runtime/stream.hpp"

namespace cokv::kernel {

class device_graph {
 public:
  // What `enqueue` puts on the stream that it is given does not run. `recorder` is the device's, and for nothing else.
  // Errors: `enqueue`'s; errc::unsupported where something of it can't be captured; the stream's; CUDA's.
  template <class F>
  static result<device_graph> capture(stream& recorder, F&& enqueue) {
    error_code own;
    result<device_graph> made = error_code();
    const auto ec = recorder.launch_native("", {}, [&](void* native) {
      if ((own = begin(native))) return;
      own = enqueue(native);
      made = end(recorder, native);
    });
    if (ec) return ec;
    if (own) return own;
    return made;
  }

  // On a cudaStream_t of the device.
  error_code launch(void* stream) const;

 private:
  explicit device_graph(std::shared_ptr<void> g) : graph_(std::move(g)) {}
  static error_code begin(void* native);
  static result<device_graph> end(stream& recorder, void* native);

  std::shared_ptr<void> graph_;
};

}  // namespace cokv::kernel
