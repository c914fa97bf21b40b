// Qwen2 and Qwen2.5: Llama's decoder with biases on queries, keys and values.
#include "model/families/llama.hpp"
#include "model/family_fields.hpp"

namespace cokv {
namespace {

void read_qwen2(const detail::fields& f, model_config& out) {
  read_sizes(f, {}, out);
  read_grouped_heads(f, out);
  read_intermediate(f, "intermediate_size", out);
  read_norm_eps(f, "rms_norm_eps", out);
  read_rotary(f, out);
  require_whole_heads_rotary(f);
  require_activation(f, "hidden_act", "silu");
  require_flag(f, "use_sliding_window", false);
  out.qkv_bias = true;
  out.tie_embeddings = f.boolean_or("tie_word_embeddings", false);
}

}  // namespace

const family families::qwen2 = {"Qwen2ForCausalLM", read_qwen2, bind_llama};

}  // namespace cokv
