// OpenAI's response objects, as JSON text. Pure.
//
//     openai::reply reply{kind::chat, "chatcmpl-1", model, created, fingerprint};
//     body = reply.whole(text, finish_reason::stop, {.prompt = 12, .cached = 8, .generated = 5});
//     co_await x.write(openai::event(reply.chunk("And it came")));
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cokv/engine/stop_matcher.hpp"

namespace cokv::openai {

enum class kind { completion, chat };

struct usage {
  std::uint64_t prompt = 0;     // tokens
  std::uint64_t cached = 0;     // of those, whose KV was not computed
  std::uint64_t generated = 0;  // tokens
};

struct reply {
  openai::kind kind = kind::completion;
  std::string id;
  std::string model;
  std::int64_t created = 0;  // seconds since 1970
  std::string fingerprint;   // of model and build; what a seed's answer depends on
  bool usage_in_stream = false;

  std::string whole(std::string_view text, finish_reason reason, const usage& u) const;
  // A stream: first(), then chunk() for each piece of text, last() with the reason, and usage_chunk() where asked for.
  std::string first() const;  // empty where the kind has none
  std::string chunk(std::string_view text) const;
  std::string last(finish_reason reason) const;
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
