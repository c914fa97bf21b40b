#include "openai/response.hpp"

#include <boost/json/parse.hpp>

using namespace cokv;
using namespace cokv::openai;
namespace json = boost::json;

TEST_CASE("openai: a whole answer carries text, reason and usage with the cached tokens") {
  reply r{kind::completion, "cmpl-1", "m", 123, "fp"};
  auto v = json::parse(r.whole(std::vector<choice>{{.text = "a \"b\"\n", .reason = finish_reason::stop}},
                               {.prompt = 12, .cached = 8, .generated = 5}));
  CHECK(v == json::parse(R"({"id":"cmpl-1","object":"text_completion","created":123,"model":"m",
      "system_fingerprint":"fp","choices":[{"index":0,"text":"a \"b\"\n","logprobs":null,"finish_reason":"stop"}],
      "usage":{"prompt_tokens":12,"completion_tokens":5,"total_tokens":17,
      "prompt_tokens_details":{"cached_tokens":8}}})"));
  r.kind = kind::chat;
  v = json::parse(r.whole(std::vector<choice>{{.text = "x", .reason = finish_reason::length}, {.index = 1}}, {}));
  CHECK(v.at("object") == "chat.completion");
  CHECK(v.at("choices").at(0) == json::parse(R"({"index":0,"logprobs":null,"finish_reason":"length",
      "message":{"role":"assistant","content":"x","refusal":null}})"));
  CHECK(v.at("choices").at(1).at("index") == 1);
}

TEST_CASE("openai: a stream's chunks, with usage in the last one where it was asked for") {
  reply r{kind::chat, "chatcmpl-1", "m", 123, "fp", true};
  auto first = json::parse(r.first());
  CHECK(first.at("object") == "chat.completion.chunk");
  CHECK(first.at("usage").is_null());
  CHECK(first.at("choices").at(0).at("delta") == json::parse(R"({"role":"assistant","content":""})"));
  CHECK(json::parse(r.chunk({.text = "x"})).at("choices").at(0).at("delta") == json::parse(R"({"content":"x"})"));
  CHECK(json::parse(r.chunk({.text = "x"})).at("choices").at(0).at("finish_reason").is_null());
  auto last = json::parse(r.last(2, finish_reason::stop));
  CHECK(last.at("choices").at(0).at("finish_reason") == "stop");
  CHECK(last.at("choices").at(0).at("index") == 2);
  CHECK(json::parse(r.first(1)).at("choices").at(0).at("index") == 1);
  CHECK(last.at("choices").at(0).at("delta").as_object().empty());
  auto u = json::parse(r.usage_chunk({.prompt = 3, .cached = 0, .generated = 1}));
  CHECK(u.at("choices").as_array().empty());
  CHECK(u.at("usage").at("total_tokens") == 4);

  reply plain{kind::completion, "cmpl-1", "m", 123, "fp"};
  CHECK(plain.first().empty());
  CHECK_FALSE(json::parse(plain.chunk({.text = "x"})).as_object().contains("usage"));
  CHECK(json::parse(plain.chunk({.text = "x"})).at("choices").at(0).at("text") == "x");
  CHECK(json::parse(plain.last(0, finish_reason::length)).at("choices").at(0).at("text") == "");
}

TEST_CASE("openai: logprobs as each kind has them; bytes that are no characters are spelt out") {
  const choice c{
      .text = "a",
      .logprobs = std::vector<logged_token>{{"a", -0.5f, {{"a", -0.5f}, {"\xe2\x80", -1}}}, {"\xc3\xa9", -2}},
      .offset = 7};
  reply r{kind::completion, "cmpl-1", "m", 123, "fp"};
  const auto whole = json::parse(r.chunk(c)).at("choices").at(0).at("logprobs");
  CHECK(whole == json::parse(R"({"tokens":["a","\u00e9"],"token_logprobs":[-0.5,-2.0],"text_offset":[7,8],
      "top_logprobs":[{"a":-0.5,"bytes:\\xe2\\x80":-1.0},{}]})"));
  r.kind = kind::chat;
  CHECK(json::parse(r.chunk(c)).at("choices").at(0).at("logprobs") ==
        json::parse(R"({"content":[{"token":"a","logprob":-0.5,"bytes":[97],"top_logprobs":[
            {"token":"a","logprob":-0.5,"bytes":[97]},{"token":"bytes:\\xe2\\x80","logprob":-1.0,"bytes":[226,128]}]},
            {"token":"\u00e9","logprob":-2.0,"bytes":[195,169],"top_logprobs":[]}],"refusal":null})"));
  CHECK(characters("a\xc3\xa9\xe2\x80\x94") == 3);
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
