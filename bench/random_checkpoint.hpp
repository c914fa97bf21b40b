// A checkpoint of a given shape with random weights: what a model costs does not depend on what it has learned.
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace cokv::bench {

struct model_shape {
  std::uint32_t layers = 24, hidden = 896, heads = 14, kv_heads = 2, intermediate = 4864, vocab = 151936;

  std::uint64_t parameters() const {
    const std::uint64_t h = hidden, kv = h / heads * kv_heads;
    return vocab * h + h + layers * (2 * h + 2 * h * h + 2 * h * kv + 3 * h * intermediate);
  }
};

// config.json and model.safetensors, in bf16, embeddings tied.
inline void write_random_checkpoint(const std::filesystem::path& folder, const model_shape& m) {
  namespace json = boost::json;
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << json::serialize(json::object{{"architectures", {"LlamaForCausalLM"}},
                                                                        {"torch_dtype", "bfloat16"},
                                                                        {"hidden_act", "silu"},
                                                                        {"tie_word_embeddings", true},
                                                                        {"hidden_size", m.hidden},
                                                                        {"num_hidden_layers", m.layers},
                                                                        {"num_attention_heads", m.heads},
                                                                        {"num_key_value_heads", m.kv_heads},
                                                                        {"intermediate_size", m.intermediate},
                                                                        {"vocab_size", m.vocab},
                                                                        {"max_position_embeddings", 32768},
                                                                        {"rms_norm_eps", 1e-6},
                                                                        {"rope_theta", 1000000.0}});
  struct tensor {
    std::string name;
    std::vector<std::uint64_t> shape;
  };
  const std::uint64_t h = m.hidden, kv = h / m.heads * m.kv_heads, i = m.intermediate;
  std::vector<tensor> all = {{"model.embed_tokens.weight", {m.vocab, h}}, {"model.norm.weight", {h}}};
  for (std::uint32_t l = 0; l < m.layers; ++l) {
    const auto p = "model.layers." + std::to_string(l) + ".";
    all.insert(all.end(), {{p + "input_layernorm.weight", {h}},
                           {p + "post_attention_layernorm.weight", {h}},
                           {p + "self_attn.q_proj.weight", {h, h}},
                           {p + "self_attn.k_proj.weight", {kv, h}},
                           {p + "self_attn.v_proj.weight", {kv, h}},
                           {p + "self_attn.o_proj.weight", {h, h}},
                           {p + "mlp.gate_proj.weight", {i, h}},
                           {p + "mlp.up_proj.weight", {i, h}},
                           {p + "mlp.down_proj.weight", {h, i}}});
  }
  json::object header;
  std::uint64_t at = 0;
  auto elements = [](const tensor& t) {
    std::uint64_t n = 1;
    for (auto d : t.shape) n *= d;
    return n;
  };
  for (const auto& t : all) {
    const auto end = at + 2 * elements(t);
    header[t.name] =
        json::object{{"dtype", "BF16"}, {"shape", json::value_from(t.shape)}, {"data_offsets", json::array{at, end}}};
    at = end;
  }
  auto text = json::serialize(header);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::ofstream out(folder / "model.safetensors", std::ios::binary);
  const std::uint64_t size = text.size();
  out.write(reinterpret_cast<const char*>(&size), sizeof size);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  std::uint64_t random = 1;
  std::vector<std::uint16_t> row;
  for (const auto& t : all) {
    row.assign(elements(t), 0x3f80);  // a norm's weights are 1,
    if (t.shape.size() == 2)          // a matrix's between 2^-6 and 2^-5, or as far below 0
      for (auto& x : row) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        x = static_cast<std::uint16_t>(((random >> 63) << 15) | (121u << 7) | ((random >> 40) & 127));
      }
    out.write(reinterpret_cast<const char*>(row.data()), static_cast<std::streamsize>(2 * row.size()));
  }
  out.flush();
  if (!out) throw std::runtime_error("writing " + (folder / "model.safetensors").string());
}

}  // namespace cokv::bench
