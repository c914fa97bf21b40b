#include "cokv/engine/model.hpp"

#include <doctest/doctest.h>

#include <cmath>

#include "engine/expected.hpp"
#include "engine/model_bench.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

struct bench : model_bench {
  bench(dtype type, std::uint32_t block_tokens) : model_bench(tiny_model(type), block_tokens) {}
};

std::vector<token_id> long_prompt() {
  std::vector<token_id> out;
  while (out.size() < 150)
    for (auto& c : expected_cases()) {
      out.insert(out.end(), c.prompt_tokens.begin(), c.prompt_tokens.end());
      out.insert(out.end(), c.tokens.begin(), c.tokens.end());
    }
  return out;
}

}  // namespace

TEST_CASE("the tiny model gives the reference's tokens in f32 and bf16, and its logits in f32") {
  for (auto [type, invariant] : {std::pair{dtype::f32, false}, {dtype::bf16, false}, {dtype::bf16, true}}) {
    model_bench b(load_model(model_dir(), {.compute = type, .batch_invariant = invariant}), 16);
    for (auto& c : expected_cases()) {
      INFO(c.prompt, " in ", to_string(type));
      auto logits = b.prefill(c.prompt_tokens, 1024);
      if (type == dtype::f32)
        for (auto [id, value] : c.top5) CHECK(std::abs(logits[std::size_t(id)] - value) < 2e-3);
      CHECK(b.greedy(c.prompt_tokens, c.tokens.size()) == c.tokens);
    }
  }
}

TEST_CASE("logits and KV have the same bits however a prompt is cut and paged, in f32 and bf16") {
  const auto prompt = long_prompt();
  for (auto type : {dtype::f32, dtype::bf16}) {
    bench whole(type, 16);
    const auto logits = whole.prefill(prompt, 4096);
    const auto kv = whole.kv_bytes(prompt.size());
    for (std::uint32_t block_tokens : {8u, 16u, 32u})
      for (std::uint32_t chunk : {1u, 7u, 16u, 64u}) {
        INFO("block ", block_tokens, " chunk ", chunk, " in ", to_string(type));
        bench b(type, block_tokens);
        CHECK(b.prefill(prompt, chunk) == logits);
        CHECK(b.kv_bytes(prompt.size()) == kv);
      }
  }
}

TEST_CASE("a sequence has the same bits alone and in a batch with others, of which some don't sample") {
  const auto prompt = long_prompt();
  for (auto type : {dtype::f32, dtype::bf16}) {
    bench alone(type, 16);
    const auto logits = alone.prefill(prompt, 4096);
    bench b(type, 16);
    std::vector<token_id> other(prompt.rbegin(), prompt.rbegin() + 40);
    b.run({{{70, 71, 72}, 0, other, true},
           {b.table(prompt.size()), 0, prompt, true},
           {{65, 66}, 0, {1, 2, 3}, false},
           {{67}, 0, {4}, true}});
    CHECK(b.step->samples() == 3);
    auto mine = b.step->logits_of(1);
    CHECK(std::vector<float>(mine.begin(), mine.end()) == logits);
    CHECK(b.kv_bytes(prompt.size()) == alone.kv_bytes(prompt.size()));
  }
}

TEST_CASE("a step in which nobody samples has no logits") {
  bench b(dtype::bf16, 16);
  b.run({{{3}, 0, {1063, 357}, false}});
  CHECK(b.step->logits.empty());
}

TEST_CASE("models of another type of arithmetic or from a missing folder are refused in one line") {
  CHECK_THROWS_WITH_AS(load_model(model_dir(), {.compute = dtype::f16}), "dtype: f16 is not bf16 or f32", config_error);
  CHECK_THROWS_AS(load_model("/nowhere"), config_error);
}
