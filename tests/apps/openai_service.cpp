#include "openai/service.hpp"

#include <boost/json/parse.hpp>
#include <map>
#include <set>

#include "engine/files.hpp"
#include "http_fixture.hpp"

using namespace cokv;
using namespace cokv::test;
namespace json = boost::json;
using http::status;

namespace {

// Answers with the words "w0 w1 ...", one a token and a millisecond; counts what lives.
class fake_backend final : public openai::backend {
 public:
  std::vector<token_id> encode(std::string_view text, encode_options how) const override {
    last_text = text;
    last_encoding = how;
    if (text.find("endless") != text.npos) throw std::runtime_error("match limit exceeded");
    return std::vector<token_id>(text.size(), token_id(1));
  }
  std::uint32_t context() const override { return 100; }
  std::uint32_t vocabulary() const override { return 50; }
  std::string token_bytes(token_id id) const override { return "t" + std::to_string(id); }
  result<std::unique_ptr<openai::answer>> submit(generation_request request) override;

  generation_request last;
  std::vector<std::uint64_t> seeds;
  mutable std::string last_text;
  mutable encode_options last_encoding;
  error_code refuse_with;
  std::optional<std::size_t> refuse_after;  // so many
  std::optional<std::uint32_t> fail_at;     // token
  int live = 0;
};

class fake_answer final : public openai::answer {
 public:
  fake_answer(fake_backend& b, generation_request r) : of(b), request(std::move(r)) {
    ++of.live;
    told.prompt_tokens = static_cast<std::uint32_t>(request.prompt.size());
    told.cached_tokens = 3;
  }
  ~fake_answer() override { --of.live; }

  awaitable<result<generated>> next() override {
    co_await pause(1ms);
    if (of.fail_at && told.generated_tokens == *of.fail_at) co_return make_error_code(errc::device_failed);
    if (told.generated_tokens == request.max_tokens) co_return asio::error::make_error_code(asio::error::eof);
    generated g;
    g.text = "w" + std::to_string(told.generated_tokens) + ' ';
    g.token = static_cast<token_id>(told.generated_tokens);
    if (request.logprobs) g.logprobs = token_logprobs{-0.5f, {{g.token, -0.5f}}};
    if (++told.generated_tokens == request.max_tokens) g.reason = finish_reason::length;
    co_return g;
  }
  const generation_report& report() const override { return told; }

  fake_backend& of;
  generation_request request;
  generation_report told;
};

result<std::unique_ptr<openai::answer>> fake_backend::submit(generation_request request) {
  last = request;
  seeds.push_back(request.sampling.seed);
  if (refuse_with && (!refuse_after || seeds.size() > *refuse_after)) return refuse_with;
  return std::make_unique<fake_answer>(*this, std::move(request));
}

struct world {
  explicit world(chat_template chat)
      : api(backend, {.id = "m", .fingerprint = "fp", .created = 7, .chat = std::move(chat)}, page) {}
  fake_backend backend;
  http::metrics page;
  openai::service api;
};

template <class Body>
auto serving(Body body, chat_template chat = {}) {
  return [body, chat] {
    auto w = std::make_shared<world>(chat);
    http::server_options o;
    o.observe = w->page.observer();
    return with_site(
        std::move(o),
        [w](http::server& s) {
          w->api.route(s);
          w->page.route(s);
        },
        [w, body](site& s) { return body(s, *w); });
  };
}

std::vector<std::string> events_of(const std::string& body) {
  std::vector<std::string> out;
  for (std::size_t at = 0; at < body.size();) {
    const auto end = body.find("\n\n", at);
    REQUIRE(end != std::string::npos);
    const auto line = body.substr(at, end - at);
    REQUIRE(line.starts_with("data: "));
    out.push_back(line.substr(6));
    at = end + 2;
  }
  return out;
}

}  // namespace

