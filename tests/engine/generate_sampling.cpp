// Sampling that looks back, through the whole engine: what a request gets depends on the tokens before and on nothing else.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "engine/generate_fixture.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

generation_request penalised(token_id first, std::uint32_t n) {
  auto prompt = psalm();
  prompt.insert(prompt.begin(), first);
  return {.prompt = std::move(prompt),
          .max_tokens = n,
          .sampling = {.temperature = 0.8f,
                       .top_p = 0.95f,
                       .min_p = 0.02f,
                       .repetition_penalty = 1.2f,
                       .presence_penalty = 0.3f,
                       .frequency_penalty = 0.2f,
                       .logit_bias = {{17, -5}},
                       .seed = static_cast<std::uint64_t>(first)},
          .logprobs = 3,
          .ignore_end_tokens = true};
}

std::vector<generation_request> several(std::uint32_t n) {
  std::vector<generation_request> out;
  for (token_id i = 0; i < 6; ++i) out.push_back(penalised(300 + i, n));
  return out;
}

}  // namespace

TEST_CASE("generate: penalties give the same tokens alone, batched, planned ahead, and preempted") {
  fixture plain(dtype::f32, {.prefix_cache = false}), ahead(dtype::f32, {.async_scheduling = true}),
      tight(dtype::f32, {.kv_blocks = 24, .max_sequence = 384, .prefix_cache = false}),
      tight_ahead(dtype::f32, {.kv_blocks = 24, .max_sequence = 384, .prefix_cache = false, .async_scheduling = true});
  const auto together = plain.all(several(60));
  const auto planned = ahead.all(several(60)), squeezed = tight.all(several(60)), both = tight_ahead.all(several(60));
  CHECK(tight.run.counters().preemptions > 0);
  CHECK(tight_ahead.run.counters().preemptions > 0);
  for (token_id i = 0; i < 6; ++i) {
    INFO("request ", i);
    const auto& want = together[static_cast<std::size_t>(i)];
    REQUIRE(want.tokens.size() == 60);
    CHECK(plain.one(penalised(300 + i, 60)).tokens == want.tokens);
    CHECK(planned[static_cast<std::size_t>(i)].tokens == want.tokens);
    CHECK(squeezed[static_cast<std::size_t>(i)].tokens == want.tokens);
    CHECK(both[static_cast<std::size_t>(i)].tokens == want.tokens);
  }
}

TEST_CASE("generate: a frequency penalty leaves fewer repetitions, and greedy without one is what it was") {
  fixture f(dtype::f32);
  const auto distinct = [&](float penalty) {
    auto r = greedy({1, 2, 3}, 100);
    r.sampling.frequency_penalty = penalty;
    r.ignore_end_tokens = true;
    const auto a = f.one(std::move(r)).tokens;
    return std::set<token_id>(a.begin(), a.end()).size();
  };
  CHECK(distinct(2) > distinct(0));
}

TEST_CASE("generate: an answer goes on elsewhere with the same tokens") {
  fixture here(dtype::f32), there(dtype::f32, {.block_tokens = 8, .async_scheduling = true});
  const auto whole = here.one(penalised(300, 50)).tokens;
  auto rest = penalised(300, 50);
  rest.prompt.insert(rest.prompt.end(), whole.begin(), whole.begin() + 20);
  rest.continues = 20;
  rest.max_tokens = 30;
  const auto after = there.one(rest).tokens;
  CHECK(std::ranges::equal(after, std::span(whole).subspan(20)));
  rest.continues = static_cast<std::uint32_t>(rest.prompt.size()) + 1;
  CHECK(there.run.submit(rest).error() == errc::invalid_argument);
}

TEST_CASE("generate: each token comes with its logprob and the likeliest, whatever was sampled") {
  fixture f(dtype::f32);
  const auto a = f.one(penalised(301, 20));
  REQUIRE(a.logprobs.size() == a.tokens.size());
  for (auto& p : a.logprobs) {
    REQUIRE(p.top.size() == 3);
    CHECK(p.chosen <= p.top[0].logprob);
    CHECK(p.top[0].logprob >= p.top[1].logprob);
    CHECK(p.top[1].logprob >= p.top[2].logprob);
  }
  auto best = greedy(psalm(), 20);
  best.logprobs = 1;
  const auto b = f.one(best);
  for (std::size_t i = 0; i < b.tokens.size(); ++i) {
    CHECK(b.logprobs[i].top[0].token == b.tokens[i]);
    CHECK(b.logprobs[i].chosen == b.logprobs[i].top[0].logprob);
  }
  CHECK(f.one(greedy(psalm(), 5)).logprobs.empty());
}

TEST_CASE("generate: a bias of a token that the model has not is refused") {
  fixture f(dtype::f32);
  auto r = greedy({1, 2}, 3);
  r.sampling.logit_bias = {{static_cast<token_id>(f.run.running().config().vocab), 1}};
  CHECK(f.run.submit(r).error() == errc::invalid_argument);
  r.sampling.logit_bias = {{-1, 1}};
  CHECK(f.run.submit(r).error() == errc::invalid_argument);
}
