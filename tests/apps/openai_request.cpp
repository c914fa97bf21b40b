#include "openai/request.hpp"

#include <boost/json/parse.hpp>

using namespace cokv;
using namespace cokv::openai;

namespace {

struct refusal {
  std::string body, parameter, reason;
};

std::string with(std::string_view members) {
  return R"({"model":"m","prompt":"p")" + (members.empty() ? "" : "," + std::string(members)) + "}";
}
std::string chat_with(std::string_view members) {
  return R"({"model":"m","messages":[{"role":"user","content":"hi"}])" +
         (members.empty() ? "" : "," + std::string(members)) + "}";
}

template <class Parse>
void check_refused(const refusal& r, Parse parse) {
  CAPTURE(r.body);
  auto out = parse(r.body, defaults{});
  REQUIRE(out.has_error());
  CHECK(out.error().code == http::status::bad_request);
  CHECK(out.error().parameter == r.parameter);
  CHECK(out.error().reason == r.reason);
  CHECK(out.error().message.find('\n') == std::string::npos);
  if (!r.parameter.empty()) CHECK(out.error().message.starts_with(r.parameter + ": "));
}

}  // namespace

TEST_CASE("openai: a request's parameters are what it says, and the model's defaults where it says nothing") {
  auto r = parse_completion(R"({"model":"m","prompt":"And","temperature":0.5,"top_p":0.25,"top_k":40,"seed":-1,
      "max_tokens":7,"stop":["a","b"],"stream":true,"stream_options":{"include_usage":true},"user":"u","cache_salt":"s"})",
                            {});
  REQUIRE(r.has_value());
  CHECK(std::get<std::string>(r->prompt) == "And");
  CHECK(r->sampling.temperature == 0.5f);
  CHECK(r->sampling.top_p == 0.25f);
  CHECK(r->sampling.top_k == 40);
  CHECK(r->sampling.seed == ~0ull);
  CHECK(r->seeded);
  CHECK(r->max_tokens == 7);
  CHECK(r->stop == std::vector<std::string>{"a", "b"});
  CHECK(r->stream);
  CHECK(r->include_usage);
  CHECK(r->user == "u");
  CHECK(r->cache_salt == "s");

  r = parse_completion(with(""), {.sampling = {.temperature = 0.25f, .top_k = 3}});
  REQUIRE(r.has_value());
  CHECK(r->sampling.temperature == 0.25f);
  CHECK(r->sampling.top_k == 3);
  CHECK_FALSE(r->seeded);
  CHECK_FALSE(r->max_tokens);
  CHECK_FALSE(r->stream);
}

TEST_CASE("openai: a prompt is a string, token ids, or a list of one of them") {
  auto prompt = [](std::string_view json) {
    auto r = parse_completion(R"({"model":"m","prompt":)" + std::string(json) + "}", {});
    REQUIRE(r.has_value());
    return r->prompt;
  };
  CHECK(std::get<std::string>(prompt(R"("a")")) == "a");
  CHECK(std::get<std::string>(prompt(R"(["a"])")) == "a");
  CHECK(std::get<std::vector<token_id>>(prompt("[1,2]")) == std::vector<token_id>{1, 2});
  CHECK(std::get<std::vector<token_id>>(prompt("[[1,2]]")) == std::vector<token_id>{1, 2});
}

TEST_CASE("openai: null is absent, and a value that means the same as absent is accepted") {
  CHECK(parse_completion(with(R"("temperature":null,"stop":null,"max_tokens":null,"n":1,"best_of":1,"echo":false,
      "logprobs":null,"suffix":null,"logit_bias":null,"presence_penalty":0,"frequency_penalty":0.0,"stream":null,
      "stream_options":null,"seed":null,"user":null)"),
                         {})
            .has_value());
  CHECK(parse_chat(chat_with(R"("tools":[],"tool_choice":"none","response_format":{"type":"text"},"logprobs":false,
      "top_logprobs":0,"parallel_tool_calls":false,"store":false,"metadata":{},"modalities":["text"],
      "service_tier":"auto","n":null)"),
                   {})
            .has_value());
}