TEST_CASE("openai service: a completion, whole and streamed") {
  on_both_contexts(serving([](site& s, world& w) -> awaitable<void> {
    auto c = co_await s.connect();
    auto r = co_await c.ask(
        post("/v1/completions", R"({"model":"m","prompt":"12345","max_tokens":3,"stop":"x","cache_salt":"s"})"));
    CHECK(r.result_int() == 200);
    CHECK(r[bh::field::content_type] == "application/json");
    auto v = json::parse(r.body());
    CHECK(v.at("choices").at(0).at("text") == "w0 w1 w2 ");
    CHECK(v.at("choices").at(0).at("finish_reason") == "length");
    CHECK(v.at("usage").at("prompt_tokens") == 5);
    CHECK(v.at("usage").at("prompt_tokens_details").at("cached_tokens") == 3);
    CHECK(v.at("system_fingerprint") == "fp");
    CHECK(w.backend.last.stop == std::vector<std::string>{"x"});
    CHECK(w.backend.last.salt == "s");

    r = co_await c.ask(post("/v1/completions",
                            R"({"model":"m","prompt":[1,2],"max_tokens":3,"stream":true,
                                "stream_options":{"include_usage":true}})"));
    CHECK(r[bh::field::content_type] == "text/event-stream");
    auto events = events_of(r.body());
    REQUIRE(events.size() == 6);
    CHECK(json::parse(events[0]).at("choices").at(0).at("text") == "w0 ");
    CHECK(json::parse(events[2]).at("choices").at(0).at("text") == "w2 ");
    CHECK(json::parse(events[3]).at("choices").at(0).at("finish_reason") == "length");
    CHECK(json::parse(events[4]).at("usage").at("completion_tokens") == 3);
    CHECK(events[5] == "[DONE]");
    CHECK(w.backend.live == 0);
    const auto page = (co_await c.ask(get("/metrics"))).body();
    CHECK(page.find("cokv_generations_total{outcome=\"length\"} 2") != std::string::npos);
    CHECK(page.find("cokv_ttft_seconds_count 2") != std::string::npos);
    CHECK(page.find("cokv_tpot_seconds_count 2") != std::string::npos);
  }));
}

TEST_CASE("openai service: a chat, whole and streamed, ends where the model would take the user's turn") {
  on_both_contexts(serving([](site& s, world& w) -> awaitable<void> {
    auto r = co_await s.ask(
        post("/v1/chat/completions", R"({"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":2})"));
    auto v = json::parse(r.body());
    CHECK(v.at("choices").at(0).at("message").at("content") == "w0 w1 ");
    CHECK(w.backend.last.stop == chat_stop_strings());
    CHECK(w.backend.last_text == "User: hi\n\nAssistant:");
    CHECK(!w.backend.last_encoding.parse_special);
    CHECK(w.backend.last_encoding.add_special);
    r = co_await s.ask(
        post("/v1/chat/completions",
             R"({"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":2,"stream":true})"));
    auto events = events_of(r.body());
    REQUIRE(events.size() == 5);
    CHECK(json::parse(events[0]).at("choices").at(0).at("delta").at("role") == "assistant");
    CHECK(json::parse(events[1]).at("choices").at(0).at("delta").at("content") == "w0 ");
    CHECK(events[4] == "[DONE]");
  }));
}

TEST_CASE("openai service: a checkpoint's own template forms its chats, and what it raises is told") {
  const test::temp_dir dir;
  dir.write("tokenizer_config.json", R"({"eos_token": {"content": "</s>"}, "chat_template": "unused"})");
  dir.write(
      "chat_template.jinja",
      "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no \"tools\" here') }}{% endif %}"
      "<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}<assistant>{{ nothing.at_all if messages|length > 2 }}");
  on_both_contexts(serving(
      [](site& s, world& w) -> awaitable<void> {
        auto r = co_await s.ask(post(
            "/v1/chat/completions",
            R"({"model":"m","messages":[{"role":"developer","content":"Be <b>."},{"role":"user","content":"hi"}],"max_tokens":2})"));
        CHECK(r.result_int() == 200);
        CHECK(w.backend.last_text == "<developer>Be <b>.</s><user>hi</s><assistant>");
        CHECK(w.backend.last.stop.empty());
        CHECK(w.backend.last_encoding.parse_special);
        CHECK(!w.backend.last_encoding.add_special);

        r = co_await s.ask(post("/v1/chat/completions", R"({"model":"m","messages":[{"role":"tool","content":"4"}]})"));
        CHECK(r.result_int() == 400);
        auto error = json::parse(r.body()).at("error");
        CHECK(error.at("message") == "messages: no \"tools\" here");
        CHECK(error.at("type") == "invalid_request_error");
        CHECK(error.at("param") == "messages");
        CHECK(error.at("code") == "invalid_value");

        const std::string turn = R"({"role":"user","content":"x"})";
        r = co_await s.ask(
            post("/v1/chat/completions", R"({"model":"m","messages":[)" + turn + ',' + turn + ',' + turn + "]}"));
        CHECK(r.result_int() == 400);
        CHECK(json::parse(r.body()).at("error").at("message") ==
              "messages: the chat template, line 1: 'nothing' is undefined");
        r = co_await s.ask(
            post("/v1/chat/completions", R"({"model":"m","messages":[{"role":"wizard","content":"x"}]})"));
        CHECK(r.result_int() == 400);
        CHECK(w.api.refused_before_engine() == 3);
        co_await s.ask(post("/v1/completions", R"({"model":"m","prompt":"<user>","max_tokens":2})"));
        CHECK(!w.backend.last_encoding.parse_special);
        CHECK(w.backend.last_encoding.add_special);
      },
      chat_template::load(dir.path())));
}

