// Parts of a model, put together again: the logits and tokens of the whole, however it was cut.
#include <doctest/doctest.h>

#include <set>

#include "cokv/runtime/error.hpp"
#include "engine/files.hpp"
#include "engine/golden.hpp"
#include "engine/model_bench.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

// All stages and ranks in one process: what they would tell each other is copied.
struct parts_bench {
  parts_bench(const std::filesystem::path& folder, dtype type, std::uint32_t stages, std::uint32_t ranks) {
    const topology split(stages, ranks);
    for (std::uint32_t i = 0; i < split.workers(); ++i)
      all.push_back(std::make_unique<model_bench>(
          load_model(folder, {.compute = type, .part = {.split = split, .who = split.at(i)}}), 16));
    degree = ranks;
  }

  std::span<std::unique_ptr<model_bench>> stage(std::uint32_t s) { return std::span(all).subspan(s * degree, degree); }
  std::uint32_t stages() const { return static_cast<std::uint32_t>(all.size()) / degree; }

  void run(const std::vector<batch_sequence>& sequences) {
    std::vector<float> hidden;
    for (std::uint32_t s = 0; s < stages(); ++s) {
      const auto ranks = stage(s);
      for (auto& r : ranks) {
        r->step->sequences = sequences;
        r->step->hidden = hidden;
      }
      for (std::uint32_t l = 0; l < ranks[0]->m->config().layers; ++l) layer(ranks, l);
      if (s + 1 < stages()) {
        hidden = ranks[0]->step->hidden;
        for (auto& r : ranks) CHECK(r->step->hidden == hidden);
      }
    }
    auto& last = *stage(stages() - 1)[0];
    REQUIRE(!last.m->finish(last.step, last.compute));
    drain(last);
  }

  void layer(std::span<std::unique_ptr<model_bench>> ranks, std::uint32_t l) {
    if (degree == 1) {
      REQUIRE(!ranks[0]->m->forward(l, ranks[0]->step, ranks[0]->kv, ranks[0]->compute));
      return drain(*ranks[0]);
    }
    for (auto which : {layer_half::attention, layer_half::mlp}) {
      for (auto& r : ranks) {
        REQUIRE(!r->m->forward_half(l, which, r->step, r->kv, r->compute));
        drain(*r);
      }
      std::vector<float> sum(ranks[0]->step->summand.begin(), ranks[0]->step->summand.end());
      for (auto& r : ranks.subspan(1)) {
        REQUIRE(r->step->summand.size() == sum.size());
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += r->step->summand[i];
      }
      for (auto& r : ranks) {
        std::ranges::copy(sum, r->step->summand.begin());
        REQUIRE(!r->m->take_sum(l, which, r->step, r->compute));
        drain(*r);
      }
    }
  }

  static void drain(model_bench& b) {
    error_code status = asio::error::would_block;
    b.compute.async_drain([&](error_code ec) { status = ec; });
    b.io.restart();
    b.io.run();
    REQUIRE(!status);
  }

  std::vector<float> logits() {
    auto row = stage(stages() - 1)[0]->step->logits_of(0);
    return {row.begin(), row.end()};
  }
  std::vector<block_index> table(std::size_t tokens) const { return all[0]->table(tokens); }

  // The prompt in chunks, then tokens one by one.
  std::vector<token_id> greedy(const std::vector<token_id>& prompt, std::uint32_t chunk, std::size_t count,
                               std::vector<float>* behind_prompt = nullptr) {
    for (std::uint32_t at = 0; at < prompt.size(); at += chunk) {
      const auto end = std::min<std::size_t>(prompt.size(), at + chunk);
      run({{table(end), at, {prompt.begin() + at, prompt.begin() + std::ptrdiff_t(end)}, end == prompt.size()}});
    }
    if (behind_prompt) *behind_prompt = logits();
    auto tokens = prompt;
    std::vector<token_id> out;
    for (;;) {
      out.push_back(model_bench::best(logits()));
      if (out.size() == count) return out;
      tokens.push_back(out.back());
      run({{table(tokens.size()), static_cast<std::uint32_t>(tokens.size() - 1), {out.back()}, true}});
    }
  }

  std::vector<std::unique_ptr<model_bench>> all;
  std::uint32_t degree = 1;
};

}  // namespace

