// Chooses the next token from logits: greedy, or by temperature, top-k, top-p and min-p, after penalties and biases.
// Randomness is a function of (seed, position) and penalties are of the tokens before, so a request's tokens do not depend
// on the batch it ran in, on preemption, on a restart, or on the worker that goes on with it.
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

struct token_bias {
  token_id token = 0;
  float bias = 0;
};

// With the tokens so far, the whole state of a request's sampling. In this order: repetition penalty, presence and
// frequency penalties, biases, temperature, top-k, top-p, min-p.
struct sampling_params {
  float temperature = 1;    // 0: greedy
  std::uint32_t top_k = 0;  // keep the k largest logits; 0: all
  float top_p = 1;          // of those, keep the smallest set that holds this much of their probability
  float min_p = 0;          // of those, keep what is at least this part as likely as the likeliest
  // Of tokens that were there, in prompt or answer, logits above 0 are divided by it and others multiplied (Keskar et al.,
  // "CTRL", 2019); 1: as they are.
  float repetition_penalty = 1;
  // Subtracted from the logits of tokens that the answer has: once, and for each time (OpenAI's).
  float presence_penalty = 0, frequency_penalty = 0;
  std::vector<token_bias> logit_bias = {};  // added to logits; -infinity bans
  std::uint64_t seed = 0;

  bool look_back() const noexcept {  // at the tokens so far
    return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0;
  }
};

// What penalties look at.
struct sampling_history {
  std::span<const token_id> prompt, answer;
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
  // empty, a logit is NaN or +infinity, or all are -infinity (a broken model must not look like an answer), or a biased
  // token is none of them.
  result<token_id> sample(std::span<const float> logits, const sampling_params& params, std::uint64_t position,
                          const sampling_history& before = {});

 private:
  error_code adjust(std::span<const float> logits, const sampling_params& params, const sampling_history& before);
  struct candidate {
    float logit;
    token_id id;
    double weight;
  };
  std::vector<candidate> candidates_;
  std::vector<float> adjusted_;  // logits after penalties and biases
  std::vector<std::uint32_t>
      times_;  // by token: how often the answer has it, and whether anything has; zero between calls
};

struct token_logprob {
  token_id token = 0;
  float logprob = 0;  // natural
};

// What the model itself thought: of logits as they come, before penalties, biases and temperature.
struct token_logprobs {
  float chosen = 0;
  std::vector<token_logprob> top;  // the likeliest, of equal ones the lowest id first
};
token_logprobs logprobs_of(std::span<const float> logits, token_id chosen, std::uint32_t top);

}  // namespace cokv
