#include "cokv/engine/sampler.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>
#include <set>

#include "cokv/runtime/error.hpp"

using namespace cokv;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

std::vector<double> frequencies(std::span<const float> logits, sampling_params params, int draws) {
  sampler s;
  std::vector<double> out(logits.size());
  for (int i = 0; i < draws; ++i) out[static_cast<std::size_t>(*s.sample(logits, params, i))] += 1.0 / draws;
  return out;
}

std::set<token_id> support(std::span<const float> logits, sampling_params params) {
  sampler s;
  std::set<token_id> out;
  for (std::uint64_t i = 0; i < 5000; ++i) out.insert(*s.sample(logits, params, i));
  return out;
}

}  // namespace

TEST_CASE("philox4x32-10 gives the known answers of its reference implementation") {
  using counter = std::array<std::uint32_t, 4>;
  CHECK(philox4x32({0, 0, 0, 0}, {0, 0}) == counter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}) == counter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        counter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("a uniform number depends on every bit of seed and position, and on nothing else") {
  CHECK(uniform(1, 2) == uniform(1, 2));
  std::set<double> seen;
  for (int bit = 0; bit < 64; ++bit) {
    seen.insert(uniform(std::uint64_t{1} << bit, 0));
    seen.insert(uniform(0, std::uint64_t{1} << bit));
  }
  CHECK(seen.size() == 128);
  double sum = 0, squares = 0;
  constexpr int n = 100'000;
  for (int i = 0; i < n; ++i) {
    auto u = uniform(42, i);
    REQUIRE(u >= 0);
    REQUIRE(u < 1);
    sum += u;
    squares += u * u;
  }
  CHECK(std::abs(sum / n - 0.5) < 0.005);  // five standard deviations
  CHECK(std::abs(squares / n - 1.0 / 3) < 0.005);
}

TEST_CASE("temperature 0 takes the largest logit, the lowest id of equal ones") {
  sampler s;
  std::vector<float> logits{1, 3, -infinity, 3, 2};
  for (std::uint64_t at : {0, 1, 999}) {
    CHECK(*s.sample(logits, {.temperature = 0, .seed = at}, at) == 1);
    CHECK(*s.sample(logits, {.temperature = 1, .top_k = 1}, at) == 1);
  }
}

TEST_CASE("a draw is a function of logits, parameters, seed and position") {
  std::mt19937_64 random(3);
  std::vector<float> logits(500);
  for (auto& l : logits) l = static_cast<float>(random() % 1000) / 100;
  sampler one, two;
  for (std::uint64_t at = 0; at < 200; ++at) {
    sampling_params params{.temperature = 0.7f, .top_k = at % 2 ? 50u : 0u, .top_p = at % 3 ? 0.9f : 1, .seed = 11};
    auto first = *one.sample(logits, params, at);
    two.sample(std::vector<float>{1, 2, 3}, {}, at).value();  // what came before leaves no trace
    CHECK(*two.sample(logits, params, at) == first);
  }
}

TEST_CASE("draws follow the softmax of logits over temperature") {
  std::vector<float> logits{0, 1, 2, -1, 0.5f};
  for (float temperature : {0.5f, 1.0f, 2.0f}) {
    double total = 0;
    std::vector<double> want;
    for (auto l : logits) want.push_back(std::exp(l / temperature));
    for (auto w : want) total += w;
    constexpr int draws = 40'000;
    auto got = frequencies(logits, {.temperature = temperature, .seed = 5}, draws);
    double chi_square = 0;
    for (std::size_t i = 0; i < want.size(); ++i)
      chi_square += draws * std::pow(got[i] - want[i] / total, 2) / (want[i] / total);
    CHECK(chi_square < 18.5);  // 4 degrees of freedom, p = 0.001; the seed is fixed
  }
}

