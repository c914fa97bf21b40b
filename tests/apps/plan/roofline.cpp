#include "plan/roofline.hpp"

#include "cokv/engine/model.hpp"

using namespace cokv;
using plan::roofline;
using plan::step_load;

namespace {

// 100 operations and 10 bytes a second; launches cost nothing.
const sim::device_spec slow{
    .memory_bytes = 1e6, .memory_bytes_per_second = 10, .flops_per_second = 100, .launch_seconds = 0};

model_config small() {
  model_config c;
  c.layers = 2, c.hidden = 8, c.heads = 4, c.kv_heads = 2, c.head_dim = 2;
  c.intermediate = 16, c.vocab = 32, c.embedding_dim = 8;
  return c;
}
// Weights of a layer: 8 * (2 * 8 + 2 * 4) + 3 * 8 * 16 = 576.

}  // namespace

TEST_CASE("roofline: a layer's weights, KV and operations are counted") {
  const roofline r(small(), 2, slow, {});
  CHECK(r.layer_bytes() == 2 * 576);
  CHECK(r.kv_bytes() == 2 * 2 * 2 * 2);
  CHECK(r.table_bytes() == 2 * 32 * 8);
  // One token behind nine: memory binds. 1152 bytes of weights, 16 of KV for ten tokens.
  const auto token = step_load::of(1, 9);
  CHECK(token.pairs == 10);
  CHECK(token.context == 10);
  CHECK(r.layers(token, 1) == doctest::Approx((1152 + 160) / 10.));
  CHECK(r.layers(token, 2) == doctest::Approx(2 * (1152 + 160) / 10.));
  // A hundred tokens of a prompt: arithmetic binds. 2 * 576 a token, and 4 * 8 for each of 5050 pairs.
  const auto prompt = step_load::of(100);
  CHECK(prompt.pairs == 5050);
  CHECK(r.layers(prompt, 1) == doctest::Approx((100 * 1152 + 32 * 5050) / 100.));
  CHECK(r.logits(0) == 0);
  CHECK(r.logits(1) == doctest::Approx(512 / 10.));
  CHECK(r.logits(100) == doctest::Approx(2 * 256 * 100 / 100.));
}

TEST_CASE("roofline: what kernels reach divides time; ranks share it, and add up what each has") {
  const auto prompt = step_load::of(100);
  const roofline whole(small(), 2, slow, {}), half(small(), 2, slow, {.arithmetic = 0.5});
  CHECK(half.layers(prompt, 1) == doctest::Approx(2 * whole.layers(prompt, 1)));
  // Four ranks: two all-reduces of 100 rows of 8 elements, 3 / 4 of them twice over each link. More ranks than KV heads: each
  // has one whole head.
  const roofline four(small(), 2, slow, {.ranks = 4, .link = 1000});
  CHECK(four.layers(prompt, 1) == doctest::Approx(whole.layers(prompt, 1) / 4 + 2 * 1.5 * 1600 / 1000.));
  CHECK(four.kv_bytes() == 2 * whole.kv_bytes());
}

TEST_CASE("roofline: the weights are those that the engine holds") {
  for (const char* name : {"llama-3.1-8b", "qwen2.5-7b", "llama-2-13b"}) {
    const auto c = load_model_config_file(COKV_SOURCE_DIR "/bench/geometries/" + std::string(name) + ".json");
    const roofline r(c, 2, slow, {});
    const double all = c.layers * r.layer_bytes() + r.table_bytes();
    CHECK(all == doctest::Approx(static_cast<double>(weight_bytes(c, dtype::bf16))).epsilon(1e-3));
  }
}
