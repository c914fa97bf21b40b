// OPT: learned positions whose table begins with two rows that no token has, ReLU. The 350M model has its norms behind
// attention and MLP, none at the end, and an embedding that is projected to the width of its layers and back.
#include "model/family.hpp"
#include "model/family_fields.hpp"

namespace cokv {
namespace {

void read_opt(const detail::fields& f, model_config& out) {
  read_sizes(f, {}, out);
  read_plain_heads(f, {}, out);
  read_intermediate(f, "ffn_dim", out);
  if (f.has("word_embed_proj_dim")) {
    out.embedding_dim = read_u32(f, "word_embed_proj_dim", 2, 1 << 17);
    if (out.embedding_dim % 2 != 0) f.fail("word_embed_proj_dim", std::to_string(out.embedding_dim) + " is not even");
  }
  require_flag(f, "layer_norm_elementwise_affine", true);
  const auto act = f.has("activation_function") ? f.string("activation_function") : "relu";
  if (act != "relu" && act != "gelu")
    f.fail("activation_function", detail::printable(act) + " is not supported; relu and gelu are");
  out.act = act == "relu" ? activation::relu : activation::gelu;
  out.norm = norm_type::layer;
  out.norm_eps = 1e-5f;
  out.norm_first = f.boolean_or("do_layer_norm_before", true);
  out.final_norm = out.norm_first && !f.boolean_or("_remove_final_layer_norm", false);
  out.positions = position_type::learned;
  out.position_offset = 2;
  out.gated = false;
  out.qkv_bias = out.out_bias = out.mlp_bias = f.boolean_or("enable_bias", true);
  out.tie_embeddings = f.boolean_or("tie_word_embeddings", true);
}

decoder_tensors bind_opt(const model_config& c, tensor_source& from) {
  const std::uint64_t h = c.hidden, e = c.embedding_dim, mlp = c.intermediate;
  const std::string root = from.contains("decoder.embed_tokens.weight") ? "decoder." : "model.decoder.";
  decoder_tensors out;
  out.embedding = from.tensor(root + "embed_tokens.weight", {c.vocab, e});
  out.positions = from.tensor(root + "embed_positions.weight", {c.position_offset + c.max_positions, h});
  if (e != h) {
    out.project_in = from.linear(root + "project_in", h, e);
    out.project_out = from.linear(root + "project_out", e, h);
  }
  for (std::uint32_t i = 0; i < c.layers; ++i) {
    const auto p = root + "layers." + std::to_string(i) + ".", a = p + "self_attn.";
    out.layers.push_back({.attention_norm = from.norm(p + "self_attn_layer_norm", h, true),
                          .mlp_norm = from.norm(p + "final_layer_norm", h, true),
                          .qkv = from.linear({{a + "q_proj", h}, {a + "k_proj", h}, {a + "v_proj", h}}, h, c.qkv_bias),
                          .out = from.linear(a + "out_proj", h, h, c.out_bias),
                          .up = from.linear(p + "fc1", mlp, h, c.mlp_bias),
                          .down = from.linear(p + "fc2", h, mlp, c.mlp_bias)});
  }
  if (c.final_norm) out.final_norm = from.norm(root + "final_layer_norm", h, true);
  out.head = from.head(c.tie_embeddings, out.embedding, "lm_head");
  return out;
}

}  // namespace

const family families::opt = {"OPTForCausalLM", read_opt, bind_opt};

}  // namespace cokv
