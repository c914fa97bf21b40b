#include "openai/response.hpp"

#include <boost/json/parse.hpp>

using namespace cokv;
using namespace cokv::openai;
namespace json = boost::json;

TEST_CASE("openai: a whole answer carries text, reason and usage with the cached tokens") {
  reply r{kind::completion, "cmpl-1", "m", 123, "fp"};
  auto v = json::parse(r.whole("a \"b\"\n", finish_reason::stop, {.prompt = 12, .cached = 8, .generated = 5}));
  CHECK(v == json::parse(R"({"id":"cmpl-1","object":"text_completion","created":123,"model":"m",
      "system_fingerprint":"fp","choices":[{"index":0,"text":"a \"b\"\n","logprobs":null,"finish_reason":"stop"}],
      "usage":{"prompt_tokens":12,"completion_tokens":5,"total_tokens":17,
      "prompt_tokens_details":{"cached_tokens":8}}})"));
  r.kind = kind::chat;
  v = json::parse(r.whole("x", finish_reason::length, {}));
  CHECK(v.at("object") == "chat.completion");
  CHECK(v.at("choices").at(0) == json::parse(R"({"index":0,"logprobs":null,"finish_reason":"length",
      "message":{"role":"assistant","content":"x","refusal":null}})"));
}

TEST_CASE("openai: a stream's chunks, with usage in the last one where it was asked for") {
  reply r{kind::chat, "chatcmpl-1", "m", 123, "fp", true};
  auto first = json::parse(r.first());
  CHECK(first.at("object") == "chat.completion.chunk");
  CHECK(first.at("usage").is_null());
  CHECK(first.at("choices").at(0).at("delta") == json::parse(R"({"role":"assistant","content":""})"));
  CHECK(json::parse(r.chunk("x")).at("choices").at(0).at("delta") == json::parse(R"({"content":"x"})"));
  CHECK(json::parse(r.chunk("x")).at("choices").at(0).at("finish_reason").is_null());
  auto last = json::parse(r.last(finish_reason::stop));
  CHECK(last.at("choices").at(0).at("finish_reason") == "stop");
  CHECK(last.at("choices").at(0).at("delta").as_object().empty());
  auto u = json::parse(r.usage_chunk({.prompt = 3, .cached = 0, .generated = 1}));
  CHECK(u.at("choices").as_array().empty());
  CHECK(u.at("usage").at("total_tokens") == 4);

  reply plain{kind::completion, "cmpl-1", "m", 123, "fp"};
  CHECK(plain.first().empty());
  CHECK_FALSE(json::parse(plain.chunk("x")).as_object().contains("usage"));
  CHECK(json::parse(plain.chunk("x")).at("choices").at(0).at("text") == "x");
  CHECK(json::parse(plain.last(finish_reason::length)).at("choices").at(0).at("text") == "");
}

TEST_CASE("openai: events are one data line each") {
  CHECK(event("{}") == "data: {}\n\n");
  CHECK(done_event == "data: [DONE]\n\n");
}

TEST_CASE("openai: the list of models") {
  auto v = json::parse(model_list({{"m", 5, 8192}}));
  CHECK(v.at("object") == "list");
  CHECK(v.at("data").at(0).at("id") == "m");
  CHECK(v.at("data").at(0).at("object") == "model");
  CHECK(v.at("data").at(0).at("created") == 5);
}
