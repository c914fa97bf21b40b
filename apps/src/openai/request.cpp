#include "openai/request.hpp"

#include <charconv>
#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "cokv/engine/scheduler.hpp"
#include "http/json.hpp"

namespace cokv::openai {
namespace {

namespace json = boost::json;
using fault = std::optional<problem>;

constexpr std::size_t most_biases = 1024, most_messages = 4096;
constexpr std::int64_t most_answers = 128;

std::string text(json::string_view s) { return {s.data(), s.size()}; }

fault refuse(std::string_view field, std::string why, std::string code = "invalid_value") {
  std::string message = field.empty() ? why : std::string(field) + ": " + why;
  return problem{http::status::bad_request, std::move(message), std::string(field), std::move(code)};
}

fault unsupported(std::string_view field, std::string_view only) {
  return refuse(field, "only " + std::string(only) + " is supported here", "unsupported_value");
}

std::optional<double> number(const json::value& v) {
  if (!v.is_number()) return std::nullopt;
  const double d = v.to_number<double>();
  return std::isfinite(d) ? std::optional(d) : std::nullopt;
}

std::optional<std::int64_t> integer(const json::value& v) {
  if (v.is_int64()) return v.get_int64();
  if (v.is_uint64()) return std::nullopt;  // above what fits
  if (v.is_double() && std::trunc(v.get_double()) == v.get_double() && std::abs(v.get_double()) < 9e15)
    return static_cast<std::int64_t>(v.get_double());
  return std::nullopt;
}

// Also of integers that integer() has no room for.
bool whole(const json::value& v) {
  return v.is_uint64() || v.is_int64() || (v.is_double() && std::trunc(v.get_double()) == v.get_double());
}

fault take_string(std::string_view field, const json::value& v, std::string& into, std::size_t longest) {
  if (!v.is_string()) return refuse(field, "has to be a string", "invalid_type");
  if (v.get_string().size() > longest) return refuse(field, "longer than " + std::to_string(longest) + " bytes");
  into = text(v.get_string());
  return {};
}

fault take_flag(std::string_view field, const json::value& v, bool& into) {
  if (!v.is_bool()) return refuse(field, "has to be true or false", "invalid_type");
  into = v.get_bool();
  return {};
}

fault take_number(std::string_view field, const json::value& v, double low, double high, float& into) {
  const auto n = number(v);
  if (!n) return refuse(field, "has to be a number", "invalid_type");
  if (*n < low || *n > high) {
    auto show = [](double d) { return d == std::trunc(d) ? std::to_string(static_cast<long>(d)) : std::to_string(d); };
    return refuse(field, "has to be from " + show(low) + " to " + show(high));
  }
  into = static_cast<float>(*n);
  return {};
}

fault take_count(std::string_view field, const json::value& v, std::int64_t low, std::uint32_t& into,
                 std::int64_t high = std::numeric_limits<std::int32_t>::max()) {
  const auto n = integer(v);
  if (!n && !whole(v)) return refuse(field, "has to be an integer", "invalid_type");
  if (!n || *n < low || *n > high)
    return refuse(field, "has to be an integer from " + std::to_string(low) + " to " + std::to_string(high));
  into = static_cast<std::uint32_t>(*n);
  return {};
}

// Parameters of which one value means "don't": that one is honoured by doing nothing.
fault only_false(std::string_view field, const json::value& v) {
  return v.is_bool() && !v.get_bool() ? fault() : unsupported(field, "false");
}
fault only_empty(std::string_view field, const json::value& v) {
  const bool empty = (v.is_array() && v.get_array().empty()) || (v.is_object() && v.get_object().empty()) ||
                     (v.is_string() && v.get_string().empty());
  return empty ? fault() : unsupported(field, "null");
}
fault never(std::string_view field, const json::value&) { return unsupported(field, "null"); }

fault take_stop(std::string_view field, const json::value& v, std::vector<std::string>& into) {
  into.clear();
  auto one = [&](const json::value& s) -> fault {
    std::string stop;
    if (auto f = take_string(field, s, stop, 1024)) return f;
    if (stop.empty()) return refuse(field, "an empty stop string would end every answer");
    into.push_back(std::move(stop));
    return {};
  };
  if (!v.is_array()) return one(v);
  if (v.get_array().size() > 4) return refuse(field, "at most 4 strings");
  for (const auto& s : v.get_array())
    if (auto f = one(s)) return f;
  return {};
}

// {"token id": bias}: ids in any order.
fault take_biases(std::string_view field, const json::value& v, std::vector<token_bias>& into) {
  if (!v.is_object()) return refuse(field, "has to be an object", "invalid_type");
  if (v.get_object().size() > most_biases) return refuse(field, "more than " + std::to_string(most_biases) + " tokens");
  for (const auto& [key, value] : v.get_object()) {
    const std::string name = std::string(field) + '.' + text(key);
    token_bias b;
    const auto [end, ec] = std::from_chars(key.data(), key.data() + key.size(), b.token);
    if (ec != std::errc() || end != key.data() + key.size() || b.token < 0)
      return refuse(name, "token ids are integers from 0");
    if (auto f = take_number(name, value, -100, 100, b.bias)) return f;
    into.push_back(b);
  }
  return {};
}

fault take_stream_options(std::string_view field, const json::value& v, bool& include_usage) {
  if (!v.is_object()) return refuse(field, "has to be an object", "invalid_type");
  for (const auto& [key, value] : v.get_object()) {
    const std::string name = std::string(field) + '.' + text(key);
    if (value.is_null()) continue;
    if (key == "include_usage") {
      if (auto f = take_flag(name, value, include_usage)) return f;
    } else if (key == "include_obfuscation") {
      if (auto f = only_false(name, value)) return f;
    } else {
      return refuse(name, "unknown parameter", "unknown_parameter");
    }
  }
  return {};
}

fault take_token_ids(std::string_view field, const json::array& list, std::vector<token_id>& into) {
  into.clear();
  into.reserve(list.size());
  for (const auto& v : list) {
    const auto id = integer(v);
    if (!id || *id < 0 || *id > std::numeric_limits<token_id>::max())
      return refuse(field, "token ids are integers from 0", "invalid_type");
    into.push_back(static_cast<token_id>(*id));
  }
  return {};
}

fault take_prompt(std::string_view field, const json::value& v, completion_request& r) {
  if (v.is_string()) {
    r.prompt = text(v.get_string());
    return {};
  }
  if (!v.is_array()) return refuse(field, "has to be a string or a list of token ids", "invalid_type");
  const auto& list = v.get_array();
  if (list.empty()) return refuse(field, "is empty");
  if (list.front().is_string() || list.front().is_array()) {
    if (list.size() != 1) return refuse(field, "only one prompt a request is supported here", "unsupported_value");
    return take_prompt(field, list.front(), r);
  }
  return take_token_ids(field, list, r.prompt.emplace<std::vector<token_id>>());
}

fault take_content(const std::string& field, const json::value& v, std::string& into) {
  if (v.is_string()) {
    into = text(v.get_string());
    return {};
  }
  if (!v.is_array()) return refuse(field, "has to be a string or a list of text parts", "invalid_type");
  into.clear();
  for (const auto& part : v.get_array()) {
    const auto* o = part.if_object();
    const auto* type = o ? o->if_contains("type") : nullptr;
    const auto* words = o ? o->if_contains("text") : nullptr;
    if (!type || *type != "text") return unsupported(field, "content of type text");
    if (!words || !words->is_string() || o->size() != 2)
      return refuse(field, "a text part has a type and a text", "invalid_type");
    into += text(words->get_string());
  }
  return {};
}

fault take_messages(std::string_view field, const json::value& v, std::vector<chat_message>& into) {
  const auto* list = v.if_array();
  if (!list) return refuse(field, "has to be a list of messages", "invalid_type");
  if (list->empty()) return refuse(field, "is empty");
  if (list->size() > most_messages) return refuse(field, "more than " + std::to_string(most_messages) + " messages");
  for (std::size_t i = 0; i < list->size(); ++i) {
    const std::string at = std::string(field) + '[' + std::to_string(i) + ']';
    const auto* o = (*list)[i].if_object();
    if (!o) return refuse(at, "has to be an object", "invalid_type");
    chat_message m;
    bool has_content = false;
    for (const auto& [key, value] : *o) {
      const std::string name = at + '.' + text(key);
      fault f;
      if (key == "role") {
        f = take_string(name, value, m.role, 64);
      } else if (key == "content") {
        f = take_content(name, value, m.content);
        has_content = true;
      } else if (value.is_null()) {
        // as in messages that clients send back the way they came
      } else if (key == "tool_calls" || key == "annotations") {
        f = only_empty(name, value);
      } else if (key == "name" || key == "refusal" || key == "audio" || key == "function_call" ||
                 key == "tool_call_id") {
        f = never(name, value);
      } else {
        f = refuse(name, "unknown parameter", "unknown_parameter");
      }
      if (f) return f;
    }
    if (m.role.empty()) return refuse(at + ".role", "is missing", "missing_required_parameter");
    if (!has_content) return refuse(at + ".content", "is missing", "missing_required_parameter");
    if (auto rendered = render_chat({&m, 1}); !rendered) return refuse(at + ".role", "unknown role " + m.role);
    into.push_back(std::move(m));
  }
  return {};
}

using taker = std::function<fault(std::string_view, const json::value&)>;
using takers = std::map<std::string, taker, std::less<>>;

// Fills `t` with the parameters that both kinds of request have.
void add_common(takers& t, common_request& r, std::optional<bool>& usage) {
  t["model"] = [&](auto f, auto& v) { return take_string(f, v, r.model, 1024); };
  t["temperature"] = [&](auto f, auto& v) { return take_number(f, v, 0, 2, r.sampling.temperature); };
  t["top_p"] = [&](auto f, auto& v) { return take_number(f, v, 0, 1, r.sampling.top_p); };
  t["top_k"] = [&](auto f, auto& v) { return take_count(f, v, 0, r.sampling.top_k); };
  t["seed"] = [&](auto f, auto& v) -> fault {
    if (v.is_uint64()) {
      r.sampling.seed = v.get_uint64();
    } else if (auto n = integer(v)) {
      r.sampling.seed = static_cast<std::uint64_t>(*n);
    } else {
      return refuse(f, "has to be an integer", "invalid_type");
    }
    r.seeded = true;
    return {};
  };
  t["max_tokens"] = [&](auto f, auto& v) { return take_count(f, v, 1, r.max_tokens.emplace()); };
  t["stop"] = [&](auto f, auto& v) { return take_stop(f, v, r.stop); };
  t["stream"] = [&](auto f, auto& v) { return take_flag(f, v, r.stream); };
  t["stream_options"] = [&](auto f, auto& v) { return take_stream_options(f, v, usage.emplace(false)); };
  t["ignore_eos"] = [&](auto f, auto& v) { return take_flag(f, v, r.ignore_eos); };
  t["cache_salt"] = [&](auto f, auto& v) { return take_string(f, v, r.cache_salt, 1024); };
  t["priority"] = [&](auto f, auto& v) -> fault {  // the lower the sooner
    const auto n = integer(v);
    if (!n && !whole(v)) return refuse(f, "has to be an integer", "invalid_type");
    if (!n || *n < -most_priority || *n > most_priority)
      return refuse(f, "has to be from -" + std::to_string(most_priority) + " to " + std::to_string(most_priority));
    r.priority = static_cast<std::int32_t>(-*n);
    return {};
  };
  t["user"] = [&](auto f, auto& v) { return take_string(f, v, r.user, 1024); };
  t["n"] = [&](auto f, auto& v) { return take_count(f, v, 1, r.n, most_answers); };
  t["min_p"] = [&](auto f, auto& v) { return take_number(f, v, 0, 1, r.sampling.min_p); };
  t["repetition_penalty"] = [&](auto f, auto& v) {
    return take_number(f, v, 0.01, 100, r.sampling.repetition_penalty);
  };
  t["presence_penalty"] = [&](auto f, auto& v) { return take_number(f, v, -2, 2, r.sampling.presence_penalty); };
  t["frequency_penalty"] = [&](auto f, auto& v) { return take_number(f, v, -2, 2, r.sampling.frequency_penalty); };
  t["logit_bias"] = [&](auto f, auto& v) { return take_biases(f, v, r.sampling.logit_bias); };
}

template <class Request>
parsed<Request> parse(std::string_view body, Request& r, takers& table, std::optional<bool>& usage,
                      std::string_view required) {
  const auto value = http::parse_json(body);
  if (!value) return value.error();
  const auto* object = value->if_object();
  if (!object) return *refuse({}, "the request body has to be a JSON object", "invalid_type");
  for (const auto& [key, v] : *object) {
    const auto at = table.find(std::string_view(key.data(), key.size()));
    if (at == table.end()) return *refuse(text(key), "unknown parameter", "unknown_parameter");
    if (v.is_null()) continue;
    if (auto f = at->second(at->first, v)) return *f;
  }
  for (const std::string_view name : {std::string_view("model"), required}) {
    const auto* v = object->if_contains(json::string_view(name.data(), name.size()));
    if (!v || v->is_null()) return *refuse(name, "is missing", "missing_required_parameter");
  }
  if (usage && !r.stream) return *refuse("stream_options", "only goes with stream: true");
  r.include_usage = usage.value_or(false);
  if (auto wrong = check(r.sampling)) {
    const auto field = wrong->substr(0, wrong->find(':'));
    return problem{http::status::bad_request, *wrong, field, "invalid_value"};
  }
  return std::move(r);
}

}  // namespace

parsed<completion_request> parse_completion(std::string_view body, const defaults& d) {
  completion_request r;
  r.sampling = d.sampling;
  std::optional<bool> usage;
  std::optional<std::uint32_t> best_of;
  takers t;
  add_common(t, r, usage);
  t["prompt"] = [&](auto f, auto& v) { return take_prompt(f, v, r); };
  t["best_of"] = [&](auto f, auto& v) { return take_count(f, v, 1, best_of.emplace(), most_answers); };
  t["echo"] = only_false;
  t["logprobs"] = [&](auto f, auto& v) { return take_count(f, v, 0, r.logprobs.emplace(), 5); };
  t["suffix"] = only_empty;
  auto all = parse(body, r, t, usage, "prompt");
  if (all && best_of && *best_of != all->n) return *unsupported("best_of", "the same as n");
  return all;
}

parsed<chat_request> parse_chat(std::string_view body, const defaults& d) {
  chat_request r;
  r.sampling = d.sampling;
  std::optional<bool> usage;
  std::optional<std::uint32_t> completion_tokens;
  takers t;
  add_common(t, r, usage);
  t["messages"] = [&](auto f, auto& v) { return take_messages(f, v, r.messages); };
  t["max_completion_tokens"] = [&](auto f, auto& v) { return take_count(f, v, 1, completion_tokens.emplace()); };
  bool logprobs = false;
  std::uint32_t top_logprobs = 0;
  t["logprobs"] = [&](auto f, auto& v) { return take_flag(f, v, logprobs); };
  t["top_logprobs"] = [&](auto f, auto& v) { return take_count(f, v, 0, top_logprobs, 20); };
  t["tools"] = only_empty;
  t["functions"] = only_empty;
  t["tool_choice"] =
      t["function_call"] = [](auto f, auto& v) { return v == "none" ? fault() : unsupported(f, "none"); };
  t["parallel_tool_calls"] = only_false;
  t["store"] = only_false;
  t["metadata"] = only_empty;
  t["response_format"] = [](auto f, auto& v) {
    return v == json::value{{"type", "text"}} ? fault() : unsupported(f, "{\"type\": \"text\"}");
  };
  t["modalities"] = [](auto f, auto& v) { return v == json::array{"text"} ? fault() : unsupported(f, "[\"text\"]"); };
  t["service_tier"] = [](auto f, auto& v) {
    return v == "auto" || v == "default" ? fault() : unsupported(f, "default");
  };
  auto out = parse(body, r, t, usage, "messages");
  if (out && top_logprobs > 0 && !logprobs) return *refuse("top_logprobs", "only goes with logprobs: true");
  if (out && logprobs) out->logprobs = top_logprobs;
  if (out && completion_tokens) {
    if (out->max_tokens && *out->max_tokens != *completion_tokens)
      return *refuse("max_completion_tokens", "says another number than max_tokens");
    out->max_tokens = completion_tokens;
  }
  return out;
}

parsed<std::uint32_t> tokens_to_generate(const common_request& r, std::size_t prompt_tokens, std::size_t context,
                                         std::optional<std::uint32_t> otherwise, std::string_view prompt_field) {
  if (prompt_tokens == 0) return *refuse(prompt_field, "is empty");
  const auto too_long = [&](std::size_t wanted) {
    return problem{http::status::bad_request,
                   "the model's context holds " + std::to_string(context) + " tokens; the prompt has " +
                       std::to_string(prompt_tokens) + " and " + std::to_string(wanted) + " were to be generated",
                   std::string(prompt_field), "context_length_exceeded"};
  };
  if (prompt_tokens >= context) return too_long(r.max_tokens.value_or(1));
  const std::size_t room = context - prompt_tokens;
  if (r.max_tokens) {
    if (*r.max_tokens > room) return too_long(*r.max_tokens);
    return *r.max_tokens;
  }
  return static_cast<std::uint32_t>(otherwise ? std::min<std::size_t>(*otherwise, room) : room);
}

}  // namespace cokv::openai