TEST_CASE("openai service: what a request leaves open is chosen for it") {
  on_real_context(serving([](site& s, world& w) -> awaitable<void> {
    co_await s.ask(post("/v1/completions", R"({"model":"m","prompt":"12345"})"));
    CHECK(w.backend.last.max_tokens == 16);
    const auto seed = w.backend.last.sampling.seed;
    co_await s.ask(post("/v1/completions", R"({"model":"m","prompt":"12345"})"));
    CHECK(w.backend.last.sampling.seed != seed);
    co_await s.ask(post("/v1/completions", R"({"model":"m","prompt":"12345","seed":9})"));
    CHECK(w.backend.last.sampling.seed == 9);
    co_await s.ask(post("/v1/chat/completions", R"({"model":"m","messages":[{"role":"user","content":"hi"}]})"));
    CHECK(w.backend.last.max_tokens == 100 - w.backend.last.prompt.size());
  }));
}

TEST_CASE("openai service: refusals carry OpenAI's error object") {
  on_real_context(serving([](site& s, world& w) -> awaitable<void> {
    struct {
      std::string request;
      unsigned code;
      std::string reason;
    } table[] = {
        {post("/v1/completions", "{"), 400, "invalid_json"},
        {post("/v1/completions", R"({"model":"other","prompt":"x"})"), 404, "model_not_found"},
        {post("/v1/chat/completions", R"({"model":"other","messages":[{"role":"user","content":"x"}]})"), 404,
         "model_not_found"},
        {post("/v1/completions", R"({"model":"m","prompt":""})"), 400, "invalid_value"},
        {post("/v1/completions", R"({"model":"m","prompt":")" + std::string(100, 'x') + "\"}"), 400,
         "context_length_exceeded"},
        {post("/v1/completions", R"({"model":"m","prompt":"x","max_tokens":100})"), 400, "context_length_exceeded"},
        {post("/v1/completions", R"({"model":"m","prompt":[50]})"), 400, "invalid_value"},
        {post("/v1/completions", R"({"model":"m","prompt":"x","n":2,"best_of":3})"), 400, "unsupported_value"},
        {post("/v1/completions", R"({"model":"m","prompt":"x","logit_bias":{"50":1}})"), 400, "invalid_value"},
        {post("/v1/completions", R"({"model":"m","prompt":"x","prompt":"y"})"), 400, "duplicate_parameter"},
        {post("/v1/completions", R"({"model":"m","prompt":"x","max_tokens":99999999999999999999})"), 400,
         "invalid_value"},
        {post("/v1/completions", R"({"model":"m","prompt":"an endless one"})"), 400, "invalid_value"},
        {post("/v1/chat/completions", R"({"model":"m","messages":[{"role":"user","content":"endless"}]})"), 400,
         "invalid_value"},
        {post("/v1/completions?api-version=1", R"({"model":"m","prompt":"x"})"), 400, "unknown_parameter"},
        {get("/v1/models?limit=5"), 400, "unknown_parameter"},
        {post("/v1/completions", R"({"model":"m","prompt":"x"})", "Content-Type: text/plain\r\n"), 415,
         "unsupported_media_type"},
        {get("/v1/completions"), 405, "method_not_allowed"},
        {get("/v1/models/other"), 404, "model_not_found"},
    };
    for (auto& row : table) {
      CAPTURE(row.request);
      auto r = co_await s.ask(row.request);
      CHECK(r.result_int() == row.code);
      CHECK(json::parse(r.body()).at("error").at("code").as_string() == row.reason.c_str());
    }
    CHECK(w.backend.live == 0);
    w.backend.refuse_with = errc::queue_full;
    auto r = co_await s.ask(post("/v1/completions", R"({"model":"m","prompt":"x"})"));
    CHECK(r.result_int() == 503);
    CHECK(r[bh::field::retry_after] == "1");
  }));
}

