#include "model/cpu_weights.hpp"

namespace cokv {

cpu_linear::cpu_linear(dtype compute, const linear_tensors& from, kernel::matmul_path path)
    : bias(from.bias), path(path) {
  if (!from) return;
  matrix = kernel::packed_matrix(compute, from.k, from.rows);
  kernel::prepare(matrix, path);
}

cpu_weights::cpu_weights(dtype compute, const decoder_tensors& from, bool batch_invariant)
    : embedding(from.embedding),
      positions(from.positions),
      embedding_norm(from.embedding_norm),
      final_norm(from.final_norm) {
  const auto path = batch_invariant ? kernel::matmul_path::invariant : kernel::matmul_path::automatic;
  const auto packed = [&](const linear_tensors& t) { return cpu_linear(compute, t, path); };
  project_in = packed(from.project_in);
  project_out = packed(from.project_out);
  head = packed(from.head);
  for (auto& l : from.layers)
    layers.push_back({.qkv = packed(l.qkv),
                      .out = packed(l.out),
                      .up = packed(l.up),
                      .down = packed(l.down),
                      .attention_norm = l.attention_norm,
                      .mlp_norm = l.mlp_norm});
}

}  // namespace cokv
