// Chooses the next token from logits: greedy, or by temperature, top-k and top-p. Randomness is a function of (seed,
// position), so a request's tokens do not depend on the batch it ran in, on preemption, or on a restart.
//
//     cokv::sampler sampler;
//     auto token = sampler.sample(logits, {.temperature = 0.8f, .top_p = 0.95f, .seed = 7}, position);
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cokv/engine/token.hpp"
#include "cokv/runtime/asio.hpp"

namespace cokv {

// The whole state of a request's sampling.
struct sampling_params {
  float temperature = 1;    // 0: greedy
  std::uint32_t top_k = 0;  // keep the k largest logits; 0: all
  float top_p = 1;          // of those, keep the smallest set that holds this much of their probability
  std::uint64_t seed = 0;
};

// Empty when the values make sense, else one line that names the field: "top_p: 1.5 is not above 0 and at most 1".
std::optional<std::string> check(const sampling_params& params);

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11): ten rounds on a 128-bit counter
// under a 64-bit key.
std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key) noexcept;

// In [0, 1), 53 bits, from (seed, position).
double uniform(std::uint64_t seed, std::uint64_t position) noexcept;

// Keeps scratch memory between calls: one object a thread.
class sampler {
 public:
  // `position` is the place in the sequence that the token will take (prompt length + tokens generated so far). Equal
  // logits are ordered by id, lowest first; top-p applies to what top-k kept. errc::invalid_argument when logits are
  // empty, a logit is NaN or +infinity, or all are -infinity: a broken model must not look like an answer.
  result<token_id> sample(std::span<const float> logits, const sampling_params& params, std::uint64_t position);

 private:
  struct candidate {
    float logit;
    token_id id;
    double weight;
  };
  std::vector<candidate> candidates_;
};

}  // namespace cokv