TEST_CASE("openai: what is malformed, out of range, unknown or not supported is refused by name") {
  const refusal table[] = {
      {"", "", "invalid_json"},
      {"{", "", "invalid_json"},
      {"[]", "", "invalid_type"},
      {R"({"prompt":"p"})", "model", "missing_required_parameter"},
      {R"({"model":"m"})", "prompt", "missing_required_parameter"},
      {R"({"model":null,"prompt":"p"})", "model", "missing_required_parameter"},
      {R"({"model":1,"prompt":"p"})", "model", "invalid_type"},
      {R"({"model":"m","prompt":1})", "prompt", "invalid_type"},
      {R"({"model":"m","prompt":[]})", "prompt", "invalid_value"},
      {R"({"model":"m","prompt":["a","b"]})", "prompt", "unsupported_value"},
      {R"({"model":"m","prompt":[1,-2]})", "prompt", "invalid_type"},
      {R"({"model":"m","prompt":[1,"a"]})", "prompt", "invalid_type"},
      {R"({"model":"m","prompt":[1,1.5]})", "prompt", "invalid_type"},
      {with(R"("temperature":2.5)"), "temperature", "invalid_value"},
      {with(R"("temperature":-1)"), "temperature", "invalid_value"},
      {with(R"("temperature":"hot")"), "temperature", "invalid_type"},
      {with(R"("temperature":1e999)"), "temperature", "invalid_type"},
      {with(R"("top_p":1.1)"), "top_p", "invalid_value"},
      {with(R"("top_p":0)"), "top_p", "invalid_value"},
      {with(R"("top_k":-1)"), "top_k", "invalid_value"},
      {with(R"("seed":1.5)"), "seed", "invalid_type"},
      {with(R"("max_tokens":0)"), "max_tokens", "invalid_value"},
      {with(R"("max_tokens":99999999999)"), "max_tokens", "invalid_value"},
      {with(R"("max_tokens":"7")"), "max_tokens", "invalid_type"},
      {with(R"("stop":["a","b","c","d","e"])"), "stop", "invalid_value"},
      {with(R"("stop":"")"), "stop", "invalid_value"},
      {with(R"("stop":7)"), "stop", "invalid_type"},
      {with(R"("stream":1)"), "stream", "invalid_type"},
      {with(R"("stream_options":{"include_usage":true})"), "stream_options", "invalid_value"},
      {with(R"("stream":true,"stream_options":{"x":1})"), "stream_options.x", "unknown_parameter"},
      {with(R"("stream":true,"stream_options":7)"), "stream_options", "invalid_type"},
      {with(R"("n":0)"), "n", "invalid_value"},
      {with(R"("n":129)"), "n", "invalid_value"},
      {with(R"("best_of":2)"), "best_of", "unsupported_value"},
      {with(R"("echo":true)"), "echo", "unsupported_value"},
      {with(R"("logprobs":6)"), "logprobs", "invalid_value"},
      {with(R"("logprobs":true)"), "logprobs", "invalid_type"},
      {with(R"("suffix":"x")"), "suffix", "unsupported_value"},
      {with(R"("logit_bias":[1])"), "logit_bias", "invalid_type"},
      {with(R"("logit_bias":{"1":101})"), "logit_bias.1", "invalid_value"},
      {with(R"("logit_bias":{"1":"2"})"), "logit_bias.1", "invalid_type"},
      {with(R"("logit_bias":{"-1":2})"), "logit_bias.-1", "invalid_value"},
      {with(R"("logit_bias":{"1x":2})"), "logit_bias.1x", "invalid_value"},
      {with(R"("logit_bias":{"":2})"), "logit_bias.", "invalid_value"},
      {with(R"("logit_bias":{"99999999999":2})"), "logit_bias.99999999999", "invalid_value"},
      {with(R"("presence_penalty":2.5)"), "presence_penalty", "invalid_value"},
      {with(R"("frequency_penalty":-2.5)"), "frequency_penalty", "invalid_value"},
      {with(R"("frequency_penalty":"much")"), "frequency_penalty", "invalid_type"},
      {with(R"("min_p":1.5)"), "min_p", "invalid_value"},
      {with(R"("priority":9)"), "priority", "invalid_value"},
      {with(R"("priority":"high")"), "priority", "invalid_type"},
      {with(R"("repetition_penalty":0)"), "repetition_penalty", "invalid_value"},
      {with(R"("tools":[])"), "tools", "unknown_parameter"},
      {with(R"("frobnicate":1)"), "frobnicate", "unknown_parameter"},
      {with(R"("frobnicate":null)"), "frobnicate", "unknown_parameter"},
  };
  for (const auto& row : table) check_refused(row, parse_completion);

  const refusal chat[] = {
      {R"({"model":"m"})", "messages", "missing_required_parameter"},
      {R"({"model":"m","messages":[]})", "messages", "invalid_value"},
      {R"({"model":"m","messages":"hi"})", "messages", "invalid_type"},
      {R"({"model":"m","messages":["hi"]})", "messages[0]", "invalid_type"},
      {R"({"model":"m","messages":[{"content":"x"}]})", "messages[0].role", "missing_required_parameter"},
      {R"({"model":"m","messages":[{"role":"user"}]})", "messages[0].content", "missing_required_parameter"},
      {R"({"model":"m","messages":[{"role":"pope","content":"x"}]})", "messages[0].role", "invalid_value"},
      {R"({"model":"m","messages":[{"role":"user","content":"x","name":"y"}]})", "messages[0].name",
       "unsupported_value"},
      {R"({"model":"m","messages":[{"role":"user","content":"x","z":"y"}]})", "messages[0].z", "unknown_parameter"},
      {R"({"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]})",
       "messages[0].content", "unsupported_value"},
      {chat_with(R"("tools":[{}])"), "tools", "unsupported_value"},
      {chat_with(R"("tool_choice":"auto")"), "tool_choice", "unsupported_value"},
      {chat_with(R"("response_format":{"type":"json_object"})"), "response_format", "unsupported_value"},
      {chat_with(R"("logprobs":1)"), "logprobs", "invalid_type"},
      {chat_with(R"("top_logprobs":2)"), "top_logprobs", "invalid_value"},
      {chat_with(R"("logprobs":true,"top_logprobs":21)"), "top_logprobs", "invalid_value"},
      {chat_with(R"("max_tokens":2,"max_completion_tokens":3)"), "max_completion_tokens", "invalid_value"},
      {chat_with(R"("prompt":"x")"), "prompt", "unknown_parameter"},
  };
  for (const auto& row : chat) check_refused(row, parse_chat);
}