TEST_CASE("openai service: a generation that fails is an error, before or within its stream") {
  on_real_context(serving([](site& s, world& w) -> awaitable<void> {
    w.backend.fail_at = 0;
    const auto stream = R"({"model":"m","prompt":"x","max_tokens":4,"stream":true})";
    CHECK((co_await s.ask(post("/v1/completions", stream))).result_int() == 500);
    w.backend.fail_at = 2;
    CHECK((co_await s.ask(post("/v1/completions", R"({"model":"m","prompt":"x","max_tokens":4})"))).result_int() ==
          500);
    auto r = co_await s.ask(post("/v1/completions", stream));
    CHECK(r.result_int() == 200);
    auto events = events_of(r.body());
    REQUIRE(events.size() == 3);
    CHECK(json::parse(events[2]).at("error").at("code") == "generation_failed");
    CHECK(w.page.text().find("cokv_generations_total{outcome=\"failed\"} 3") != std::string::npos);
  }));
}

TEST_CASE("openai service: a client that goes in the middle ends its generation") {
  on_both_contexts(serving([](site& s, world& w) -> awaitable<void> {
    for (const char* stream : {"true", "false"}) {
      CAPTURE(stream);
      auto c = co_await s.connect();
      co_await c.send(post("/v1/completions",
                           std::string(R"({"model":"m","prompt":"x","max_tokens":99,"stream":)") + stream + "}"));
      while (w.backend.live == 0) co_await pause(1ms);
      co_await pause(10ms);
      c.stream.close();
      while (s.server.connections() != 0) co_await pause(1ms);
      CHECK(w.backend.live == 0);
    }
    CHECK(w.page.text().find("cokv_generations_total{outcome=\"cancelled\"} 2") != std::string::npos);
    CHECK(w.page.text().find("cokv_generations_active 0") != std::string::npos);
  }));
}

TEST_CASE("openai service: several answers to one prompt, each with its seed, its logprobs and its end") {
  on_both_contexts(serving([](site& s, world& w) -> awaitable<void> {
    auto r = co_await s.ask(
        post("/v1/completions", R"({"model":"m","prompt":"123","max_tokens":3,"n":3,"seed":9,"logprobs":1})"));
    CHECK(r.result_int() == 200);
    auto v = json::parse(r.body());
    REQUIRE(v.at("choices").as_array().size() == 3);
    for (std::size_t i = 0; i < 3; ++i) {
      const auto& c = v.at("choices").at(i);
      CHECK(c.at("index") == i);
      CHECK(c.at("text") == "w0 w1 w2 ");
      CHECK(c.at("finish_reason") == "length");
      CHECK(c.at("logprobs") == json::parse(R"({"tokens":["t0","t1","t2"],"token_logprobs":[-0.5,-0.5,-0.5],
          "top_logprobs":[{"t0":-0.5},{"t1":-0.5},{"t2":-0.5}],"text_offset":[0,2,4]})"));
    }
    CHECK(v.at("usage").at("prompt_tokens") == 3);
    CHECK(v.at("usage").at("completion_tokens") == 9);
    REQUIRE(w.backend.seeds.size() == 3);
    CHECK(w.backend.seeds[0] == 9);
    CHECK(std::set(w.backend.seeds.begin(), w.backend.seeds.end()).size() == 3);
    CHECK(w.backend.live == 0);

    r = co_await s.ask(post("/v1/chat/completions",
                            R"({"model":"m","messages":[{"role":"user","content":"x"}],"max_tokens":3,"n":2,
                                "stream":true,"logprobs":true,"stream_options":{"include_usage":true}})"));
    std::map<std::int64_t, std::string> texts, reasons;
    std::map<std::int64_t, int> openings, tokens;
    const auto events = events_of(r.body());
    for (std::size_t i = 0; i + 2 < events.size(); ++i) {
      const auto c = json::parse(events[i]).at("choices").at(0);
      const auto index = c.at("index").as_int64();
      const auto& delta = c.at("delta").as_object();
      openings[index] += delta.contains("role");
      CHECK((openings[index] == 1));  // before anything else
      if (auto* content = delta.if_contains("content")) texts[index] += content->as_string().c_str();
      if (!c.at("logprobs").is_null())
        tokens[index] += static_cast<int>(c.at("logprobs").at("content").as_array().size());
      if (!c.at("finish_reason").is_null()) reasons[index] += c.at("finish_reason").as_string().c_str();
    }
    const std::map<std::int64_t, std::string> both{{0, "w0 w1 w2 "}, {1, "w0 w1 w2 "}};
    CHECK(texts == both);
    CHECK(reasons == std::map<std::int64_t, std::string>{{0, "length"}, {1, "length"}});
    CHECK(tokens == std::map<std::int64_t, int>{{0, 3}, {1, 3}});
    CHECK(json::parse(events[events.size() - 2]).at("usage").at("completion_tokens") == 6);
    CHECK(events.back() == "[DONE]");
    CHECK(w.backend.live == 0);
  }));
}

