#include "openai/response.hpp"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <cstdio>

#include "cokv/engine/detokenizer.hpp"

namespace cokv::openai {
namespace {

namespace json = boost::json;

json::value reason_value(finish_reason reason) {
  switch (reason) {
    case finish_reason::stop:
      return "stop";
    case finish_reason::length:
      return "length";
    case finish_reason::none:
      break;
  }
  return nullptr;
}

json::object usage_object(const usage& u) {
  return {{"prompt_tokens", u.prompt},
          {"completion_tokens", u.generated},
          {"total_tokens", u.prompt + u.generated},
          {"prompt_tokens_details", {{"cached_tokens", u.cached}}}};
}

json::object envelope(const reply& r, bool chunk) {
  const char* object = r.kind == kind::completion ? "text_completion"
                       : chunk                    ? "chat.completion.chunk"
                                                  : "chat.completion";
  return {{"id", r.id},
          {"object", object},
          {"created", r.created},
          {"model", r.model},
          {"system_fingerprint", r.fingerprint}};
}

std::string chunk_text(const reply& r, json::array choices, json::value usage) {
  auto out = envelope(r, true);
  out["choices"] = std::move(choices);
  if (r.usage_in_stream) out["usage"] = std::move(usage);
  return json::serialize(out);
}

// A token whose bytes are no characters by themselves is spelt out.
std::string name_of(const std::string& bytes) {
  utf8_repair repair;
  std::string repaired;
  repair.push(bytes, repaired), repair.finish(repaired);
  if (repaired == bytes) return bytes;
  std::string out = "bytes:";
  for (const unsigned char c : bytes) {
    char hex[5];
    std::snprintf(hex, sizeof hex, "\\x%02x", c);
    out += hex;
  }
  return out;
}

json::object chat_token(const std::string& bytes, float logprob) {
  json::array numbers;
  for (const unsigned char c : bytes) numbers.push_back(c);
  return {{"token", name_of(bytes)}, {"logprob", logprob}, {"bytes", std::move(numbers)}};
}

json::value logprobs_value(kind k, const choice& c) {
  if (!c.logprobs) return nullptr;
  if (k == kind::chat) {
    json::array content;
    for (auto& t : *c.logprobs) {
      json::array top;
      for (auto& [bytes, logprob] : t.top) top.push_back(chat_token(bytes, logprob));
      content.push_back(chat_token(t.bytes, t.logprob));
      content.back().as_object()["top_logprobs"] = std::move(top);
    }
    return {{"content", std::move(content)}, {"refusal", nullptr}};
  }
  json::array tokens, logprobs, likeliest, offsets;
  std::size_t offset = c.offset;
  for (auto& t : *c.logprobs) {
    json::object top;
    for (auto& [bytes, logprob] : t.top) top[name_of(bytes)] = logprob;
    tokens.push_back(json::string(name_of(t.bytes)));
    logprobs.push_back(t.logprob);
    likeliest.push_back(std::move(top));
    offsets.push_back(offset);
    offset += characters(t.bytes);
  }
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", std::move(likeliest)},
          {"text_offset", std::move(offsets)}};
}

json::object choice_object(const reply& r, const choice& c) {
  return {{"index", c.index}, {"logprobs", logprobs_value(r.kind, c)}, {"finish_reason", reason_value(c.reason)}};
}

json::object chunk_choice(const reply& r, const choice& c, json::object delta) {
  auto out = choice_object(r, c);
  if (r.kind == kind::completion)
    out["text"] = c.text;
  else
    out["delta"] = std::move(delta);
  return out;
}

json::object object_of(const model_entry& m) {
  return {
      {"id", m.id}, {"object", "model"}, {"created", m.created}, {"owned_by", "cokv"}, {"max_model_len", m.context}};
}

}  // namespace

std::size_t characters(std::string_view bytes) noexcept {
  return static_cast<std::size_t>(
      std::ranges::count_if(bytes, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

std::string reply::whole(std::span<const choice> choices, const usage& u) const {
  json::array all;
  for (auto& c : choices) {
    auto one = choice_object(*this, c);
    if (kind == kind::completion)
      one["text"] = c.text;
    else
      one["message"] = {{"role", "assistant"}, {"content", c.text}, {"refusal", nullptr}};
    all.push_back(std::move(one));
  }
  auto out = envelope(*this, false);
  out["choices"] = std::move(all);
  out["usage"] = usage_object(u);
  return json::serialize(out);
}

std::string reply::first(std::uint32_t index) const {
  if (kind == kind::completion) return {};
  return chunk_text(*this, {chunk_choice(*this, {.index = index}, {{"role", "assistant"}, {"content", ""}})}, nullptr);
}

std::string reply::chunk(const choice& c) const {
  return chunk_text(*this, {chunk_choice(*this, c, {{"content", c.text}})}, nullptr);
}

std::string reply::last(std::uint32_t index, finish_reason reason) const {
  return chunk_text(*this, {chunk_choice(*this, {.index = index, .reason = reason}, {})}, nullptr);
}

std::string reply::usage_chunk(const usage& u) const { return chunk_text(*this, {}, usage_object(u)); }

std::string event(std::string_view data) { return std::string("data: ").append(data).append("\n\n"); }

std::string model_list(const std::vector<model_entry>& models) {
  json::array data;
  for (const auto& m : models) data.push_back(object_of(m));
  return json::serialize(json::object{{"object", "list"}, {"data", std::move(data)}});
}

std::string model_object(const model_entry& m) { return json::serialize(object_of(m)); }

}  // namespace cokv::openai
