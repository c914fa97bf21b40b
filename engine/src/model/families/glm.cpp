// GLM-4 (9B): half of each head is turned, neighbours together; gate and up are one matrix.
#include "model/family.hpp"
#include "model/family_fields.hpp"

namespace cokv {
namespace {

void read_glm(const detail::fields& f, model_config& out) {
  read_sizes(f, {}, out);
  read_grouped_heads(f, out, {.kv_heads = 2, .head_dim = 128});
  read_intermediate(f, "intermediate_size", out);
  read_norm_eps(f, "rms_norm_eps", out);
  read_rotary(f, out);
  read_rotary_part(f, 0.5, out);
  out.rotary_interleaved = true;
  require_activation(f, "hidden_act", "silu");
  out.qkv_bias = f.boolean_or("attention_bias", true);
  out.tie_embeddings = f.boolean_or("tie_word_embeddings", false);
}

decoder_tensors bind_glm(const model_config& c, tensor_source& from) {
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
         .out = from.linear(a + "o_proj", h, q),
         .up = from.linear(m + "gate_up_proj", 2 * mlp, h),
         .down = from.linear(m + "down_proj", h, mlp)});
  }
  out.final_norm = from.norm("model.norm", h);
  out.head = from.head(c.tie_embeddings, out.embedding, "lm_head");
  return out;
}

}  // namespace

const family families::glm = {"GlmForCausalLM", read_glm, bind_glm};

}  // namespace cokv
