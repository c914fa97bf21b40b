#include "openai/response.hpp"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>

namespace cokv::openai {
namespace {

namespace json = boost::json;

json::string_view view(std::string_view s) { return {s.data(), s.size()}; }

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

json::object choice_of(const reply& r, std::string_view text, json::object delta, finish_reason reason) {
  json::object choice{{"index", 0}, {"logprobs", nullptr}, {"finish_reason", reason_value(reason)}};
  if (r.kind == kind::completion)
    choice["text"] = view(text);
  else
    choice["delta"] = std::move(delta);
  return choice;
}

json::object object_of(const model_entry& m) {
  return {
      {"id", m.id}, {"object", "model"}, {"created", m.created}, {"owned_by", "cokv"}, {"max_model_len", m.context}};
}

}  // namespace

std::string reply::whole(std::string_view text, finish_reason reason, const usage& u) const {
  json::object choice{{"index", 0}, {"logprobs", nullptr}, {"finish_reason", reason_value(reason)}};
  if (kind == kind::completion)
    choice["text"] = view(text);
  else
    choice["message"] = {{"role", "assistant"}, {"content", view(text)}, {"refusal", nullptr}};
  auto out = envelope(*this, false);
  out["choices"] = json::array{std::move(choice)};
  out["usage"] = usage_object(u);
  return json::serialize(out);
}

std::string reply::first() const {
  if (kind == kind::completion) return {};
  return chunk_text(*this, {choice_of(*this, {}, {{"role", "assistant"}, {"content", ""}}, finish_reason::none)},
                    nullptr);
}

std::string reply::chunk(std::string_view text) const {
  return chunk_text(*this, {choice_of(*this, text, {{"content", view(text)}}, finish_reason::none)}, nullptr);
}

std::string reply::last(finish_reason reason) const {
  return chunk_text(*this, {choice_of(*this, {}, {}, reason)}, nullptr);
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
