#include "cokv/engine/model_config.hpp"

#include <cmath>

#include "cokv/runtime/detail/json_file.hpp"

namespace cokv {
namespace {

using detail::fields;
using detail::kind_name;
using detail::printable;

constexpr std::uint64_t config_limit = 1 << 20;

std::uint32_t u32(const fields& f, std::string_view key, std::uint64_t low, std::uint64_t high) {
  return static_cast<std::uint32_t>(f.uint(key, low, high));
}

void read_architecture(const fields& f, model_config& out) {
  auto& list = f.array("architectures");
  if (list.size() != 1 || !list[0].is_string()) f.fail("architectures", "expected a list of one name");
  out.architecture = list[0].get_string().c_str();
  if (out.architecture != "LlamaForCausalLM")
    f.fail("architectures", printable(out.architecture) + " is not supported; LlamaForCausalLM is");
  if (f.has("hidden_act") && f.string("hidden_act") != "silu")
    f.fail("hidden_act", printable(f.string("hidden_act")) + " is not supported; silu is");
  for (auto* key : {"attention_bias", "mlp_bias"})
    if (f.boolean_or(key, false)) f.fail(key, "true is not supported");
  if (f.has("quantization_config")) f.fail("quantization_config", "quantized checkpoints are not supported");
}

void read_sizes(const fields& f, model_config& out) {
  out.layers = u32(f, "num_hidden_layers", 1, 1024);
  out.hidden = u32(f, "hidden_size", 1, 1 << 17);
  out.heads = u32(f, "num_attention_heads", 1, 1024);
  out.kv_heads = static_cast<std::uint32_t>(f.uint_or("num_key_value_heads", out.heads, 1, 1024));
  if (out.heads % out.kv_heads != 0)
    f.fail("num_key_value_heads",
           std::to_string(out.kv_heads) + " does not divide num_attention_heads " + std::to_string(out.heads));
  if (!f.has("head_dim") && out.hidden % out.heads != 0)
    f.fail("head_dim", "missing, and hidden_size " + std::to_string(out.hidden) +
                           " is not a multiple of num_attention_heads " + std::to_string(out.heads));
  // The default passes through the same check: it may be out of range as well.
  out.head_dim = f.has("head_dim") ? u32(f, "head_dim", 2, 1024) : out.hidden / out.heads;
  if (out.head_dim < 2 || out.head_dim > 1024 || out.head_dim % 2 != 0)
    f.fail("head_dim", std::to_string(out.head_dim) + " is not an even number in 2 to 1024");
  out.intermediate = u32(f, "intermediate_size", 1, 1 << 20);
  out.vocab = u32(f, "vocab_size", 1, 1 << 22);
  out.max_positions = u32(f, "max_position_embeddings", 1, 1 << 24);
  auto eps = f.number("rms_norm_eps");
  if (!(eps > 0 && eps < 1)) f.fail("rms_norm_eps", "not above 0 and below 1");
  out.rms_eps = static_cast<float>(eps);
  out.tie_embeddings = f.boolean_or("tie_word_embeddings", false);
}

double positive(const fields& f, std::string_view key) {
  auto value = f.number(key);
  if (!(value > 0 && value <= 1e12)) f.fail(key, "not above 0 and at most 1e12");
  return value;
}

void read_scaling(const fields& s, model_config& out) {
  // Older files say "type".
  std::string_view key = s.has("rope_type") || !s.has("type") ? "rope_type" : "type";
  auto type = s.string(key);
  if (type == "default") return;
  if (type != "llama3") s.fail(key, printable(type) + " is not supported; default and llama3 are");
  rope_llama3 r;
  r.factor = positive(s, "factor");
  r.low_frequency_factor = positive(s, "low_freq_factor");
  r.high_frequency_factor = positive(s, "high_freq_factor");
  if (r.high_frequency_factor <= r.low_frequency_factor) s.fail("high_freq_factor", "not above low_freq_factor");
  r.original_positions = u32(s, "original_max_position_embeddings", 1, 1 << 24);
  out.rope_scaling = r;
}

void read_rope(const fields& f, model_config& out) {
  // Newer files keep theta and scaling together in rope_parameters.
  if (f.has("rope_parameters")) {
    auto parameters = f.object("rope_parameters");
    out.rope_theta = positive(parameters, "rope_theta");
    read_scaling(parameters, out);
    return;
  }
  if (f.has("rope_theta")) out.rope_theta = positive(f, "rope_theta");
  if (f.has("rope_scaling")) read_scaling(f.object("rope_scaling"), out);
}

std::vector<token_id> read_eos(const fields& f, std::uint32_t vocab) {
  auto* v = f.find("eos_token_id");
  std::vector<token_id> out;
  if (!v) return out;
  if (!v->is_array()) return {static_cast<token_id>(f.uint("eos_token_id", 0, vocab - 1))};
  for (auto& item : v->get_array()) {
    auto place = f.place("eos_token_id[" + std::to_string(out.size()) + "]");
    out.push_back(static_cast<token_id>(detail::to_uint(item, place, 0, vocab - 1)));
  }
  return out;
}

std::optional<dtype> read_type(const fields& f) {
  std::string_view key = f.has("torch_dtype") ? "torch_dtype" : "dtype";
  if (!f.has(key)) return std::nullopt;
  auto name = f.string(key);
  if (name == "bfloat16") return dtype::bf16;
  if (name == "float16") return dtype::f16;
  if (name == "float32") return dtype::f32;
  f.fail(key, printable(name) + " is not supported; bfloat16, float16 and float32 are");
}

void read_generation(const fields& g, model_config& out) {
  if (auto eos = read_eos(g, out.vocab); !eos.empty()) out.eos = std::move(eos);
  out.sampling.temperature = static_cast<float>(g.number_or("temperature", out.sampling.temperature));
  out.sampling.top_k = static_cast<std::uint32_t>(g.uint_or("top_k", 0, 0, 1 << 22));
  out.sampling.top_p = static_cast<float>(g.number_or("top_p", out.sampling.top_p));
  if (!g.boolean_or("do_sample", true)) out.sampling.temperature = 0;
  if (auto problem = check(out.sampling)) throw config_error(g.place(*problem));
}

}  // namespace

model_config parse_model_config(std::string_view config, const std::string& config_name, std::string_view generation,
                                const std::string& generation_name) {
  auto value = detail::parse_json(config, config_name);
  fields f(value, config_name + ": ");
  model_config out;
  read_architecture(f, out);
  read_sizes(f, out);
  read_rope(f, out);
  out.stored_type = read_type(f);
  if (f.has("bos_token_id")) out.bos = static_cast<token_id>(f.uint("bos_token_id", 0, out.vocab - 1));
  out.eos = read_eos(f, out.vocab);
  if (!generation.empty()) {
    auto more = detail::parse_json(generation, generation_name);
    read_generation(fields(more, generation_name + ": "), out);
  }
  return out;
}

model_config load_model_config(const std::filesystem::path& dir) {
  auto config = dir / "config.json", generation = dir / "generation_config.json";
  auto text = detail::read_file(config, config_limit);
  std::error_code ec;
  if (!std::filesystem::exists(generation, ec)) return parse_model_config(text, config.string());
  auto more = detail::read_file(generation, config_limit);
  if (more.empty()) throw config_error(generation.string() + ": empty");
  return parse_model_config(text, config.string(), more, generation.string());
}

}  // namespace cokv