TEST_CASE("openai service: where one of several answers is refused or fails, or its client goes, none is left behind") {
  on_both_contexts(serving([](site& s, world& w) -> awaitable<void> {
    w.backend.refuse_with = errc::queue_full;
    for (const char* stream : {"true", "false"}) {
      CAPTURE(stream);
      const auto ask = post("/v1/completions",
                            std::string(R"({"model":"m","prompt":"x","max_tokens":9,"n":3,"stream":)") + stream + "}");
      w.backend.refuse_after = w.backend.seeds.size() + 2;
      CHECK((co_await s.ask(ask)).result_int() == 503);
      CHECK(w.backend.live == 0);
      w.backend.refuse_after = w.backend.seeds.size() + 3;
      w.backend.fail_at = 4;
      const auto r = co_await s.ask(ask);
      CHECK(r.result_int() == (stream[0] == 't' ? 200 : 500));
      CHECK(r.body().find("generation_failed") != std::string::npos);
      CHECK(w.backend.live == 0);
      w.backend.fail_at.reset();
      w.backend.refuse_after = w.backend.seeds.size() + 3;
      auto c = co_await s.connect();
      co_await c.send(post("/v1/completions",
                           std::string(R"({"model":"m","prompt":"x","max_tokens":99,"n":3,"stream":)") + stream + "}"));
      while (w.backend.live < 3) co_await pause(1ms);
      co_await pause(5ms);
      c.stream.close();
      while (s.server.connections() != 0) co_await pause(1ms);
      CHECK(w.backend.live == 0);
    }
    CHECK(w.page.text().find("cokv_generations_active 0") != std::string::npos);
  }));
}

TEST_CASE("openai service: the models") {
  on_real_context(serving([](site& s, world&) -> awaitable<void> {
    auto v = json::parse((co_await s.ask(get("/v1/models"))).body());
    CHECK(v.at("data").at(0).at("id") == "m");
    CHECK(json::parse((co_await s.ask(get("/v1/models/m"))).body()).at("id") == "m");
  }));
}

TEST_CASE("openai service: when the time to drain is over, a stream ends with an error and other requests with 503") {
  on_both_contexts(serving([](site& s, world& w) -> awaitable<void> {
    auto ask = [](const char* stream) {
      return post("/v1/completions",
                  std::string(R"({"model":"m","prompt":"x","max_tokens":99,"stream":)") + stream + "}");
    };
    auto streaming = co_await s.connect(), whole = co_await s.connect();
    co_await streaming.send(ask("true"));
    co_await whole.send(ask("false"));
    while (w.backend.live != 2) co_await pause(1ms);
    co_await pause(5ms);
    s.server.drain(10ms);
    auto events = events_of((co_await streaming.read()).body());
    REQUIRE(events.size() > 2);
    CHECK(json::parse(events[0]).at("choices").at(0).at("text") == "w0 ");
    const auto last = json::parse(events.back());
    CHECK(last.at("error").at("code") == "shutting_down");
    CHECK(last.at("error").at("type") == "server_error");
    auto r = co_await whole.read();
    CHECK(r.result_int() == 503);
    CHECK(json::parse(r.body()).at("error").at("code") == "shutting_down");
    CHECK(w.backend.live == 0);
    CHECK(w.page.text().find("cokv_generations_total{outcome=\"cancelled\"} 2") != std::string::npos);
  }));
}

TEST_CASE("openai service: every refusal is counted, and those that the engine never saw apart") {
  on_real_context(serving([](site& s, world& w) -> awaitable<void> {
    for (const char* body : {"{", R"({"model":"other","prompt":"x"})", R"({"model":"m","prompt":""})",
                             R"({"model":"m","prompt":"endless"})"})
      co_await s.ask(post("/v1/completions", body));
    CHECK(w.api.refused_before_engine() == 4);
    w.backend.refuse_with = errc::queue_full;
    co_await s.ask(post("/v1/completions", R"({"model":"m","prompt":"x"})"));
    CHECK(w.api.refused_before_engine() == 4);
    CHECK(w.page.text().find("cokv_generations_total{outcome=\"refused\"} 5") != std::string::npos);
  }));
}
