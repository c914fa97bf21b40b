// A family of checkpoints: how its config.json is read and which of its tensors is which. What they compute is one
// decoder's business; a family is two functions in a file of its own.
#pragma once

#include <string>
#include <string_view>

#include "cokv/engine/model_config.hpp"
#include "cokv/runtime/detail/json_file.hpp"
#include "model/tensor_source.hpp"

namespace cokv {

struct family {
  std::string_view architecture;  // as config.json's "architectures" has it
  // Fills in the shape; what all families share (end tokens, stored type) is read elsewhere. config_error: file and field.
  void (*read)(const detail::fields& f, model_config& out);
  // In the order of computation.
  decoder_tensors (*bind)(const model_config& c, tensor_source& from);
};

namespace families {
extern const family bloom, glm, gpt2, llama, opt, qwen2;
}

const family* find_family(std::string_view architecture) noexcept;
std::string family_names();  // "BloomForCausalLM, ... and Qwen2ForCausalLM"

}  // namespace cokv
