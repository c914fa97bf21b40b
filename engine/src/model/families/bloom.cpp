// BLOOM: ALiBi instead of positions, a norm after the embedding; queries, keys and values are one matrix, head by head.
#include "model/family.hpp"
#include "model/family_fields.hpp"

namespace cokv {
namespace {

// What the model was trained with, for files that do not say: ALiBi itself knows no limit.
constexpr std::uint32_t trained_positions = 2048;

void read_bloom(const detail::fields& f, model_config& out) {
  const size_names names = {.layers = either(f, "n_layer", "num_hidden_layers"),
                            .hidden = either(f, "n_embed", "hidden_size"),
                            .heads = either(f, "n_head", "num_attention_heads"),
                            .positions = {}};
  read_sizes(f, names, out);
  read_plain_heads(f, names, out);
  out.max_positions = static_cast<std::uint32_t>(f.uint_or("seq_length", trained_positions, 1, 1 << 24));
  out.intermediate = 4 * out.hidden;
  read_norm_eps(f, "layer_norm_epsilon", out);
  require_flag(f, "apply_residual_connection_post_layernorm", false);
  out.norm = norm_type::layer;
  out.embedding_norm = true;
  out.positions = position_type::alibi;
  out.act = activation::gelu_tanh;
  out.gated = false;
  out.qkv_bias = out.out_bias = out.mlp_bias = true;
  out.tie_embeddings = f.boolean_or("tie_word_embeddings", true);
}

// [heads][q, k, v][dim] rows, taken as [q, k, v][heads][dim].
linear_tensors fused(const model_config& c, tensor_source& from, const std::string& name) {
  const std::size_t h = c.hidden, dim = c.head_dim;
  auto w = from.linear(name, 3 * h, h, true);
  const auto all = w.rows.front();
  linear_tensors out{.k = h};
  for (std::size_t part = 0; part < 3; ++part)
    for (std::size_t head = 0; head < c.heads; ++head) {
      const auto first = (head * 3 + part) * dim;
      auto rows = all;
      rows.data = static_cast<const std::byte*>(all.data) + first * h * size_of(all.type);
      rows.count = dim;
      out.rows.push_back(rows);
      out.bias.insert(out.bias.end(), w.bias.begin() + std::ptrdiff_t(first),
                      w.bias.begin() + std::ptrdiff_t(first + dim));
    }
  return out;
}

decoder_tensors bind_bloom(const model_config& c, tensor_source& from) {
  const std::uint64_t h = c.hidden, mlp = c.intermediate;
  const std::string root = from.contains("word_embeddings.weight") ? "" : "transformer.";
  decoder_tensors out;
  out.embedding = from.tensor(root + "word_embeddings.weight", {c.vocab, h});
  out.embedding_norm = from.norm(root + "word_embeddings_layernorm", h, true);
  for (std::uint32_t i = 0; i < c.layers; ++i) {
    const auto p = root + "h." + std::to_string(i) + ".";
    out.layers.push_back({.attention_norm = from.norm(p + "input_layernorm", h, true),
                          .mlp_norm = from.norm(p + "post_attention_layernorm", h, true),
                          .qkv = fused(c, from, p + "self_attention.query_key_value"),
                          .out = from.linear(p + "self_attention.dense", h, h, true),
                          .up = from.linear(p + "mlp.dense_h_to_4h", mlp, h, true),
                          .down = from.linear(p + "mlp.dense_4h_to_h", h, mlp, true)});
  }
  out.final_norm = from.norm(root + "ln_f", h, true);
  out.head = from.head(c.tie_embeddings, out.embedding, "lm_head");
  return out;
}

}  // namespace

const family families::bloom = {"BloomForCausalLM", read_bloom, bind_bloom};

}  // namespace cokv
