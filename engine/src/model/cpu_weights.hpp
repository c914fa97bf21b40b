// A decoder's weights as the CPU's kernels want them: matrices packed, in the type that is computed with.
#pragma once

#include <vector>

#include "kernel/cpu/matmul.hpp"
#include "model/decoder_tensors.hpp"

namespace cokv {

struct cpu_linear {
  kernel::packed_matrix matrix;
  std::vector<float> bias;
  kernel::matmul_path path = kernel::matmul_path::automatic;

  cpu_linear() = default;
  cpu_linear(dtype compute, const linear_tensors& from, kernel::matmul_path path);
  explicit operator bool() const noexcept { return matrix.n() > 0; }

  // For kernel::matmul. x: rows of k elements of the compute type.
  kernel::product operator()(const void* x, std::size_t rows) const noexcept { return {x, &matrix, rows, bias, path}; }
};

struct cpu_layer {
  cpu_linear qkv, out, up, down;
  norm_tensors attention_norm, mlp_norm;

  double bytes() const noexcept {
    return static_cast<double>(qkv.matrix.bytes() + out.matrix.bytes() + up.matrix.bytes() + down.matrix.bytes());
  }
};

struct cpu_weights {
  // Reads every matrix; the two tables stay where they are.
  cpu_weights(dtype compute, const decoder_tensors& from, bool batch_invariant);

  tensor_view embedding, positions;
  norm_tensors embedding_norm, final_norm;
  cpu_linear project_in, project_out, head;
  std::vector<cpu_layer> layers;
};

}  // namespace cokv
