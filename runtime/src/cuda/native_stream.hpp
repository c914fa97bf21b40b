// A cudaStream_t, destroyed with its last user if it is ours: memory that goes back in its order holds it too.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "primary_context.hpp"

namespace cokv::cuda {

class native_stream {
 public:
  native_stream(std::shared_ptr<primary_context> context, cudaStream_t s, bool owned)
      : context_(std::move(context)), stream_(s), owned_(owned) {}
  ~native_stream() {
    if (!owned_ || context_->lost()) return;
    current_device here(context_->ordinal());
    (void)cudaStreamDestroy(stream_);
  }
  native_stream(const native_stream&) = delete;
  cudaStream_t get() const noexcept { return stream_; }
  primary_context& context() const noexcept { return *context_; }

 private:
  const std::shared_ptr<primary_context> context_;
  const cudaStream_t stream_;
  const bool owned_;
};

}  // namespace cokv::cuda
