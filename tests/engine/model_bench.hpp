// A model, a pool of KV and a stream, driven a step at a time.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "cokv/engine/model.hpp"
#include "cokv/runtime/device.hpp"

namespace cokv::test {

struct model_bench {
  model_bench(std::shared_ptr<model> what, std::uint32_t block_tokens, std::uint32_t blocks = 80)
      : m(std::move(what)),
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

  static token_id best(std::span<const float> logits) {
    return static_cast<token_id>(std::ranges::max_element(logits) - logits.begin());
  }

  // What follows a prompt that was prefilled, one token a step.
  std::vector<token_id> greedy(std::vector<token_id> all, std::size_t count) {
    std::vector<token_id> out;
    for (auto next = best(step->logits_of(0));; next = best(step->logits_of(0))) {
      out.push_back(next);
      if (out.size() == count) return out;
      all.push_back(next);
      run({{table(all.size()), static_cast<std::uint32_t>(all.size() - 1), {next}, true}});
    }
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

}  // namespace cokv::test
