// A decoder's weights as a CUDA device's kernels want them: matrices by rows in the type that is computed with, tables in
// bf16 or f32, vectors in f32; all in one allocation.
#pragma once

#include <vector>

#include "cokv/runtime/device.hpp"
#include "model/cuda/device_calls.hpp"
#include "model/decoder_tensors.hpp"

namespace cokv {

struct device_linear {
  std::size_t n = 0, k = 0;
  const std::byte* w = nullptr;  // [n][k]
  const float* bias = nullptr;   // [n], or null
  explicit operator bool() const noexcept { return n > 0; }
};

struct device_norm {
  const float *weight = nullptr, *bias = nullptr;  // null: there is none
};

struct device_table {
  const std::byte* rows = nullptr;
  dtype type = dtype::f32;  // f32 or bf16
};

struct device_layer {
  device_linear qkv, out, up, down;
  device_norm attention_norm, mlp_norm;
};

struct device_weights {
  // Uploads all of it, and returns when it is there. Throws config_error naming the device: it has no room.
  device_weights(device where, const device_calls& on, dtype compute, const decoder_tensors& from,
                 const std::vector<float>& frequencies, const std::vector<float>& slopes);

  buffer memory;
  device_table embedding, positions;
  device_norm embedding_norm, final_norm;
  device_linear project_in, project_out, head;
  std::vector<device_layer> layers;
  const float *frequencies = nullptr, *slopes = nullptr;  // null: none
};

}  // namespace cokv
