#include "model/cpu_weights.hpp"

#include "kernel/cpu/rows.hpp"

namespace cokv {

cpu_linear::cpu_linear(dtype compute, const linear_tensors& from) : bias(from.bias) {
  if (!from) return;
  matrix = kernel::packed_matrix(compute, from.k, from.rows);
  kernel::prepare(matrix);
}

void cpu_linear::multiply(const void* x, float* y, std::size_t rows, bool accumulate, kernel::split how) const {
  kernel::matmul(x, matrix, y, rows, accumulate, how);
  if (!bias.empty()) kernel::add_bias(y, bias.data(), rows, matrix.n());
}

cpu_weights::cpu_weights(dtype compute, const decoder_tensors& from)
    : embedding(from.embedding),
      positions(from.positions),
      embedding_norm(from.embedding_norm),
      final_norm(from.final_norm),
      project_in(compute, from.project_in),
      project_out(compute, from.project_out),
      head(compute, from.head) {
  for (auto& l : from.layers)
    layers.push_back({.qkv = {compute, l.qkv},
                      .out = {compute, l.out},
                      .up = {compute, l.up},
                      .down = {compute, l.down},
                      .attention_norm = l.attention_norm,
                      .mlp_norm = l.mlp_norm});
}

}  // namespace cokv
