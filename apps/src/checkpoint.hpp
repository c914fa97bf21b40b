// What has to hold between the parts of a checkpoint, and between it and the command line, before a model is loaded or
// an engine made. Each throws config_error, one line that names the file or the flag.
//
//     const auto config = load_config(o.model);
//     check_vocabulary(o.model, text, config);
//     check_holds_a_block("--kv-host", o.kv_host, kv_block_bytes(config, dtype::bf16, 16));
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "cokv/engine/model.hpp"
#include "cokv/engine/tokenizer.hpp"
#include "cokv/runtime/error.hpp"

namespace cokv {

// --model and --random-weights.
struct checkpoint_options {
  std::string dir;             // tokenizer.json and, unless random_weights has a name, config.json and weights
  std::string random_weights;  // a config.json: random weights of its shape
};
model_config load_config(const checkpoint_options& o);
// Of a config.json, or of a directory with one.
model_config load_config(const std::string& path);
std::shared_ptr<model> load(const checkpoint_options& o, model_options how);

// A token that the tokenizer makes and the embedding has no row for could not be computed.
void check_vocabulary(const checkpoint_options& o, const tokenizer& text, const model_config& config);

std::uint64_t kv_block_bytes(const model_config& config, dtype type, std::uint32_t block_tokens);

// `around`: bytes that a block takes beside its own.
void check_holds_a_block(std::string_view flag, std::uint64_t bytes, std::uint64_t block, std::uint64_t around = 0);

// The engine names its options; a command line has them as flags ("kv-blocks: ..." is --kv-blocks').
config_error by_flag(const config_error& e);

}  // namespace cokv
