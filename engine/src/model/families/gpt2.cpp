// GPT-2: learned positions, LayerNorm, one matrix for queries, keys and values; matrices are stored transposed (Conv1D).
#include "model/family.hpp"
#include "model/family_fields.hpp"

namespace cokv {
namespace {

void read_gpt2(const detail::fields& f, model_config& out) {
  const size_names names = {.layers = "n_layer", .hidden = "n_embd", .heads = "n_head", .positions = "n_positions"};
  read_sizes(f, names, out);
  read_plain_heads(f, names, out);
  read_intermediate_or_fourfold(f, "n_inner", out);
  read_norm_eps(f, "layer_norm_epsilon", out);
  require_activation(f, "activation_function", "gelu_new");
  require_flag(f, "scale_attn_weights", true);
  require_flag(f, "scale_attn_by_inverse_layer_idx", false);
  require_flag(f, "add_cross_attention", false);
  out.norm = norm_type::layer;
  out.positions = position_type::learned;
  out.act = activation::gelu_tanh;
  out.gated = false;
  out.qkv_bias = out.out_bias = out.mlp_bias = true;
  out.tie_embeddings = f.boolean_or("tie_word_embeddings", true);
}

decoder_tensors bind_gpt2(const model_config& c, tensor_source& from) {
  const std::uint64_t h = c.hidden, mlp = c.intermediate;
  const std::string root = from.contains("wte.weight") ? "" : "transformer.";
  decoder_tensors out;
  out.embedding = from.tensor(root + "wte.weight", {c.vocab, h});
  out.positions = from.tensor(root + "wpe.weight", {c.max_positions, h});
  for (std::uint32_t i = 0; i < c.layers; ++i) {
    const auto p = root + "h." + std::to_string(i) + ".";
    out.layers.push_back({.attention_norm = from.norm(p + "ln_1", h, true),
                          .mlp_norm = from.norm(p + "ln_2", h, true),
                          .qkv = from.transposed(p + "attn.c_attn", 3 * h, h),
                          .out = from.transposed(p + "attn.c_proj", h, h),
                          .up = from.transposed(p + "mlp.c_fc", mlp, h),
                          .down = from.transposed(p + "mlp.c_proj", h, mlp)});
  }
  out.final_norm = from.norm(root + "ln_f", h, true);
  out.head = from.head(c.tie_embeddings, out.embedding, "lm_head");
  return out;
}

}  // namespace

const family families::gpt2 = {"GPT2LMHeadModel", read_gpt2, bind_gpt2};

}  // namespace cokv
