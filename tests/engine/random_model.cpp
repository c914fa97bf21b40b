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
  for (auto* family : {"llama", "llama-bias", "qwen2", "glm", "gpt2", "opt", "opt-350m", "bloom"})
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
