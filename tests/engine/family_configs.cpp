// config.json as the families' checkpoints bring it.
#include <doctest/doctest.h>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <set>
#include <string>
#include <vector>

#include "cokv/engine/model_config.hpp"
#include "files.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

// Qwen2.5-0.5B, GLM-4-9B, GPT-2, OPT-350M and BLOOM-560M: the fields that say what is computed.
constexpr std::string_view qwen2 = R"({"architectures": ["Qwen2ForCausalLM"], "hidden_act": "silu", "hidden_size": 896,
  "intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 24, "num_attention_heads": 14,
  "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
  "sliding_window": 32768, "tie_word_embeddings": true, "torch_dtype": "bfloat16", "use_sliding_window": false,
  "vocab_size": 151936})";
constexpr std::string_view glm = R"({"architectures": ["GlmForCausalLM"], "attention_bias": true, "head_dim": 128,
  "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 13696, "max_position_embeddings": 131072,
  "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 2, "partial_rotary_factor": 0.5,
  "rms_norm_eps": 1.5625e-07, "rope_theta": 10000.0, "tie_word_embeddings": false,
  "eos_token_id": [151329, 151336, 151338], "vocab_size": 151552})";
constexpr std::string_view gpt2 = R"({"architectures": ["GPT2LMHeadModel"], "activation_function": "gelu_new",
  "layer_norm_epsilon": 1e-05, "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024,
  "n_inner": null, "eos_token_id": 50256, "vocab_size": 50257})";
constexpr std::string_view opt = R"({"architectures": ["OPTForCausalLM"], "activation_function": "relu",
  "do_layer_norm_before": false, "ffn_dim": 4096, "hidden_size": 1024, "max_position_embeddings": 2048,
  "num_attention_heads": 16, "num_hidden_layers": 24, "vocab_size": 50272, "word_embed_proj_dim": 512})";
constexpr std::string_view bloom = R"({"architectures": ["BloomForCausalLM"],
  "apply_residual_connection_post_layernorm": false, "layer_norm_epsilon": 1e-05, "n_embed": 1024, "n_layer": 24,
  "num_attention_heads": 16, "offset_alibi": 100, "vocab_size": 250880})";

model_config parsed(std::string_view text) { return parse_model_config(text, "config.json"); }

// The error when one field has another value; an empty value takes it out.
std::string error_with(std::string_view text, const std::string& key, const std::string& value) {
  std::string changed(text);
  if (auto at = changed.find('"' + key + '"'); at != changed.npos) {
    auto end = changed.find_first_of(",}", at);
    if (changed[end] == '}')  // the last one goes with the comma before it
      at = changed.rfind(',', at);
    else
      ++end;
    changed.erase(at, end - at);
  }
  if (!value.empty()) changed.insert(1, '"' + key + "\": " + value + ", ");
  return config_error_of([&] { parsed(changed); });
}

}  // namespace

TEST_CASE("each family's config.json is read as that family means it") {
  const auto q = parsed(qwen2);
  CHECK(q.head_dim == 64);
  CHECK(q.kv_heads == 2);
  CHECK(q.rotary_dims == 64);
  CHECK(q.qkv_bias);
  CHECK_FALSE(q.out_bias);
  CHECK(q.tie_embeddings);
  CHECK(q.rope_theta == 1e6);

  const auto g = parsed(glm);
  CHECK(g.rotary_dims == 64);
  CHECK(g.rotary_interleaved);
  CHECK(g.qkv_bias);
  CHECK_FALSE(g.out_bias);
  CHECK(g.norm_eps == 1.5625e-07f);
  CHECK(g.eos.size() == 3);

  const auto two = parsed(gpt2);
  CHECK(two.layers == 12);
  CHECK(two.intermediate == 3072);
  CHECK(two.norm == norm_type::layer);
  CHECK(two.positions == position_type::learned);
  CHECK(two.act == activation::gelu_tanh);
  CHECK_FALSE(two.gated);
  CHECK(two.tie_embeddings);
  CHECK(two.max_positions == 1024);

  const auto o = parsed(opt);
  CHECK(o.embedding_dim == 512);
  CHECK(o.hidden == 1024);
  CHECK(o.position_offset == 2);
  CHECK_FALSE(o.norm_first);
  CHECK_FALSE(o.final_norm);
  CHECK(o.act == activation::relu);
  CHECK(o.mlp_bias);

  const auto b = parsed(bloom);
  CHECK(b.hidden == 1024);
  CHECK(b.heads == 16);
  CHECK(b.kv_heads == 16);
  CHECK(b.intermediate == 4096);
  CHECK(b.embedding_norm);
  CHECK(b.positions == position_type::alibi);
  CHECK(b.max_positions == 2048);
}

