// Llama 2 and 3, and what is built like them: RMSNorm before attention and before a gated MLP, rotary positions, grouped
// query heads.
#include "model/family.hpp"
#include "model/family_fields.hpp"

namespace cokv {
namespace {

void read_llama(const detail::fields& f, model_config& out) {
  read_sizes(f, {}, out);
  read_grouped_heads(f, out);
  read_intermediate(f, "intermediate_size", out);
  read_norm_eps(f, "rms_norm_eps", out);
  read_rotary(f, out);
  require_whole_heads_rotary(f);
  require_activation(f, "hidden_act", "silu");
  out.qkv_bias = out.out_bias = f.boolean_or("attention_bias", false);
  out.mlp_bias = f.boolean_or("mlp_bias", false);
  out.tie_embeddings = f.boolean_or("tie_word_embeddings", false);
}

}  // namespace

decoder_tensors bind_llama(const model_config& c, tensor_source& from) {
  const std::uint64_t h = c.hidden, q = std::uint64_t{c.heads} * c.head_dim,
                      kv = std::uint64_t{c.kv_heads} * c.head_dim, mlp = c.intermediate;
  decoder_tensors out;
  out.embedding = from.tensor("model.embed_tokens.weight", {c.vocab, h});
  for (std::uint32_t i = 0; i < c.layers; ++i) {
    const auto p = "model.layers." + std::to_string(i) + ".", a = p + "self_attn.", m = p + "mlp.";
    out.layers.push_back(
        {.attention_norm = from.norm(p + "input_layernorm", h),
         .mlp_norm = from.norm(p + "post_attention_layernorm", h),
         .qkv = from.linear({{a + "q_proj", q}, {a + "k_proj", kv}, {a + "v_proj", kv}}, h, c.qkv_bias),
         .out = from.linear(a + "o_proj", h, q, c.out_bias),
         .up = from.linear({{m + "gate_proj", mlp}, {m + "up_proj", mlp}}, h, c.mlp_bias),
         .down = from.linear(m + "down_proj", h, mlp, c.mlp_bias)});
  }
  out.final_norm = from.norm("model.norm", h);
  out.head = from.head(c.tie_embeddings, out.embedding, "lm_head");
  return out;
}

const family families::llama = {"LlamaForCausalLM", read_llama, bind_llama};

}  // namespace cokv
