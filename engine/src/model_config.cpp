#include "cokv/engine/model_config.hpp"

#include "cokv/runtime/detail/json_file.hpp"
#include "model/family.hpp"

namespace cokv {
namespace {

using detail::fields;
using detail::printable;

constexpr std::uint64_t config_limit = 1 << 20;

const family& read_architecture(const fields& f, model_config& out) {
  auto& list = f.array("architectures");
  if (list.size() != 1 || !list[0].is_string()) f.fail("architectures", "expected a list of one name");
  out.architecture = list[0].get_string().c_str();
  if (f.has("quantization_config")) f.fail("quantization_config", "quantized checkpoints are not supported");
  auto* found = find_family(out.architecture);
  if (!found) f.fail("architectures", printable(out.architecture) + " is not supported; " + family_names() + " are");
  return *found;
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
  out.sampling.min_p = static_cast<float>(g.number_or("min_p", 0));
  out.sampling.repetition_penalty = static_cast<float>(g.number_or("repetition_penalty", 1));
  if (!g.boolean_or("do_sample", true)) out.sampling.temperature = 0;
  if (auto problem = check(out.sampling)) throw config_error(g.place(*problem));
}

}  // namespace

model_config parse_model_config(std::string_view config, const std::string& config_name, std::string_view generation,
                                const std::string& generation_name) {
  auto value = detail::parse_json(config, config_name);
  fields f(value, config_name + ": ");
  model_config out;
  read_architecture(f, out).read(f, out);
  out.stored_type = read_type(f);
  if (f.has("bos_token_id")) out.bos = static_cast<token_id>(f.uint("bos_token_id", 0, out.vocab - 1));
  out.eos = read_eos(f, out.vocab);
  if (!generation.empty()) {
    auto more = detail::parse_json(generation, generation_name);
    read_generation(fields(more, generation_name + ": "), out);
  }
  return out;
}

model_config load_model_config_file(const std::filesystem::path& config_json) {
  return parse_model_config(detail::read_file(config_json, config_limit), config_json.string());
}

model_config load_model_config(const std::filesystem::path& dir) {
  auto config = dir / "config.json", generation = dir / "generation_config.json";
  std::error_code ec;
  if (!std::filesystem::exists(generation, ec)) return load_model_config_file(config);
  auto text = detail::read_file(config, config_limit);
  auto more = detail::read_file(generation, config_limit);
  if (more.empty()) throw config_error(generation.string() + ": empty");
  return parse_model_config(text, config.string(), more, generation.string());
}

}  // namespace cokv
