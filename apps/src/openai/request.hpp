// OpenAI's completion and chat completion requests: JSON in, checked values out. Pure. A parameter is either honoured
// or refused by name; none is accepted and ignored. null counts as absent where OpenAI lets it.
//
//     auto r = openai::parse_completion(body, {.sampling = config.sampling});
//     if (!r) co_return co_await x.refuse(r.error());
#pragma once

#include <boost/system/result.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "cokv/engine/chat_template.hpp"
#include "cokv/engine/sampler.hpp"
#include "cokv/engine/token.hpp"
#include "http/message.hpp"

namespace cokv::openai {

using http::problem;

// What a request that says nothing gets.
struct defaults {
  sampling_params sampling;
};

// What both kinds of request have.
struct common_request {
  std::string model;
  sampling_params sampling;
  bool seeded = false;                      // the client chose the seed
  std::optional<std::uint32_t> max_tokens;  // at least 1
  std::vector<std::string> stop;            // at most 4, none empty
  std::uint32_t n = 1;                      // answers, at most 128
  std::optional<std::uint32_t> logprobs;    // of each token, and of so many likeliest
  bool stream = false;
  bool include_usage = false;  // of a stream
  std::int32_t priority = 0;   // higher is sooner; requests say it the other way round, as vLLM's clients do
  bool ignore_eos = false;     // end tokens are tokens as any other
  std::string cache_salt;      // requests share KV only with requests of the same salt
  std::string user;            // for the log
};

struct completion_request : common_request {
  std::variant<std::string, std::vector<token_id>> prompt;
};

struct chat_request : common_request {
  std::vector<chat_message> messages;
};

template <class T>
using parsed = boost::system::result<T, problem>;

parsed<completion_request> parse_completion(std::string_view body, const defaults& d);
parsed<chat_request> parse_chat(std::string_view body, const defaults& d);

// How many tokens may be generated. Refused: an empty prompt, and one that leaves no room for what was asked for.
// `otherwise` stands where the request names no number; none: as many as fit. `prompt_field` is named by refusals.
parsed<std::uint32_t> tokens_to_generate(const common_request& r, std::size_t prompt_tokens, std::size_t context,
                                         std::optional<std::uint32_t> otherwise,
                                         std::string_view prompt_field = "prompt");

}  // namespace cokv::openai
