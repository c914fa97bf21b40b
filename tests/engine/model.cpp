#include "cokv/engine/model.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "cokv/runtime/device.hpp"
#include "engine/expected.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

// A model, a pool and a stream, driven a step at a time.
struct bench {
  bench(dtype type, std::uint32_t block_tokens, std::uint32_t blocks = 80)
      : m(tiny_model(type)),
        kv(m->kv_geometry(block_tokens), blocks),
        compute(open_device(io.get_executor(), "cpu").value().make_stream({.name = "compute"}).value()) {
    std::memset(kv.memory().data(), 0xff, kv.memory().size());  // NaN where nothing was written
  }

  void run(std::vector<batch_sequence> sequences) {
    step->sequences = std::move(sequences);
    for (std::uint32_t l = 0; l < m->config().layers; ++l) REQUIRE(!m->forward(l, step, kv, compute));
    REQUIRE(!m->finish(step, compute));
    error_code status = asio::error::would_block;
    compute.async_drain([&](error_code ec) { status = ec; });
    io.restart();
    io.run();
    REQUIRE(!status);
  }

  // Blocks out of order, so that a wrong table shows; those from 64 on are left to others.
  std::vector<block_index> table(std::size_t tokens) const {
    std::vector<block_index> t;
    for (std::size_t i = 0; i * kv.shape().block_tokens() < tokens; ++i)
      t.push_back(static_cast<block_index>((i * 37 + 5) % 64));
    return t;
  }

  std::vector<float> prefill(const std::vector<token_id>& prompt, std::uint32_t chunk) {
    for (std::uint32_t at = 0; at < prompt.size(); at += chunk) {
      const auto end = std::min<std::size_t>(prompt.size(), at + chunk);
      run({{table(end), at, {prompt.begin() + at, prompt.begin() + std::ptrdiff_t(end)}, end == prompt.size()}});
    }
    auto last = step->logits_of(0);
    return {last.begin(), last.end()};
  }

  // The KV of the first tokens, in the order of layers, tokens and heads, wherever its blocks are.
  std::vector<std::byte> kv_bytes(std::size_t tokens) const {
    auto& g = kv.shape();
    auto blocks = table(tokens);
    std::vector<std::byte> out;
    for (std::uint32_t l = 0; l < g.layers(); ++l)
      for (std::size_t t = 0; t < tokens; ++t)
        for (std::uint32_t h = 0; h < g.kv_heads(l); ++h)
          for (std::size_t p : {0, 1}) {
            auto row = g.row_bytes(l, p);
            auto* at = kv.memory().data() + kv.offset(l, blocks[t / g.block_tokens()]) + g.plane_offset(l, h, p) +
                       t % g.block_tokens() * row;
            out.insert(out.end(), at, at + row);
          }
    return out;
  }

  asio::io_context io{1};
  std::shared_ptr<model> m;
  kv_pool kv;
  stream compute;
  std::shared_ptr<batch> step = std::make_shared<batch>();
};

token_id best(std::span<const float> logits) {
  return static_cast<token_id>(std::ranges::max_element(logits) - logits.begin());
}

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
  for (auto type : {dtype::f32, dtype::bf16}) {
    bench b(type, 16);
    for (auto& c : expected_cases()) {
      INFO(c.prompt, " in ", to_string(type));
      auto logits = b.prefill(c.prompt_tokens, 1024);
      if (type == dtype::f32)
        for (auto [id, value] : c.top5) CHECK(std::abs(logits[std::size_t(id)] - value) < 2e-3);
      std::vector<token_id> all = c.prompt_tokens, got;
      for (auto next = best(logits);; next = best(b.step->logits_of(0))) {
        got.push_back(next);
        if (got.size() == c.tokens.size()) break;
        all.push_back(next);
        b.run({{b.table(all.size()), static_cast<std::uint32_t>(all.size() - 1), {next}, true}});
      }
      CHECK(got == c.tokens);
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