TEST_CASE("rotary positions are read from wherever a file keeps them, as the reference does") {
  auto with = [](const std::string& more) {
    auto text = std::string(qwen2);
    text.erase(text.find("\"rope_theta\""), std::string_view("\"rope_theta\": 1000000.0,").size());
    return parsed("{" + more + ", " + text.substr(1));
  };
  CHECK(with(R"("rope_theta": 5)").rope_theta == 5);
  CHECK(with(R"("rope_parameters": {"rope_type": "default"})").rope_theta == 10000);
  CHECK(with(R"("rope_parameters": {"rope_theta": 7})").rope_theta == 7);
  CHECK(with(R"("rope_scaling": {"rope_type": "default", "rope_theta": 9}, "rope_theta": 5)").rope_theta == 9);
  CHECK(with(R"("rope_scaling": {}, "rope_parameters": {"rope_theta": 7})").rope_theta == 7);
  const auto scaled = with(R"("rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
    "high_freq_factor": 4}, "rope_theta": 5, "rope_parameters": {"rope_theta": 7})");
  REQUIRE(scaled.rope_scaling);
  CHECK(scaled.rope_scaling->original_positions == 32768);
  CHECK(scaled.rope_theta == 5);
  // Both present: the older one is not passed over in silence.
  CHECK(config_error_of([&] {
          with(R"("rope_parameters": {"rope_theta": 7}, "rope_scaling": {"type": "yarn", "factor": 4})");
        }) == "config.json: rope_scaling.type: yarn is not supported; default and llama3 are");
}

TEST_CASE("GLM's own defaults hold where its file is silent") {
  const auto g = parsed(R"({"architectures": ["GlmForCausalLM"], "hidden_size": 4096, "intermediate_size": 13696,
    "max_position_embeddings": 131072, "num_attention_heads": 32, "num_hidden_layers": 40, "rms_norm_eps": 1e-5,
    "vocab_size": 151552})");
  CHECK(g.kv_heads == 2);
  CHECK(g.head_dim == 128);
  CHECK(g.rotary_dims == 64);
  CHECK(g.qkv_bias);
}

