#include <doctest/doctest.h>

#include <cmath>

#include "engine/files.hpp"
#include "engine/model_bench.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

std::filesystem::path config_of(const std::string& family) {
  return source_dir() / "tests/engine/fixtures/families" / family / "config.json";
}

std::vector<float> logits(const std::shared_ptr<model>& m) {
  model_bench b(m, 16);
  return b.prefill({5, 1, 300, 17, 17}, 3);
}

}  // namespace

TEST_CASE("any family's config.json makes a model with random weights, the same for the same seed") {
  for (auto* family : {"llama", "llama-bias", "qwen2", "glm", "gpt2", "opt", "opt-350m", "opt-bare", "bloom"})
    for (auto type : {dtype::f32, dtype::bf16}) {
      INFO(family, " in ", to_string(type));
      const auto a = random_model(config_of(family), {.compute = type});
      const auto b = random_model(config_of(family), {.compute = type});
      const auto c = random_model(config_of(family), {.compute = type}, 2);
      const auto first = logits(a);
      CHECK(first == logits(b));
      CHECK(first != logits(c));
      bool finite = true;
      for (auto v : first) finite &= std::isfinite(v);
      CHECK(finite);
      CHECK(a->fingerprint() == b->fingerprint());
      CHECK(a->fingerprint() != c->fingerprint());
      CHECK(a->fingerprint() != load_model(config_of(family).parent_path(), {.compute = type})->fingerprint());
    }
}

TEST_CASE("a config that is not there or wrong is named as a checkpoint's would be") {
  temp_dir dir;
  CHECK_THROWS_WITH_AS(random_model(dir / "none.json"), doctest::Contains("none.json: No such file"), config_error);
  CHECK_THROWS_WITH_AS(random_model(dir.write("bad.json", "{")), doctest::Contains("bad.json: not valid JSON"),
                       config_error);
  CHECK_THROWS_AS(random_model(config_of("llama"), {.compute = dtype::f16}), config_error);
}

TEST_CASE("a model's matrices take what was said before they were loaded") {
  for (auto* family : {"llama", "glm", "gpt2", "opt-350m", "bloom"})
    for (auto type : {dtype::f32, dtype::bf16}) {
      const auto config = load_model_config_file(config_of(family));
      const auto said = weight_bytes(config, type);
      const auto h = std::uint64_t{config.hidden};
      // Exactly the elements, where all of it fills panels; with their padding else.
      const auto least = size_of(type) * config.layers *
                         (h * (config.heads + 2 * config.kv_heads) * config.head_dim +
                          h * config.heads * config.head_dim + h * config.intermediate * (config.gated ? 3 : 2));
      CHECK(said >= least + size_of(type) * config.vocab * config.embedding_dim);
      CHECK(said < 2 * (least + size_of(type) * config.vocab * config.embedding_dim));
    }
}

TEST_CASE("a model that does not fit is refused with the sum before anything is read") {
  temp_dir dir;
  auto text = slurp(config_of("qwen2"));
  auto set = [&](const std::string& key, const std::string& value) {
    const auto at = text.find('"' + key + "\":") + key.size() + 4;
    text.replace(at, text.find_first_of(",\n", at) - at, value);
  };
  set("hidden_size", "65536"), set("intermediate_size", "262144"), set("num_hidden_layers", "1000"),
      set("num_attention_heads", "512");
  const auto file = dir.write("config.json", text);
  const auto what = config_error_of([&] { random_model(file); });
  CHECK(what.starts_with("out of memory: weights "));
  CHECK(what.ends_with(" are available"));
  CHECK(config_error_of([&] { load_model(dir.path()); }).starts_with("out of memory: weights "));
  const auto table = dir.write("positions.json", R"({"architectures": ["GPT2LMHeadModel"], "n_layer": 1, "n_head": 64,
    "n_embd": 65536, "n_positions": 16777216, "layer_norm_epsilon": 1e-5, "vocab_size": 10, "n_inner": 2})");
  CHECK(config_error_of([&] { random_model(table); }).find(" + random numbers ") != std::string::npos);
}
