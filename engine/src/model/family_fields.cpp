#include "model/family_fields.hpp"

#include <cmath>
#include <string>

namespace cokv {
namespace {

using detail::fields;
using detail::printable;

constexpr std::uint64_t widest_head = 1024, widest = 1 << 17, widest_mlp = 1 << 20;

void require_even(const fields& f, std::string_view key, std::uint32_t value) {
  if (value % 2 != 0) f.fail(key, std::to_string(value) + " is not even");
}

void check_head_dim(const fields& f, std::string_view key, std::uint32_t value) {
  if (value < 2 || value > widest_head || value % 2 != 0)
    f.fail(key, std::to_string(value) + " is not an even number in 2 to " + std::to_string(widest_head));
}

double positive(const fields& f, std::string_view key) {
  auto value = f.number(key);
  if (!(value > 0 && value <= 1e12)) f.fail(key, "not above 0 and at most 1e12");
  return value;
}

// Where a file keeps what belongs to rotary positions: the older name counts where it holds something, as in the
// reference; the file itself where it has neither.
fields rotary_fields(const fields& f) {
  for (auto* key : {"rope_scaling", "rope_parameters"})
    if (f.has(key))
      if (auto found = f.object(key); !found.raw().empty()) return found;
  return f;
}

void read_scaling(const fields& s, model_config& out) {
  auto key = either(s, "rope_type", "type");  // older files say "type"
  auto type = s.has(key) ? s.string(key) : "default";
  if (type == "default") return;
  if (type != "llama3") s.fail(key, printable(type) + " is not supported; default and llama3 are");
  rope_llama3 r;
  r.factor = positive(s, "factor");
  r.low_frequency_factor = positive(s, "low_freq_factor");
  r.high_frequency_factor = positive(s, "high_freq_factor");
  if (r.high_frequency_factor <= r.low_frequency_factor) s.fail("high_freq_factor", "not above low_freq_factor");
  r.original_positions =
      static_cast<std::uint32_t>(s.uint_or("original_max_position_embeddings", out.max_positions, 1, 1 << 24));
  out.rope_scaling = r;
}

}  // namespace

std::uint32_t read_u32(const fields& f, std::string_view key, std::uint64_t low, std::uint64_t high) {
  return static_cast<std::uint32_t>(f.uint(key, low, high));
}

std::string_view either(const fields& f, std::string_view key, std::string_view other) {
  return f.has(key) || !f.has(other) ? key : other;
}

void read_sizes(const fields& f, const size_names& names, model_config& out) {
  out.layers = read_u32(f, names.layers, 1, 1024);
  out.hidden = read_u32(f, names.hidden, 2, widest);
  require_even(f, names.hidden, out.hidden);
  out.embedding_dim = out.hidden;
  out.heads = read_u32(f, names.heads, 1, 1024);
  out.vocab = read_u32(f, "vocab_size", 1, 1 << 22);
  if (!names.positions.empty()) out.max_positions = read_u32(f, names.positions, 1, 1 << 24);
}

void read_plain_heads(const fields& f, const size_names& names, model_config& out) {
  out.kv_heads = out.heads;
  if (out.hidden % out.heads != 0)
    f.fail(names.heads, std::to_string(out.heads) + " does not divide " + std::string(names.hidden) + " " +
                            std::to_string(out.hidden));
  out.head_dim = out.hidden / out.heads;
  check_head_dim(f, "head_dim", out.head_dim);
}

void read_grouped_heads(const fields& f, model_config& out, head_defaults otherwise) {
  out.kv_heads = static_cast<std::uint32_t>(
      f.uint_or("num_key_value_heads", otherwise.kv_heads ? otherwise.kv_heads : out.heads, 1, 1024));
  if (out.heads % out.kv_heads != 0)
    f.fail("num_key_value_heads",
           std::to_string(out.kv_heads) + " does not divide num_attention_heads " + std::to_string(out.heads));
  if (!f.has("head_dim") && otherwise.head_dim) {
    out.head_dim = otherwise.head_dim;
    return;
  }
  if (!f.has("head_dim") && out.hidden % out.heads != 0)
    f.fail("head_dim", "missing, and hidden_size " + std::to_string(out.hidden) +
                           " is not a multiple of num_attention_heads " + std::to_string(out.heads));
  // The default passes through the same check: it may be out of range as well.
  out.head_dim = f.has("head_dim") ? read_u32(f, "head_dim", 2, widest_head) : out.hidden / out.heads;
  check_head_dim(f, "head_dim", out.head_dim);
}

void read_intermediate(const fields& f, std::string_view key, model_config& out) {
  out.intermediate = read_u32(f, key, 2, widest_mlp);
  require_even(f, key, out.intermediate);
}

void read_intermediate_or_fourfold(const fields& f, std::string_view key, model_config& out) {
  if (f.has(key)) return read_intermediate(f, key, out);
  out.intermediate = 4 * out.hidden;
}

void read_norm_eps(const fields& f, std::string_view key, model_config& out) {
  auto eps = f.number(key);
  if (!(eps > 0 && eps < 1)) f.fail(key, "not above 0 and below 1");
  out.norm_eps = static_cast<float>(eps);
}

void read_rotary(const fields& f, model_config& out) {
  out.positions = position_type::rotary;
  out.rotary_dims = out.head_dim;
  const auto rotary = rotary_fields(f);
  if (rotary.has("rope_theta"))
    out.rope_theta = positive(rotary, "rope_theta");
  else if (f.has("rope_theta"))
    out.rope_theta = positive(f, "rope_theta");
  if (&rotary.raw() != &f.raw()) read_scaling(rotary, out);
}

void require_whole_heads_rotary(const fields& f) {
  for (const auto& place : {rotary_fields(f), f})
    if (place.number_or("partial_rotary_factor", 1) != 1)
      place.fail("partial_rotary_factor", "other than 1 is not supported in this family");
}

void read_rotary_part(const fields& f, double otherwise, model_config& out) {
  const auto rotary = rotary_fields(f);
  const auto& place = rotary.has("partial_rotary_factor") ? rotary : f;
  const auto part = place.number_or("partial_rotary_factor", otherwise);
  const auto dims = part > 0 && part <= 1 ? static_cast<std::uint32_t>(out.head_dim * part) : 0;
  if (dims < 2 || dims % 2 != 0)
    place.fail("partial_rotary_factor", "turns " + std::to_string(dims) + " of head_dim " +
                                            std::to_string(out.head_dim) + ", not an even number of at least 2");
  out.rotary_dims = dims;
}

void require_activation(const fields& f, std::string_view key, std::string_view only) {
  if (f.has(key) && f.string(key) != only)
    f.fail(key, printable(f.string(key)) + " is not supported; " + std::string(only) + " is");
}

void require_flag(const fields& f, std::string_view key, bool only) {
  if (f.boolean_or(key, only) != only) f.fail(key, std::string(only ? "false" : "true") + " is not supported");
}

}  // namespace cokv