TEST_CASE("openai: chat messages hold text, or parts of text; max_completion_tokens is max_tokens") {
  auto r = parse_chat(R"({"model":"m","max_completion_tokens":9,"messages":[{"role":"system","content":"s"},
      {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
      {"role":"assistant","content":"c","refusal":null,"tool_calls":null,"annotations":[],"audio":null}]})",
                      {});
  REQUIRE(r.has_value());
  REQUIRE(r->messages.size() == 3);
  CHECK(r->messages[1].content == "ab");
  CHECK(r->max_tokens == 9);
}

TEST_CASE("openai: a chat has 4096 messages at most") {
  auto chat = [](std::size_t n) {
    std::string all = R"({"role":"user","content":""})";
    for (std::size_t i = 1; i < n; ++i) all += R"(,{"role":"user","content":""})";
    return parse_chat(R"({"model":"m","messages":[)" + all + "]}", {});
  };
  auto r = chat(4096);
  REQUIRE(r.has_value());
  CHECK(r->messages.size() == 4096);
  r = chat(4097);
  REQUIRE(r.has_error());
  CHECK(r.error().code == http::status::bad_request);
  CHECK(r.error().message == "messages: more than 4096 messages");
  CHECK(r.error().parameter == "messages");
}

TEST_CASE("openai: how to sample, how many answers, and what is told of their tokens") {
  auto r = parse_completion(with(R"("min_p":0.25,"repetition_penalty":1.5,"presence_penalty":0.5,
      "frequency_penalty":-0.5,"logit_bias":{"17":-100,"3":1.5},"n":3,"best_of":3,"logprobs":0,"priority":-3)"),
                            {});
  REQUIRE(r.has_value());
  CHECK(r->sampling.min_p == 0.25f);
  CHECK(r->sampling.repetition_penalty == 1.5f);
  CHECK(r->sampling.presence_penalty == 0.5f);
  CHECK(r->sampling.frequency_penalty == -0.5f);
  REQUIRE(r->sampling.logit_bias.size() == 2);
  CHECK(r->sampling.logit_bias[0].token == 17);
  CHECK(r->sampling.logit_bias[0].bias == -100);
  CHECK(r->n == 3);
  CHECK(r->priority == 3);
  CHECK(r->logprobs == 0);
  CHECK_FALSE(parse_completion(with(R"("logprobs":null)"), {})->logprobs);
  CHECK(parse_chat(chat_with(R"("logprobs":true,"top_logprobs":20)"), {})->logprobs == 20);
  CHECK(parse_chat(chat_with(R"("logprobs":true)"), {})->logprobs == 0);
  CHECK_FALSE(parse_chat(chat_with(R"("logprobs":false)"), {})->logprobs);
}

TEST_CASE("openai: deep nesting and huge token lists end in a refusal or a value, not in a crash") {
  CHECK(parse_completion(std::string(100000, '['), {}).has_error());
  CHECK(parse_completion(R"({"model":"m","prompt":)" + std::string(40, '[') + std::string(40, ']') + "}", {})
            .has_error());
  std::string many = R"({"model":"m","prompt":[0)";
  for (int i = 0; i < 100000; ++i) many += ",1";
  CHECK(parse_completion(many + "]}", {}).has_value());
}

TEST_CASE("openai: how much may be generated depends on the room that the prompt leaves") {
  common_request r;
  CHECK(*tokens_to_generate(r, 10, 100, 16) == 16);
  CHECK(*tokens_to_generate(r, 90, 100, 16) == 10);
  CHECK(*tokens_to_generate(r, 10, 100, std::nullopt) == 90);
  r.max_tokens = 90;
  CHECK(*tokens_to_generate(r, 10, 100, 16) == 90);
  CHECK(tokens_to_generate(r, 11, 100, 16).error().reason == "context_length_exceeded");
  r.max_tokens.reset();
  CHECK(tokens_to_generate(r, 100, 100, 16).error().reason == "context_length_exceeded");
  CHECK(tokens_to_generate(r, 0, 100, 16).error().parameter == "prompt");
}