TEST_CASE("what a family's checkpoint could ask for and nobody computes is refused by name") {
  CHECK(error_with(qwen2, "use_sliding_window", "true") == "config.json: use_sliding_window: true is not supported");
  CHECK(error_with(qwen2, "hidden_act", "\"gelu\"") == "config.json: hidden_act: gelu is not supported; silu is");
  CHECK(error_with(qwen2, "rms_norm_eps", "") == "config.json: rms_norm_eps: missing");
  CHECK(error_with(qwen2, "partial_rotary_factor", "0.5") ==
        "config.json: partial_rotary_factor: other than 1 is not supported in this family");
  CHECK(error_with(qwen2, "partial_rotary_factor", "1.0") == "[no error]");
  CHECK(error_with(glm, "partial_rotary_factor", "0") ==
        "config.json: partial_rotary_factor: turns 0 of head_dim 128, not an even number of at least 2");
  CHECK(error_with(glm, "partial_rotary_factor", "1.5") ==
        "config.json: partial_rotary_factor: turns 0 of head_dim 128, not an even number of at least 2");
  CHECK(error_with(glm, "partial_rotary_factor", "0.1016") ==
        "config.json: partial_rotary_factor: turns 13 of head_dim 128, not an even number of at least 2");
  CHECK(error_with(gpt2, "scale_attn_weights", "false") == "config.json: scale_attn_weights: false is not supported");
  CHECK(error_with(gpt2, "scale_attn_by_inverse_layer_idx", "true") ==
        "config.json: scale_attn_by_inverse_layer_idx: true is not supported");
  CHECK(error_with(gpt2, "activation_function", "\"tanh\"") ==
        "config.json: activation_function: tanh is not supported; gelu_new is");
  CHECK(error_with(gpt2, "n_head", "11") == "config.json: n_head: 11 does not divide n_embd 768");
  CHECK(error_with(gpt2, "n_embd", "") == "config.json: n_embd: missing");
  CHECK(error_with(gpt2, "n_inner", "7") == "config.json: n_inner: 7 is not even");
  CHECK(error_with(opt, "layer_norm_elementwise_affine", "false") ==
        "config.json: layer_norm_elementwise_affine: false is not supported");
  CHECK(error_with(opt, "activation_function", "\"silu\"") ==
        "config.json: activation_function: silu is not supported; relu and gelu are");
  CHECK(error_with(opt, "word_embed_proj_dim", "511") == "config.json: word_embed_proj_dim: 511 is not even");
  CHECK(error_with(opt, "ffn_dim", "") == "config.json: ffn_dim: missing");
  CHECK(error_with(bloom, "apply_residual_connection_post_layernorm", "true") ==
        "config.json: apply_residual_connection_post_layernorm: true is not supported");
  CHECK(error_with(bloom, "n_embed", "") == "config.json: n_embed: missing");
  CHECK(error_with(bloom, "num_attention_heads", "0") == "config.json: num_attention_heads: 0 is not in 1 to 1024");
}

TEST_CASE("a field of any family's file that is not what it should be is refused by its own name") {
  // What says nothing about the computation is not looked at.
  const std::set<std::string, std::less<>> unread{"max_window_layers", "sliding_window", "n_ctx", "offset_alibi"};
  std::size_t refused = 0;
  for (auto text : {qwen2, glm, gpt2, opt, bloom}) {
    const auto whole = boost::json::parse(text).as_object();
    REQUIRE(config_error_of([&] { parsed(text); }) == "[no error]");
    for (auto& [name, value] : whole) {
      if (unread.contains(name)) continue;
      std::vector<std::string> wrong{"{}", "\"\\n\"", "[[]]", "[1, \"a\"]"};
      if (value.is_int64() || value.is_double())
        wrong.insert(wrong.end(), {"true", "\"7\"", "-1", "1e300", "-0.5", "99999999999999999999"});
      if (value.is_int64() && name != "eos_token_id")
        wrong.insert(wrong.end(), {"0", "1.5", "1e-400", "4294967296", "[]"});
      if (value.is_bool()) wrong.insert(wrong.end(), {"0", "\"true\"", "[]"});
      if (value.is_string()) wrong.insert(wrong.end(), {"0", "true", "[]", "\"\""});
      for (auto& w : wrong) {
        auto changed = whole;
        changed[name] = boost::json::parse(w);
        const auto error = config_error_of([&] { parsed(boost::json::serialize(changed)); });
        INFO(std::string(name) << ": " << w);
        CHECK(error.starts_with("config.json: " + std::string(name)));
        CHECK(error.find('\n') == error.npos);
        ++refused;
      }
      auto changed = whole;
      changed.erase(name);
      const auto without = config_error_of([&] { parsed(boost::json::serialize(changed)); });  // a default, or named
      INFO(without);
      CHECK((without == "[no error]" || without.ends_with(": missing")));  // by one of its names
    }
  }
  CHECK(refused > 300);
}
