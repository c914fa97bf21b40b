// OpenAI's response objects, as JSON text. Pure.
//
//     openai::reply reply{kind::chat, "chatcmpl-1", model, created, fingerprint};
//     body = reply.whole({{{.text = text, .reason = finish_reason::stop}}}, {.prompt = 12, .cached = 8, .generated = 5});
//     co_await x.write(openai::event(reply.chunk({.text = "And it came"})));
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cokv/engine/stop_matcher.hpp"

namespace cokv::openai {

enum class kind { completion, chat };

struct usage {
  std::uint64_t prompt = 0;     // tokens
  std::uint64_t cached = 0;     // of those, whose KV was not computed
  std::uint64_t generated = 0;  // tokens
};

// A token of an answer by its bytes, and what it and the likeliest at its place had for probability.
struct logged_token {
  std::string bytes;
  float logprob = 0;
  std::vector<std::pair<std::string, float>> top = {};
};

// One of a request's answers, or a part of one.
struct choice {
  std::uint32_t index = 0;
  std::string text;
  finish_reason reason = finish_reason::none;
  std::optional<std::vector<logged_token>> logprobs = {};  // where they were asked for
  std::size_t offset = 0;                                  // of its first token in the answer's text, in characters
};

// How many characters bytes of UTF-8 begin: what offsets count.
std::size_t characters(std::string_view bytes) noexcept;

struct reply {
  openai::kind kind = kind::completion;
  std::string id;
  std::string model;
  std::int64_t created = 0;  // seconds since 1970
  std::string fingerprint;   // of model and build; what a seed's answer depends on
  bool usage_in_stream = false;

  std::string whole(std::span<const choice> choices, const usage& u) const;
  // A stream: first() of each choice, then chunk() for each piece of text, last() with the reason, and usage_chunk() where
  // asked for.
  std::string first(std::uint32_t index = 0) const;  // empty where the kind has none
  std::string chunk(const choice& c) const;
  std::string last(std::uint32_t index, finish_reason reason) const;
  std::string usage_chunk(const usage& u) const;
};

// A server-sent event.
std::string event(std::string_view data);
inline constexpr std::string_view done_event = "data: [DONE]\n\n";

struct model_entry {
  std::string id;
  std::int64_t created = 0;
  std::uint64_t context = 0;  // tokens
};
std::string model_list(const std::vector<model_entry>& models);
std::string model_object(const model_entry& model);

}  // namespace cokv::openai
