#include "cluster/request_json.hpp"

#include <boost/json/array.hpp>

namespace cokv::cluster {
namespace json = boost::json;
namespace {

json::object sampling_object(const sampling_params& p) {
  json::array biases;
  for (const auto& b : p.logit_bias) biases.push_back(json::array{b.token, json_of(b.bias)});
  return {{"temperature", json_of(p.temperature)},
          {"top_k", p.top_k},
          {"top_p", json_of(p.top_p)},
          {"min_p", json_of(p.min_p)},
          {"repetition_penalty", json_of(p.repetition_penalty)},
          {"presence_penalty", json_of(p.presence_penalty)},
          {"frequency_penalty", json_of(p.frequency_penalty)},
          {"logit_bias", std::move(biases)},
          {"seed", p.seed}};
}

// [token, number]
std::optional<std::pair<token_id, float>> pair_of(const json::value& v) {
  const auto* both = v.if_array();
  if (!both || both->size() != 2) return {};
  const auto token = unsigned_of((*both)[0]);
  if (!token || *token > std::numeric_limits<token_id>::max()) return {};
  if ((*both)[1].is_null()) return std::pair(static_cast<token_id>(*token), -std::numeric_limits<float>::infinity());
  const auto number = float_of((*both)[1]);
  if (!number) return {};
  return std::pair(static_cast<token_id>(*token), *number);
}

parsed<sampling_params> read_sampling(const json::value& v, std::size_t most_biases) {
  fields f(v, "sampling");
  sampling_params p;
  p.temperature = f.real("temperature");
  p.top_k = f.u32("top_k");
  p.top_p = f.real("top_p");
  p.min_p = f.real("min_p");
  p.repetition_penalty = f.real("repetition_penalty");
  p.presence_penalty = f.real("presence_penalty");
  p.frequency_penalty = f.real("frequency_penalty");
  f.list("logit_bias", most_biases, [&](const json::value& one) -> std::optional<std::string> {
    const auto both = pair_of(one);
    if (!both) return "has an item that is no token and bias";
    p.logit_bias.push_back({both->first, both->second});
    return {};
  });
  p.seed = f.number("seed", std::numeric_limits<std::uint64_t>::max());
  if (auto wrong = f.end()) return *wrong;
  return p;
}

}  // namespace

json::object to_json(const generation_request& r) {
  json::array tokens(r.prompt.begin(), r.prompt.end()), stop;
  for (const auto& s : r.stop) stop.push_back(json::string(s));
  json::object out{{"tokens", std::move(tokens)},
                   {"max_tokens", r.max_tokens},
                   {"sampling", sampling_object(r.sampling)},
                   {"stop", std::move(stop)},
                   {"ignore_end_tokens", r.ignore_end_tokens},
                   {"priority", r.priority},
                   {"salt", r.salt},
                   {"continues", r.continues}};
  if (r.logprobs) out["logprobs"] = *r.logprobs;
  return out;
}

parsed<generation_request> read_request(const json::value& v, const request_limits& limits) {
  fields f(v, "request");
  generation_request r;
  r.prompt = f.tokens("tokens", limits.tokens);
  r.max_tokens = f.u32("max_tokens");
  r.sampling =
      f.take<sampling_params>("sampling", [&](const json::value& s) { return read_sampling(s, limits.biases); });
  if (f.has("logprobs")) r.logprobs = f.u32("logprobs", limits.logprobs);
  f.list("stop", limits.stops, [&](const json::value& one) -> std::optional<std::string> {
    const auto* s = one.if_string();
    if (!s || s->size() > limits.stop_bytes) return "has an item that is no string of the bytes allowed";
    r.stop.emplace_back(s->data(), s->size());
    return {};
  });
  r.ignore_end_tokens = f.flag("ignore_end_tokens");
  r.priority = static_cast<std::int32_t>(f.integer("priority", -8, 8));
  r.salt = f.text("salt", limits.salt_bytes);
  r.continues = f.u32("continues", limits.tokens);
  if (auto wrong = f.end()) return *wrong;
  return r;
}

json::object to_json(const token_logprobs& l) {
  json::array top;
  for (const auto& t : l.top) top.push_back(json::array{t.token, json_of(t.logprob)});
  return {{"chosen", json_of(l.chosen)}, {"top", std::move(top)}};
}

parsed<token_logprobs> read_logprobs(const json::value& v, std::uint32_t most_top) {
  fields f(v, "logprobs");
  token_logprobs l;
  l.chosen = f.real_or_minus_infinity("chosen");
  f.list("top", most_top, [&](const json::value& one) -> std::optional<std::string> {
    const auto both = pair_of(one);
    if (!both) return "has an item that is no token and its logarithm";
    l.top.push_back({both->first, both->second});
    return {};
  });
  if (auto wrong = f.end()) return *wrong;
  return l;
}

}  // namespace cokv::cluster
