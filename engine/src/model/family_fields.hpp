// Fields of config.json that several families have, under whatever names.
#pragma once

#include <cstdint>
#include <string_view>

#include "cokv/engine/model_config.hpp"
#include "cokv/runtime/detail/json_file.hpp"

namespace cokv {

std::uint32_t read_u32(const detail::fields& f, std::string_view key, std::uint64_t low, std::uint64_t high);
// The first of two names that the file has; the first's when it has neither.
std::string_view either(const detail::fields& f, std::string_view key, std::string_view other);

struct size_names {
  std::string_view layers = "num_hidden_layers", hidden = "hidden_size", heads = "num_attention_heads",
                   positions = "max_position_embeddings";
};
// Layers, hidden, heads, vocabulary, and positions unless their name is empty.
void read_sizes(const detail::fields& f, const size_names& names, model_config& out);
// Every head has keys and values of its own, and is hidden / heads wide.
void read_plain_heads(const detail::fields& f, const size_names& names, model_config& out);
// num_key_value_heads and head_dim; a family's own defaults where the file has none, else heads and hidden / heads.
struct head_defaults {
  std::uint32_t kv_heads = 0, head_dim = 0;  // 0: none of its own
};
void read_grouped_heads(const detail::fields& f, model_config& out, head_defaults otherwise = {});
void read_intermediate(const detail::fields& f, std::string_view key, model_config& out);
// The field where the file has it, else four times hidden.
void read_intermediate_or_fourfold(const detail::fields& f, std::string_view key, model_config& out);

void read_norm_eps(const detail::fields& f, std::string_view key, model_config& out);
// rope_theta and rope_scaling, or rope_parameters with both, as newer files have it; whole heads are turned.
void read_rotary(const detail::fields& f, model_config& out);
// Then partial_rotary_factor: in families that know it, and in those whose heads turn as a whole whatever it says.
void read_rotary_part(const detail::fields& f, double otherwise, model_config& out);
void require_whole_heads_rotary(const detail::fields& f);

// The named activation, which must be the one that this family is supported with.
void require_activation(const detail::fields& f, std::string_view key, std::string_view only);
// A switch that changes what is computed, in a way that is not supported.
void require_flag(const detail::fields& f, std::string_view key, bool only);

}  // namespace cokv