TEST_CASE("parts: every family's stages and ranks give the reference's logits, and in f32 its tokens") {
  for (auto& family : families())
    for (auto type : {dtype::f32, dtype::bf16})
      for (auto [stages, ranks] : {std::pair{2u, 1u}, {3u, 1u}, {1u, 2u}, {3u, 2u}}) {
        INFO(family.name, " in ", to_string(type), ", ", stages, " stages of ", ranks);
        parts_bench b(family.folder, type, stages, ranks);
        auto& c = family.cases.back();
        std::vector<float> logits;
        const auto got = b.greedy(c.prompt, 20, type == dtype::f32 ? c.tokens.size() : 2, &logits);
        CHECK(distance(logits, c.logits) < (type == dtype::f32 ? 1e-5f : 0.02f));
        if (type == dtype::f32) CHECK(got == c.tokens);
      }
}

TEST_CASE("parts: the bundled model in every way that it can be cut") {
  const auto folder = source_dir() / "models/tiny-kjv";
  model_bench whole(load_model(folder, {.compute = dtype::f32}), 16);
  std::vector<token_id> prompt;
  for (token_id t = 0; t < 50; ++t) prompt.push_back(3 + t * 37 % 1900);
  const auto logits = whole.prefill(prompt, 1000);
  const auto want = whole.greedy(prompt, 20);
  for (std::uint32_t stages : {1u, 2u, 4u, 8u})
    for (std::uint32_t ranks : {1u, 2u, 4u, 8u}) {  // of eight heads, and four of keys and values
      INFO(stages, " stages of ", ranks);
      parts_bench b(folder, dtype::f32, stages, ranks);
      std::vector<float> got;
      CHECK(b.greedy(prompt, 17, want.size(), &got) == want);
      CHECK(distance(got, logits) < 1e-5f);
      if (ranks == 1) CHECK(got == logits);  // nothing is added in another order
      // A rank's KV is its heads' of the whole's.
      auto& first = *b.all[0];
      CHECK(first.kv.shape().layers() == 8 / stages);
      CHECK(first.kv.shape().kv_heads(0) == std::max(1u, 4 / ranks));
      // KV of each part has a name of its own; ranks that have the same heads have the same.
      const auto model = b.all[0]->m->fingerprint();
      CHECK(model == whole.m->fingerprint());
      std::set<namespace_id> names;
      for (auto& p : b.all) names.insert(namespace_id::of(model.hex(), p->kv.shape(), p->m->kv_shard()));
      CHECK(names.size() == stages * std::min(ranks, 4u));
      CHECK(names.contains(namespace_id::of(whole.m->fingerprint().hex(), whole.kv.shape())) == (b.all.size() == 1));
    }
}

TEST_CASE("parts: what does not divide is refused by its name, and so is half a layer of what is whole") {
  const auto folder = source_dir() / "models/tiny-kjv";
  const auto refused = [&](topology split, worker who, const std::filesystem::path& of) {
    try {
      load_model(of, {.compute = dtype::f32, .part = {.split = std::move(split), .who = who}});
    } catch (const config_error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(refused(topology(9, 1), {}, folder) == "pipeline: 9 stages of 8 layers; at most one a layer");
  CHECK(refused(topology(1, 3), {}, folder) == "tensor: 3 ranks can't share 8 heads equally; 1, 2 can");
  CHECK(refused(topology(1, 16), {}, folder) == "tensor: 16 ranks can't share 8 heads equally; 1, 2, 4, 8 can");
  CHECK(refused(topology(2, 2), {2, 0}, folder) == "rank: stage 2, rank 0 is none of pp2xtp2");
  CHECK(refused(topology(2, 2), {0, 2}, folder) == "rank: stage 0, rank 2 is none of pp2xtp2");
  CHECK(refused(topology(1, 4), {}, source_dir() / "tests/engine/fixtures/families/bloom") ==
        "tensor: 4 ranks can't share 6 heads equally; 1, 2, 3 can");

  model_bench whole(load_model(folder, {.compute = dtype::f32}), 16);
  CHECK(whole.m->part().whole());
  CHECK(whole.m->forward_half(0, layer_half::mlp, whole.step, whole.kv, whole.compute) == errc::unsupported);
  CHECK(whole.m->take_sum(0, layer_half::mlp, whole.step, whole.compute) == errc::unsupported);
  parts_bench cut(folder, dtype::f32, 2, 2);
  auto& first = *cut.all[0];
  CHECK(first.m->part().who == worker{0, 0});
  CHECK(first.m->forward(0, first.step, first.kv, first.compute) == errc::unsupported);
  CHECK(first.m->finish(first.step, first.compute) == errc::unsupported);
}
