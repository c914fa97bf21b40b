// What is asked of a model in parts on CUDA devices, and what the whole of it says on the CPU.
#pragma once

#include <random>
#include <vector>

#include "engine/generate_fixture.hpp"
#include "engine/golden.hpp"

namespace cokv::test {

// Crowded or not, in chunks or not.
inline engine_options some_options(std::mt19937& random) {
  engine_options o{.block_tokens = static_cast<std::uint32_t>(4 + random() % 13),
                   .max_batched_tokens = static_cast<std::uint32_t>(random() % 2 ? 1024 : 1 + random() % 40),
                   .microbatches = static_cast<std::uint32_t>(1 + random() % 3)};
  o.kv_blocks = random() % 2 ? 400 : 160 / o.block_tokens + 1;
  return o;
}

inline std::vector<generation_request> requests_of(const golden& family, std::mt19937& random) {
  std::vector<generation_request> out;
  for (auto& c : family.cases) {
    out.push_back({.prompt = c.prompt, .max_tokens = 6, .logprobs = 2, .ignore_end_tokens = true});
    out.back().sampling.temperature = 0;
  }
  for (int i = 0; i < 3; ++i) {  // chosen on the device, with what they look back at there
    generation_request r{.max_tokens = static_cast<std::uint32_t>(1 + random() % 8), .ignore_end_tokens = true};
    for (auto n = 1 + random() % 30; n > 0; --n) r.prompt.push_back(static_cast<token_id>(2 + random() % 250));
    r.sampling.temperature = 0;
    if (random() % 2) r.sampling.frequency_penalty = 0.5f, r.sampling.repetition_penalty = 1.2f;
    if (random() % 3 == 0) r.sampling.logit_bias = {{7, 3.f}, {9, -3.f}};
    out.push_back(std::move(r));
  }
  return out;
}

inline std::vector<answer> whole_answers(const golden& family, dtype type,
                                         const std::vector<generation_request>& requests) {
  asio::io_context io{1};
  engine serves(io.get_executor(), open_device(io.get_executor(), "cpu").value(),
                load_model(family.folder, {.compute = type}), std::nullopt, {});
  std::vector<answer> out(requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i)
    asio::co_spawn(io, collect(serves.submit(requests[i]).value(), out[i]), asio::detached);
  io.run();
  return out;
}

inline void check_same(const std::vector<answer>& got, const std::vector<answer>& want, dtype type) {
  for (std::size_t i = 0; i < want.size(); ++i) {
    CAPTURE(i);
    CHECK(got[i].ended == asio::error::eof);
    CHECK(got[i].tokens.size() == want[i].tokens.size());
    REQUIRE(got[i].logprobs.size() == want[i].logprobs.size());
    if (type != dtype::f32) continue;
    CHECK(got[i].tokens == want[i].tokens);
    for (std::size_t t = 0; t < got[i].logprobs.size(); ++t)
      CHECK(got[i].logprobs[t].chosen == doctest::Approx(want[i].logprobs[t].chosen).epsilon(1e-3));
  }
}

}  // namespace cokv::test
