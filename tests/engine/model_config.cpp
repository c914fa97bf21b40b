#include "cokv/engine/model_config.hpp"

#include <doctest/doctest.h>

#include "files.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

// The bundled config with one line replaced: the key's value, or the whole pair where `pair` is empty.
std::string with(const std::string& key, const std::string& value) {
  auto text = slurp(tiny() / "config.json");
  auto at = text.find("\"" + key + "\"");
  if (at == text.npos) return "{\"" + key + "\": " + value + ", " + text.substr(text.find('{') + 1);
  auto end = text.find_first_of(",\n", at);
  if (text[text.find(':', at) + 2] == '[') end = text.find(']', at) + 1;
  return text.substr(0, at) + "\"" + key + "\": " + value + text.substr(end);
}

std::string error_with(const std::string& key, const std::string& value) {
  return config_error_of([&] { parse_model_config(with(key, value), "config.json"); });
}

std::string generation_error(const std::string& generation) {
  return config_error_of(
      [&] { parse_model_config(slurp(tiny() / "config.json"), "config.json", generation, "generation_config.json"); });
}

}  // namespace

TEST_CASE("the bundled model's config is read") {
  auto c = load_model_config(tiny());
  CHECK(c.architecture == "LlamaForCausalLM");
  CHECK(c.layers == 8);
  CHECK(c.hidden == 256);
  CHECK(c.heads == 8);
  CHECK(c.kv_heads == 4);
  CHECK(c.head_dim == 32);
  CHECK(c.intermediate == 640);
  CHECK(c.vocab == 2048);
  CHECK(c.max_positions == 8192);
  CHECK(c.norm_eps == 1e-5f);
  CHECK(c.rope_theta == 10000);
  CHECK(!c.rope_scaling);
  CHECK(c.tie_embeddings);
  CHECK(c.stored_type == dtype::bf16);
  CHECK(c.bos == 0);
  CHECK(c.eos == std::vector<token_id>{0});
  CHECK(c.sampling.temperature == 0.8f);
  CHECK(c.sampling.top_p == 0.95f);
  CHECK(c.sampling.top_k == 0);
}

TEST_CASE("fields that files may leave out have the family's defaults") {
  auto parse = [](const std::string& key) { return parse_model_config(with(key, "null"), "config.json"); };
  CHECK(parse("head_dim").head_dim == 32);
  CHECK(parse("num_key_value_heads").kv_heads == 8);
  CHECK(!parse("tie_word_embeddings").tie_embeddings);
  CHECK(parse("rope_theta").rope_theta == 10000);
  CHECK(parse("eos_token_id").eos.empty());
  CHECK(!parse("torch_dtype").stored_type);
}

TEST_CASE("end tokens may be a list, and generation_config.json has the last word") {
  CHECK(parse_model_config(with("eos_token_id", "[1, 2]"), "c").eos == std::vector<token_id>{1, 2});
  CHECK(parse_model_config(with("eos_token_id", "[1, 2]"), "c", R"({"eos_token_id": 3})", "g").eos ==
        std::vector<token_id>{3});
  CHECK(parse_model_config(with("eos_token_id", "[1, 2]"), "c", "{}", "g").eos == std::vector<token_id>{1, 2});
  CHECK(parse_model_config(with("eos_token_id", "1"), "c", R"({"do_sample": false})", "g").sampling.temperature == 0);
}

TEST_CASE("llama3 rope scaling is read from either place that files keep it in") {
  std::string inner = R"("rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,)"
                      R"("original_max_position_embeddings": 8192)";
  auto old_form = parse_model_config(with("rope_scaling", "{" + inner + "}"), "c");
  REQUIRE(old_form.rope_scaling);
  CHECK(old_form.rope_scaling->factor == 32);
  CHECK(old_form.rope_scaling->original_positions == 8192);
  auto new_form = parse_model_config(with("rope_parameters", R"({"rope_theta": 500000.0,)" + inner + "}"), "c");
  REQUIRE(new_form.rope_scaling);
  CHECK(new_form.rope_theta == 500000);
  CHECK(error_with("rope_scaling", R"({"type": "yarn", "factor": 4})") ==
        "config.json: rope_scaling.type: yarn is not supported; default and llama3 are");
  CHECK(error_with("rope_scaling", R"({"rope_type": "llama3"})") == "config.json: rope_scaling.factor: missing");
  CHECK(error_with("rope_scaling", "4") == "config.json: rope_scaling: expected an object, found a number");
  CHECK(!parse_model_config(with("rope_scaling", R"({"rope_type": "default"})"), "c").rope_scaling);
}