TEST_CASE("top-k keeps k, with equal logits by id, and renormalizes") {
  std::vector<float> logits{1, 2, 2, 2, 0};
  CHECK(support(logits, {.top_k = 2}) == std::set<token_id>{1, 2});
  CHECK(support(logits, {.top_k = 5}) == std::set<token_id>{0, 1, 2, 3, 4});
  CHECK(support(logits, {.top_k = 99}).size() == 5);
  auto half = frequencies(logits, {.top_k = 2, .seed = 1}, 20'000);
  CHECK(std::abs(half[1] - 0.5) < 0.02);
}

TEST_CASE("top-p keeps the smallest set that holds the mass, and always one") {
  std::vector<float> logits;
  for (double p : {0.5, 0.3, 0.15, 0.05}) logits.push_back(static_cast<float>(std::log(p)));
  CHECK(support(logits, {.top_p = 0.4f}) == std::set<token_id>{0});
  CHECK(support(logits, {.top_p = 0.7f}) == std::set<token_id>{0, 1});
  CHECK(support(logits, {.top_p = 0.81f}) == std::set<token_id>{0, 1, 2});
  CHECK(support(logits, {.top_p = 1e-9f}) == std::set<token_id>{0});
  // After top-k 2 the masses are 0.625 and 0.375.
  CHECK(support(logits, {.top_k = 2, .top_p = 0.6f}) == std::set<token_id>{0});
  CHECK(support(logits, {.top_k = 2, .top_p = 0.65f}) == std::set<token_id>{0, 1});
}

TEST_CASE("min-p keeps what is that part as likely as the likeliest, of what top-k and top-p kept") {
  std::vector<float> logits;
  for (double p : {0.5, 0.3, 0.15, 0.05}) logits.push_back(static_cast<float>(std::log(p)));
  CHECK(support(logits, {.min_p = 0.05f}) == std::set<token_id>{0, 1, 2, 3});
  CHECK(support(logits, {.min_p = 0.2f}) == std::set<token_id>{0, 1, 2});
  CHECK(support(logits, {.min_p = 0.59f}) == std::set<token_id>{0, 1});
  CHECK(support(logits, {.min_p = 1}) == std::set<token_id>{0});
  CHECK(support(logits, {.top_k = 2, .min_p = 0.2f}) == std::set<token_id>{0, 1});
  CHECK(support(logits, {.top_p = 0.7f, .min_p = 0.01f}) == std::set<token_id>{0, 1});
  CHECK(support(logits, {.temperature = 0.5f, .min_p = 0.2f}) == std::set<token_id>{0, 1});  // 0.36 and 0.09 of it
  const auto left = frequencies(logits, {.min_p = 0.59f, .seed = 2}, 20'000);
  CHECK(std::abs(left[0] - 0.625) < 0.02);
}

TEST_CASE("penalties move the logits of tokens that were there, each once, as their formulas say") {
  std::mt19937_64 random(7);
  sampler s, fresh;
  for (std::uint64_t round = 0; round < 300; ++round) {
    std::vector<float> logits(40);
    for (auto& l : logits) l = static_cast<float>(random() % 2000) / 100 - 10;
    std::vector<token_id> prompt, answer;
    for (int i = 0; i < 12; ++i) prompt.push_back(static_cast<token_id>(random() % 40));
    for (int i = 0; i < 20; ++i) answer.push_back(static_cast<token_id>(random() % 20));
    const sampling_params params{.temperature = round % 2 ? 1.0f : 0.0f,
                                 .repetition_penalty = round % 3 ? 1.3f : 1,
                                 .presence_penalty = round % 5 ? 0.4f : 0,
                                 .frequency_penalty = round % 7 ? -0.25f : 0,
                                 .logit_bias = {{3, 2.5f}, {39, -100}},
                                 .seed = round};
    auto want = logits;
    for (token_id t = 0; t < 40; ++t) {
      auto& l = want[static_cast<std::size_t>(t)];
      const auto n = std::ranges::count(answer, t);
      if (n > 0 || std::ranges::count(prompt, t) > 0)
        l = l > 0 ? l / params.repetition_penalty : l * params.repetition_penalty;
      if (n > 0) l -= params.presence_penalty + static_cast<float>(n) * params.frequency_penalty;
    }
    want[3] += 2.5f, want[39] -= 100;
    const auto token = *s.sample(logits, params, round, {prompt, answer});
    CHECK(token == *fresh.sample(want, {.temperature = params.temperature, .seed = round}, round));
    CHECK(*s.sample(logits, {.temperature = 0}, 0) == std::ranges::max_element(logits) - logits.begin());
  }
}

TEST_CASE("a bias bans or forces a token, and of one that is none nothing is sampled") {
  const std::vector<float> logits{1, 5, 2, 4};
  sampler s;
  CHECK(*s.sample(logits, {.temperature = 0, .logit_bias = {{1, -infinity}}}, 0) == 3);
  CHECK(support(logits, {.logit_bias = {{0, 100}}}) == std::set<token_id>{0});
  CHECK(s.sample(logits, {.logit_bias = {{4, 1}}}, 0).error() == errc::invalid_argument);
  CHECK(s.sample(logits, {.logit_bias = {{-1, 1}}}, 0).error() == errc::invalid_argument);
  CHECK(*s.sample(logits, {.temperature = 0, .repetition_penalty = 2}, 0, {std::vector<token_id>{99, -5, 1}, {}}) == 3);
}

TEST_CASE("logprobs are of the logits as they come, the likeliest first") {
  const std::vector<float> logits{0, 3, 1, 3, -infinity};
  const double all = std::log(1 + 2 * std::exp(3.0) + std::exp(1.0));
  const auto p = logprobs_of(logits, 2, 3);
  CHECK(p.chosen == doctest::Approx(1 - all));
  REQUIRE(p.top.size() == 3);
  CHECK(p.top[0].token == 1);
  CHECK(p.top[1].token == 3);
  CHECK(p.top[2].token == 2);
  CHECK(p.top[0].logprob == doctest::Approx(3 - all));
  CHECK(p.top[2].logprob == p.chosen);
  CHECK(logprobs_of(logits, 0, 0).top.empty());
  CHECK(logprobs_of(logits, 0, 99).top.size() == 5);
  double sum = 0;
  for (auto& t : logprobs_of(logits, 0, 5).top) sum += std::exp(double{t.logprob});
  CHECK(sum == doctest::Approx(1));
  const std::vector<float> large{3e38f, 3e38f};
  CHECK(logprobs_of(large, 0, 1).chosen == doctest::Approx(-std::log(2.0)));
}

TEST_CASE("top-p over many near-equal logits sorts as far as it has to") {
  std::vector<float> logits(3000);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>((i * 7919) % 3000) * 1e-4f;
  double total = 0;
  std::vector<double> weights;
  for (auto l : logits) weights.push_back(std::exp(double{l}));
  std::sort(weights.rbegin(), weights.rend());
  for (auto w : weights) total += w;
  std::size_t kept = 0;
  for (double mass = 0; mass < 0.5f * total; ++kept) mass += weights[kept];
  auto threshold = static_cast<float>(std::log(weights[kept - 1])) - 1e-6f;
  sampler s;
  for (std::uint64_t at = 0; at < 2000; ++at)
    CHECK(logits[static_cast<std::size_t>(*s.sample(logits, {.top_p = 0.5f, .seed = 3}, at))] >= threshold);
}

TEST_CASE("extreme temperatures and logits stay in range") {
  std::vector<float> logits{-3e38f, 3e38f, 0, -infinity};
  sampler s;
  for (std::uint64_t at = 0; at < 100; ++at) {
    CHECK(*s.sample(logits, {.temperature = 1e-30f}, at) == 1);
    CHECK(*s.sample(logits, {.temperature = 100, .top_p = 0.5f}, at) == 1);
  }
  CHECK(!support(std::vector<float>{0, -infinity, 0}, {.temperature = 100}).contains(1));
}

TEST_CASE("logits that no model should give are an error, not an answer") {
  sampler s;
  CHECK(s.sample({}, {}, 0).error() == errc::invalid_argument);
  CHECK(s.sample(std::vector<float>{1, std::nanf("")}, {}, 0).error() == errc::invalid_argument);
  CHECK(s.sample(std::vector<float>{1, infinity}, {.temperature = 0}, 0).error() == errc::invalid_argument);
  CHECK(s.sample(std::vector<float>{-infinity, -infinity}, {}, 0).error() == errc::invalid_argument);
}

TEST_CASE("parameters out of range are named") {
  CHECK(!check({}));
  CHECK(!check({.temperature = 0, .top_k = 5, .top_p = 0.1f}));
  CHECK(check({.temperature = -1}) == "temperature: -1 is not in 0 to 100");
  CHECK(check({.min_p = 1.5f}) == "min_p: 1.5 is not in 0 to 1");
  CHECK(check({.repetition_penalty = 0}) == "repetition_penalty: 0 is not in 0.01 to 100");
  CHECK(check({.presence_penalty = std::nanf("")}).has_value());
  CHECK(check({.frequency_penalty = 101}) == "frequency_penalty: 101 is not in -100 to 100");
  CHECK(check({.logit_bias = {{1, infinity}}}) == "logit_bias: inf for token 1");
  CHECK(!check({.logit_bias = {{1, -infinity}}}));
  CHECK(check({.temperature = std::nanf("")}).has_value());
  CHECK(check({.top_p = 0}) == "top_p: 0 is not above 0 and at most 1");
  CHECK(check({.top_p = 1.5f}) == "top_p: 1.5 is not above 0 and at most 1");
}
