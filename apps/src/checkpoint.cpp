#include "checkpoint.hpp"

#include <filesystem>

#include "cokv/kvstream/geometry.hpp"
#include "cokv/runtime/size.hpp"

namespace cokv {

model_config load_config(const checkpoint_options& o) {
  return o.random_weights.empty() ? load_model_config(o.dir) : load_model_config_file(o.random_weights);
}

model_config load_config(const std::string& path) {
  return std::filesystem::is_directory(path) ? load_model_config(path) : load_model_config_file(path);
}

std::shared_ptr<model> load(const checkpoint_options& o, model_options how) {
  return o.random_weights.empty() ? load_model(o.dir, std::move(how)) : random_model(o.random_weights, std::move(how));
}

void check_vocabulary(const checkpoint_options& o, const tokenizer& text, const model_config& config) {
  if (text.size() > config.vocab)
    throw config_error(o.dir + ": its tokenizer has token ids up to " + std::to_string(text.size() - 1) + ", and " +
                       (o.random_weights.empty() ? "config.json" : o.random_weights) + "'s vocab_size is " +
                       std::to_string(config.vocab));
}

std::uint64_t kv_block_bytes(const model_config& config, dtype type, std::uint32_t block_tokens) {
  return geometry::attention(config.layers, config.kv_heads, config.head_dim, type, block_tokens).block_bytes();
}

void check_holds_a_block(std::string_view flag, std::uint64_t bytes, std::uint64_t block, std::uint64_t around) {
  if (bytes < block + around)
    throw config_error(std::string(flag) + ": " + format_size(bytes) + (bytes < 1024 ? " bytes" : "") +
                       " can't hold one KV block of this model (" + format_size(block) + ')');
}

config_error by_flag(const config_error& e) {
  const std::string text = e.what();
  if (text.starts_with("topology: ")) return config_error("--stage-starts" + text.substr(8));
  for (const char* option : {"block-tokens:", "kv-blocks:", "max-batched-tokens:", "max-requests:", "max-running:",
                             "max-sequence:", "pipeline:", "swap:", "tensor:"})
    if (text.starts_with(option)) return config_error("--" + text);
  return e;
}

}  // namespace cokv