TEST_CASE("a wrong field is one line that names file and field") {
  CHECK(error_with("num_hidden_layers", "null") == "config.json: num_hidden_layers: missing");
  CHECK(error_with("num_hidden_layers", "\"8\"") ==
        "config.json: num_hidden_layers: expected a whole number, found a string");
  CHECK(error_with("num_hidden_layers", "0") == "config.json: num_hidden_layers: 0 is not in 1 to 1024");
  CHECK(error_with("num_hidden_layers", "-3") == "config.json: num_hidden_layers: -3 is not in 1 to 1024");
  CHECK(error_with("num_hidden_layers", "2.5").starts_with("config.json: num_hidden_layers: expected a whole number"));
  CHECK(error_with("hidden_size", "1e300").starts_with("config.json: hidden_size: expected a whole number"));
  CHECK(error_with("num_key_value_heads", "3") ==
        "config.json: num_key_value_heads: 3 does not divide num_attention_heads 8");
  CHECK(error_with("head_dim", "33") == "config.json: head_dim: 33 is not an even number in 2 to 1024");
  CHECK(error_with("rms_norm_eps", "0") == "config.json: rms_norm_eps: not above 0 and below 1");
  CHECK(error_with("rope_theta", "-1") == "config.json: rope_theta: not above 0 and at most 1e12");
  CHECK(error_with("eos_token_id", "2048") == "config.json: eos_token_id: 2048 is not in 0 to 2047");
  CHECK(error_with("eos_token_id", "[0, -1]") == "config.json: eos_token_id[1]: -1 is not in 0 to 2047");
  CHECK(error_with("tie_word_embeddings", "1") ==
        "config.json: tie_word_embeddings: expected true or false, found a number");
  CHECK(error_with("hidden_act", "\"gelu\"") == "config.json: hidden_act: gelu is not supported; silu is");
  CHECK(error_with("attention_bias", "1") == "config.json: attention_bias: expected true or false, found a number");
  CHECK(error_with("hidden_size", "257") == "config.json: hidden_size: 257 is not even");
  CHECK(error_with("intermediate_size", "641") == "config.json: intermediate_size: 641 is not even");
  CHECK(error_with("torch_dtype", "\"int8\"") ==
        "config.json: torch_dtype: int8 is not supported; bfloat16, float16 and float32 are");
  CHECK(error_with("architectures", R"(["x\ny"])") ==
        "config.json: architectures: x\\x0ay is not supported; BloomForCausalLM, GlmForCausalLM, GPT2LMHeadModel, "
        "LlamaForCausalLM, OPTForCausalLM and Qwen2ForCausalLM are");
  CHECK(error_with("architectures", "[]") == "config.json: architectures: expected a list of one name");
  CHECK(error_with("quantization_config", "{}") ==
        "config.json: quantization_config: quantized checkpoints are not supported");
  CHECK(config_error_of([] { parse_model_config("[1]", "config.json"); }) ==
        "config.json: expected an object, found a list");
  CHECK(config_error_of([] { parse_model_config("{", "config.json"); }) ==
        "config.json: not valid JSON: incomplete JSON");
  CHECK(config_error_of([] { parse_model_config(R"({"a":1,"a":2})", "config.json"); }) ==
        "config.json: a: given twice");
  CHECK(generation_error(R"({"top_p": 2})") == "generation_config.json: top_p: 2 is not above 0 and at most 1");
  CHECK(generation_error(R"({"temperature": -1})") == "generation_config.json: temperature: -1 is not in 0 to 100");
  CHECK(generation_error(R"({"eos_token_id": "x"})") ==
        "generation_config.json: eos_token_id: expected a whole number, found a string");
}

TEST_CASE("a missing, empty or oversized file is named") {
  temp_dir dir;
  auto file = (dir / "config.json").string();
  CHECK(config_error_of([&] { load_model_config(dir.path()); }) == file + ": No such file or directory");
  dir.write("config.json", "");
  CHECK(config_error_of([&] { load_model_config(dir.path()); }) == file + ": not valid JSON: incomplete JSON");
  dir.write("config.json", std::string((1 << 20) + 1, ' '));
  CHECK(config_error_of([&] { load_model_config(dir.path()); }) ==
        file + ": 1048577 bytes, more than the limit of 1048576");
  dir.write("config.json", slurp(tiny() / "config.json"));
  CHECK(load_model_config(dir.path()).sampling.temperature == 1);
  dir.write("generation_config.json", "");
  CHECK(config_error_of([&] { load_model_config(dir.path()); }) ==
        (dir / "generation_config.json").string() + ": empty");
}
