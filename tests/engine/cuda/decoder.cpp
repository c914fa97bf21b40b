// Whole decoders on a CUDA device against what PyTorch and transformers computed: on stand-ins for CUDA and cuBLASLt in
// every build, and unchanged on a device with the library (label gpu).
#include <cmath>
#include <numeric>

#include "cokv/engine/model.hpp"
#include "cokv/kvstream/kv_layout.hpp"
#include "engine/cuda/some_families.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

// A model, a pool of KV whose every byte is part of a NaN, and a stream, driven a step at a time.
struct device_bench {
  device_bench(cuda_machine& machine, std::shared_ptr<model> what, std::uint32_t block_tokens)
      : machine(machine),
        m(std::move(what)),
        compute(machine.device.make_stream({.name = "compute"}).value()),
        kv(m->kv_geometry(block_tokens), 64,
           on_device(machine, compute, std::vector<std::uint8_t>(pool_bytes(m->kv_geometry(block_tokens), 64), 0xff))) {
  }

  void run(std::vector<batch_sequence> sequences) {
    step->sequences = std::move(sequences);
    for (std::uint32_t l = 0; l < m->config().layers; ++l) {
      const auto ec = m->forward(l, step, kv, compute);
      CAPTURE(ec.message());
      REQUIRE(!ec);
    }
    REQUIRE(!m->finish(step, compute));
    REQUIRE(!machine.wait(compute.record()));
    m->collect(*step);
  }

  static constexpr std::size_t most_blocks = 48;  // of a table
  std::vector<block_index> table(std::size_t tokens) const {
    std::vector<block_index> t;
    for (std::size_t i = 0; i * kv.shape().block_tokens() < tokens; ++i)
      t.push_back(static_cast<block_index>((i * 13 + 5) % most_blocks));
    REQUIRE(t.size() <= most_blocks);
    return t;
  }

  std::vector<float> prefill(const std::vector<token_id>& prompt, std::size_t chunk) {
    for (std::size_t at = 0; at < prompt.size(); at += chunk) {
      const auto end = std::min(prompt.size(), at + chunk);
      run({{table(end),
            static_cast<std::uint32_t>(at),
            {prompt.begin() + std::ptrdiff_t(at), prompt.begin() + std::ptrdiff_t(end)},
            end == prompt.size()}});
    }
    const auto last = step->logits_of(0);
    return {last.begin(), last.end()};
  }

  cuda_machine& machine;
  std::shared_ptr<model> m;
  stream compute;
  kv_pool kv;
  std::shared_ptr<batch> step = std::make_shared<batch>();
};

// In bf16 tensor cores take queries and weights that are rounded, which the CPU doesn't: a little further off at most.
float slack(dtype type) { return type == dtype::f32 ? 1e-5f : 0.03f; }

token_id best(std::span<const float> logits) {
  return static_cast<token_id>(std::ranges::max_element(logits) - logits.begin());
}

}  // namespace

TEST_CASE("cuda decoders: every family gives the reference's logits, and in f32 its tokens") {
  const bool there = with_decoders([](cuda_machine& m, std::mt19937& random, bool all) {
    some_families(all, [&](const golden& family, dtype type) {
      const auto model = load_model(family.folder, {.compute = type, .where = m.device});
      for (auto& c : family.cases) {
        if (!all && &c != &family.cases[random() % family.cases.size()]) continue;
        const std::size_t chunk = random() % 2 ? 1024 : 1 + random() % 40;
        CAPTURE(chunk);
        const std::size_t count = type != dtype::f32 ? 0 : all ? c.tokens.size() : 8,
                          least = (c.prompt.size() + count) / device_bench::most_blocks + 1;
        device_bench b(m, model, static_cast<std::uint32_t>(least + random() % (32 - least)));
        CHECK(distance(b.prefill(c.prompt, chunk), c.logits) < slack(type));
        auto so_far = c.prompt;
        std::vector<token_id> got;
        while (got.size() < count) {
          got.push_back(best(b.step->logits_of(0)));
          so_far.push_back(got.back());
          b.run({{b.table(so_far.size()), static_cast<std::uint32_t>(so_far.size() - 1), {got.back()}, true}});
        }
        CHECK(got == std::vector<token_id>(c.tokens.begin(), c.tokens.begin() + std::ptrdiff_t(count)));
      }
    });
  });
  if (!there) MESSAGE("skipped: no cuBLASLt");
}

TEST_CASE("cuda decoders: a step of prompts, chunks and single tokens, of which some are sampled") {
  with_decoders([](cuda_machine& m, std::mt19937& random, bool all) {
    some_families(all, [&](const golden& family, dtype type) {
      const auto model = load_model(family.folder, {.compute = type, .where = m.device});
      const auto& prompt = family.cases.back().prompt;
      device_bench alone(m, model, 16), beside(m, model, 16);
      const auto want = alone.prefill(prompt, 1024);
      const auto part = static_cast<std::uint32_t>(1 + random() % (prompt.size() - 1));
      beside.run({{beside.table(part), 0, {prompt.begin(), prompt.begin() + part}, false}});
      CHECK(beside.step->logits.empty());
      beside.run({{{60, 61, 62},
                   0,
                   {prompt.rbegin(), prompt.rbegin() + std::ptrdiff_t(std::min<std::size_t>(40, prompt.size()))},
                   random() % 2 == 0},
                  {{50}, 0, {4}, false},
                  {beside.table(prompt.size()), part, {prompt.begin() + part, prompt.end()}, true},
                  {{51}, 0, {7, 8}, true}});
      const auto n = beside.step->samples();
      CHECK(distance(beside.step->logits_of(n - 2), want) < slack(type));
    });
  });
}

TEST_CASE("cuda decoders: a sequence beyond the model's positions is refused, and nothing runs") {
  with_decoders([](cuda_machine& m, std::mt19937&, bool) {
    const auto& family = families()[4];  // a table of positions ends there
    const auto model = load_model(family.folder, {.where = m.device});
    device_bench b(m, model, 16);
    b.step->sequences = {{b.table(16), model->config().max_positions, {1}, true}};
    CHECK(model->forward(0, b.step, b.kv, b.compute) == errc::invalid_argument);
    REQUIRE(!m.wait(b.compute.record()));
  });
}

TEST_CASE("cuda decoders: a bias for a token that there is not gives no token, and others get theirs") {
  with_decoders([](cuda_machine& m, std::mt19937&, bool) {
    const auto& family = families()[0];
    const auto model = load_model(family.folder, {.compute = dtype::f32, .where = m.device});
    device_bench b(m, model, 16);
    b.step->sequences = {{{1}, 0, {5, 6, 7}, true}, {{2}, 0, {5, 6, 7}, true}};
    for (auto token : {static_cast<token_id>(model->config().vocab), token_id(9)}) {
      auto how = std::make_shared<sampling_state>();
      how->params.temperature = 0;
      how->params.logit_bias = {{token, 1e4f}};
      b.step->sampled.push_back({how, 3});
    }
    for (std::uint32_t l = 0; l < model->config().layers; ++l) REQUIRE(!model->forward(l, b.step, b.kv, b.compute));
    REQUIRE(!model->finish(b.step, b.compute));
    REQUIRE(!model->sample(b.step, b.compute));
    REQUIRE(!m.wait(b.compute.record()));
    model->collect(*b.step);
    CHECK(b.step->sampled[0].token.error() == errc::invalid_argument);
    CHECK(b.step->sampled[1].token.value() == 9);
    CHECK(b.step->logits.empty());
  });
}
