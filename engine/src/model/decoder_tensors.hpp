// What a decoder computes with, whatever a family's checkpoint calls it and however it lays it out: matrices as lists of
// rows that still lie in the checkpoint, vectors as floats. Each device makes of it what its kernels want.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cokv/engine/weights.hpp"
#include "kernel/matrix_rows.hpp"

namespace cokv {

// y = W x + bias. W is [n][k], its rows those of the parts one after the other.
struct linear_tensors {
  std::size_t k = 0;
  std::vector<kernel::matrix_rows> rows;
  std::vector<float> bias;  // [n], or empty

  explicit operator bool() const noexcept { return !rows.empty(); }
  std::size_t n() const noexcept {
    std::size_t total = 0;
    for (auto& r : rows) total += r.count;
    return total;
  }
};

struct norm_tensors {
  std::vector<float> weight;  // empty: there is no such norm
  std::vector<float> bias;    // of a layer norm
};

struct layer_tensors {
  norm_tensors attention_norm, mlp_norm;
  linear_tensors qkv;  // queries, keys, values; heads one after the other in each
  linear_tensors out;
  linear_tensors up;  // gated: gate, then up
  linear_tensors down;
};

struct decoder_tensors {
  tensor_view embedding;                   // [vocab][embedding_dim]
  tensor_view positions;                   // learned: [position_offset + max_positions][hidden]
  linear_tensors project_in, project_out;  // between embedding_dim and hidden, where they differ
  norm_tensors embedding_norm, final_norm;
  std::vector<layer_tensors> layers;
  linear_tensors head;  // [vocab][embedding_dim]
};

}  // namespace cokv
