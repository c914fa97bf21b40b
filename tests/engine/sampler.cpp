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
  CHECK(check({.temperature = std::nanf("")}).has_value());
  CHECK(check({.top_p = 0}) == "top_p: 0 is not above 0 and at most 1");
  CHECK(check({.top_p = 1.5f}) == "top_p: 1.5 is not above 0 and at most 1");
}
