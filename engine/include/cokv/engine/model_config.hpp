// What a checkpoint's config.json and generation_config.json say, typed and checked once: sizes, positions, end tokens,
// sampling defaults. Whoever holds a model_config may rely on every field; nothing else reads those files.
//
//     cokv::model_config config = cokv::load_model_config("models/tiny-kjv");
//     auto q_width = config.heads * config.head_dim;
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cokv/engine/sampler.hpp"
#include "cokv/engine/token.hpp"
#include "cokv/kvstream/dtype.hpp"
#include "cokv/kvstream/id256.hpp"

namespace cokv {

class weights;

// Llama 3's stretch of the rotary frequencies. A frequency whose wavelength is above original_positions /
// low_frequency_factor is divided by factor, one below original_positions / high_frequency_factor stays, and between
// the two they blend linearly in original_positions / wavelength.
struct rope_llama3 {
  double factor = 1;
  double low_frequency_factor = 1;
  double high_frequency_factor = 4;
  std::uint32_t original_positions = 8192;
};

struct model_config {
  std::string architecture;         // "LlamaForCausalLM"
  std::uint32_t layers = 0;         // num_hidden_layers
  std::uint32_t hidden = 0;         // hidden_size
  std::uint32_t heads = 0;          // num_attention_heads
  std::uint32_t kv_heads = 0;       // num_key_value_heads; divides heads
  std::uint32_t head_dim = 0;       // even; hidden / heads where the file does not say
  std::uint32_t intermediate = 0;   // intermediate_size
  std::uint32_t vocab = 0;          // vocab_size: rows of the embedding, at least the tokenizer's
  std::uint32_t max_positions = 0;  // max_position_embeddings: the longest sequence, prompt and answer together
  float rms_eps = 1e-6f;            // rms_norm_eps
  double rope_theta = 10000;
  std::optional<rope_llama3> rope_scaling;
  bool tie_embeddings = false;       // the output matrix is the embedding
  std::optional<dtype> stored_type;  // torch_dtype (or dtype); the tensors themselves have the last word
  std::optional<token_id> bos;
  std::vector<token_id> eos;  // any of these ends a sequence; generation_config.json's, else config.json's
  sampling_params sampling;   // what a request that says nothing gets
};

// Reads DIR/config.json and, where it exists, DIR/generation_config.json. Throws config_error naming file and field.
model_config load_model_config(const std::filesystem::path& dir);

// The same from texts; the names stand in messages. An empty generation text means that there is no such file.
model_config parse_model_config(std::string_view config, const std::string& config_name,
                                std::string_view generation = {}, const std::string& generation_name = {});

using load_progress = std::function<void(std::uint64_t done, std::uint64_t total)>;  // bytes

// Names the function that a model computes, so KV of one model is never read as another's: SHA-256 over the fields of
// the config that change KV, and for each tensor in the order of names, its name, type, shape and XXH3-128 of all its
// bytes. How tensors are spread over files, sampling defaults and end tokens do not change it; one flipped weight bit
// does. It guards against accidents: XXH3 does not resist someone who makes a collision on purpose. Every weight byte
// is read once (memory speed when cached, disk speed when not), which also brings the mapped pages in.
id256 fingerprint(const model_config& config, const weights& tensors, const load_progress& progress = {});

}  // namespace cokv
