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

// rms: x / sqrt(mean(x^2) + eps) * weight. layer: (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias.
enum class norm_type : std::uint8_t { rms, layer };

// gelu by the error function, gelu_tanh by its approximation (Hendrycks and Gimpel, arXiv:1606.08415).
enum class activation : std::uint8_t { silu, relu, gelu, gelu_tanh };

// rotary: queries and keys are turned by their position (Su et al., arXiv:2104.09864). learned: a row of a table is added
// to the embedding. alibi: a score falls by a slope of its head times the distance (Press et al., arXiv:2108.12409).
enum class position_type : std::uint8_t { rotary, learned, alibi };

// The shape of a decoder, whatever its family calls the fields; README lists the families.
struct model_config {
  std::string architecture;         // "LlamaForCausalLM"
  std::uint32_t layers = 0;         // num_hidden_layers
  std::uint32_t hidden = 0;         // hidden_size; even
  std::uint32_t heads = 0;          // num_attention_heads
  std::uint32_t kv_heads = 0;       // num_key_value_heads; divides heads
  std::uint32_t head_dim = 0;       // even; hidden / heads where the file does not say
  std::uint32_t intermediate = 0;   // intermediate_size; even
  std::uint32_t vocab = 0;          // vocab_size: rows of the embedding, at least the tokenizer's
  std::uint32_t max_positions = 0;  // max_position_embeddings: the longest sequence, prompt and answer together
  std::uint32_t embedding_dim = 0;  // hidden, unless the embedding is projected to it and back (word_embed_proj_dim)

  norm_type norm = norm_type::rms;
  float norm_eps = 1e-6f;
  bool norm_first = true;       // norms before attention and before the MLP; false: after each is added
  bool final_norm = true;       // one before the output matrix
  bool embedding_norm = false;  // one after the embedding

  position_type positions = position_type::rotary;
  double rope_theta = 10000;
  std::optional<rope_llama3> rope_scaling;
  std::uint32_t rotary_dims = 0;      // of each head, its first; even
  bool rotary_interleaved = false;    // neighbours are turned together, not elements half of rotary_dims apart
  std::uint32_t position_offset = 0;  // learned: the row of position 0

  activation act = activation::silu;
  bool gated = true;  // the MLP is down(act(gate(x)) * up(x)), else down(act(up(x)))
  bool qkv_bias = false, out_bias = false, mlp_bias = false;
  bool tie_embeddings = false;  // the output matrix is the embedding

  std::optional<dtype> stored_type;  // torch_dtype (or dtype); the tensors themselves have the last word
  std::optional<token_id> bos;
  std::vector<token_id> eos;  // any of these ends a sequence; generation_config.json's, else config.json's
  sampling_params sampling;   // what a request that says nothing gets
};

// Reads DIR/config.json and, where it exists, DIR/generation_config.json. Throws config_error naming file and field.
model_config load_model_config(const std::filesystem::path& dir);

// One file alone.
model_config load_model_config_file(const std::filesystem::path& config_json);

// The same from texts; the names stand in messages. An empty generation text means that there is no such file.
model_config parse_model_config(std::string_view config, const std::string& config_name,
                                std::string_view generation = {}, const std::string& generation_name = {});

using load_progress =
    std::function<void(std::uint64_t done, std::uint64_t total)>;  // bytes; on any thread, one at a time

// Names the function that a model computes, so KV of one model is never read as another's: SHA-256 over the fields of
// the config that change KV, and for each tensor in the order of names, its name, type, shape and XXH3-128 of every
// 16 MiB of it. How tensors are spread over files, sampling defaults and end tokens do not change it; one flipped weight bit
// does. It guards against accidents: XXH3 does not resist someone who makes a collision on purpose. Every weight byte
// is read once (memory speed when cached, disk speed when not), which also brings the mapped pages in.
id256 fingerprint(const model_config& config, const weights& all, const load_progress& progress = {});

// The same for a model whose weights are random numbers.
id256 fingerprint(const model_config& config, std::uint64_t seed);

}  // namespace cokv
