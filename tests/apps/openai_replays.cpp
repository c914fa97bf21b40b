// Requests with an Idempotency-Key, as their clients meet them: over an engine that counts what it is asked to compute.
#include <boost/json/parse.hpp>

#include "http_fixture.hpp"
#include "openai/service.hpp"
#include "support/co_test.hpp"

using namespace cokv;
using namespace cokv::test;
namespace json = boost::json;
using http::status;

namespace {

// A word a token and a millisecond, which its seed decides.
class counting_backend final : public openai::backend {
 public:
  class counted final : public openai::answer {
   public:
    counted(counting_backend& b, generation_request r) : of(b), request(std::move(r)) { ++of.live; }
    ~counted() override { --of.live; }
    awaitable<result<generated>> next() override {
      co_await pause(of.between);
      if (of.throws) throw std::runtime_error("a bug");
      if (of.fail_at == told.generated_tokens) co_return make_error_code(errc::device_failed);
      if (told.generated_tokens == request.max_tokens) co_return asio::error::make_error_code(asio::error::eof);
      generated g;
      g.text =
          std::to_string((request.sampling.seed + told.generated_tokens) % 1000) + ' ' + std::string(of.padding, 'p');
      if (++told.generated_tokens == request.max_tokens) g.reason = finish_reason::length;
      co_return g;
    }
    const generation_report& report() const override { return told; }
    counting_backend& of;
    generation_request request;
    generation_report told;
  };

  std::vector<token_id> encode(std::string_view text, encode_options) const override {
    return std::vector<token_id>(text.size(), token_id(1));
  }
  std::uint32_t context() const override { return 4000; }
  std::uint32_t vocabulary() const override { return 50; }
  std::string token_bytes(token_id) const override { return "t"; }
  result<std::unique_ptr<openai::answer>> submit(generation_request r) override {
    return submit_named(std::move(r), "");
  }
  result<std::unique_ptr<openai::answer>> submit_named(generation_request r, std::string name) override {
    names.push_back(name);
    seeds.push_back(r.sampling.seed);
    if (refuse_with) return refuse_with;
    return std::make_unique<counted>(*this, std::move(r));
  }

  std::vector<std::string> names;
  std::vector<std::uint64_t> seeds;
  std::optional<std::uint32_t> fail_at;
  error_code refuse_with;
  bool throws = false;
  duration between = 1ms;
  std::size_t padding = 0;
  int live = 0;
};

struct world {
  explicit world(openai::replay_options how) : api(backend, {.id = "m", .fingerprint = "fp", .replay = how}, page) {}
  counting_backend backend;
  http::metrics page;
  openai::service api;
  double counted(std::string_view line) const {
    const auto text = page.text();
    const auto at = text.find('\n' + std::string(line) + ' ');
    return at == text.npos ? -1 : std::stod(text.substr(at + line.size() + 2));
  }
};

template <class Body>
awaitable<void> with_api(openai::replay_options how, http::api_keys keys, Body body, bool swept = false) {
  auto w = std::make_shared<world>(how);
  co_await with_site(
      {.keys = std::move(keys)}, [w](http::server& s) { w->api.route(s); },
      [&](site& s) -> awaitable<void> {
        auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
          group.spawn(w->api.run());
          co_await pause(0s);
          co_await body(s, *w);
          w->api.close();
        });
        CHECK_MESSAGE((v || swept), v.error().message());
      },
      swept);
  CHECK(w->backend.live == 0);
}

template <class Body>
void on_both(Body body, openai::replay_options how = {}) {
  on_both_contexts([=] { return with_api(how, {}, body); });
}
// Its waits are too long for a real clock.
template <class Body>
void in_virtual_time(Body body, openai::replay_options how = {}) {
  on_sim_context([=] { return with_api(how, {}, body); });
}

std::string body_of(std::uint32_t tokens, bool stream, std::string_view more = "") {
  return R"({"model":"m","prompt":"x","max_tokens":)" + std::to_string(tokens) + R"(,"stream":)" +
         (stream ? "true" : "false") + std::string(more) + "}";
}
std::string keyed(std::string_view key, std::string_view body, std::string_view path = "/v1/completions",
                  std::string_view fields = "") {
  return post(path, body, "Idempotency-Key: " + std::string(key) + "\r\n" + std::string(fields));
}
bool replayed(const response& r) { return r["Idempotent-Replayed"] == "true"; }
std::string reason_of(const response& r) {
  return std::string(json::parse(r.body()).at("error").at("code").as_string());
}

}  // namespace

TEST_CASE("replays: two at once and one later get the bytes of one computation, whole or streamed") {
  on_both([](site& s, world& w) -> awaitable<void> {
    for (bool stream : {false, true}) {
      CAPTURE(stream);
      const auto key = stream ? "s" : "w";
      const auto before = w.backend.names.size();
      auto first = co_await s.connect(), second = co_await s.connect();
      co_await first.send(keyed(key, body_of(9, stream)));
      while (w.backend.live == 0) co_await pause(1ms);
      co_await pause(4ms);
      co_await second.send(keyed(key, body_of(9, stream)));
      const auto a = co_await first.read(), b = co_await second.read();
      const auto c = co_await s.ask(keyed('"' + std::string(key) + '"', body_of(9, stream)));
      for (auto* r : {&a, &b, &c}) {
        CHECK(r->result_int() == 200);
        CHECK(r->body() == a.body());
        CHECK((*r)[bh::field::content_type] == (stream ? "text/event-stream" : "application/json"));
      }
      CHECK(a.body().size() > 100);
      CHECK(!replayed(a));
      CHECK(replayed(b));
      CHECK(replayed(c));
      CHECK(w.backend.names.size() == before + 1);
    }
    CHECK(w.counted(R"(cokv_generations_total{outcome="length"})") == 2);
    CHECK(w.counted("cokv_replayed_answers_total") == 4);
    CHECK(w.counted(R"(cokv_kept_answers{state="complete"})") == 2);
    CHECK(w.counted(R"(cokv_kept_answers{state="making"})") == 0);
  });
}

TEST_CASE("replays: id, seed and name are made from holder, key and body; without a key nothing is kept") {
  on_both([](site& s, world& w) -> awaitable<void> {
    const openai::answer_name n("", "k", "/v1/completions", body_of(3, false, R"(,"n":2)"));
    const auto r = co_await s.ask(keyed("k", body_of(3, false, R"(,"n":2)")));
    char id[40];
    std::snprintf(id, sizeof id, "cmpl-%016llx", static_cast<unsigned long long>(n.id()));
    CHECK(json::parse(r.body()).at("id").as_string() == id);
    CHECK(w.backend.names == std::vector{n.sequence(0), n.sequence(1)});
    CHECK(w.backend.seeds.at(0) == n.seed());
    CHECK(w.backend.seeds.at(1) != n.seed());
    co_await s.ask(keyed("l", body_of(3, false, R"(,"seed":7)")));
    CHECK(w.backend.seeds.at(2) == 7);
    for (int i = 0; i < 2; ++i) {
      const auto plain = co_await s.ask(post("/v1/completions", body_of(3, false)));
      CHECK(!replayed(plain));
      CHECK(w.backend.names.back().empty());
    }
    CHECK(w.backend.names.size() == 5);
    CHECK(w.backend.seeds[3] != w.backend.seeds[4]);
    CHECK(w.counted(R"(cokv_kept_answers{state="complete"})") == 2);
  });
}

TEST_CASE("replays: another body or route under a key, and what is no key, are refused by name") {
  on_both([](site& s, world& w) -> awaitable<void> {
    co_await s.ask(keyed("k", body_of(3, false)));
    for (const auto& other : {keyed("k", body_of(4, false)), keyed("k", body_of(3, true)), keyed("k", "{"),
                              keyed("k", body_of(3, false), "/v1/chat/completions")}) {
      const auto r = co_await s.ask(other);
      CHECK(r.result_int() == 422);
      CHECK(reason_of(r) == "idempotency_key_reused");
      CHECK(json::parse(r.body()).at("error").at("param") == "Idempotency-Key");
    }
    CHECK((co_await s.ask(keyed("k", body_of(3, false)))).result_int() == 200);
    for (const auto& bad : {std::string(), std::string("\"\""), std::string("a b"), std::string("a,b"),
                            std::string("\xc3\xa9"), std::string(256, 'k'), std::string("a\r\nIdempotency-Key: a")}) {
      CAPTURE(bad);
      const auto r = co_await s.ask(keyed(bad, body_of(3, false)));
      CHECK(r.result_int() == 400);
      CHECK(reason_of(r) == "invalid_idempotency_key");
    }
    for (const char* control : {"a\x01"
                                "b",
                                "a\x7f"
                                "b",
                                "a\rb"})
      CHECK((co_await s.ask(keyed(control, body_of(3, false)))).result_int() == 400);
    CHECK(w.backend.names.size() == 1);
    CHECK(w.api.refused_before_engine() >= 11);
  });
}

TEST_CASE("replays: each holder of an API key has keys of its own") {
  on_both_contexts([] {
    http::api_keys keys;
    keys.add("one"), keys.add("two");
    keys.add("ana-1", {.name = "ana"}), keys.add("ana-2", {.name = "ana"});
    return with_api({}, std::move(keys), [](site& s, world& w) -> awaitable<void> {
      const auto ask = [&](std::string who) -> awaitable<response> {
        co_return co_await s.ask(
            keyed("k", body_of(3, false), "/v1/completions", "Authorization: Bearer " + who + "\r\n"));
      };
      const auto one = co_await ask("one"), two = co_await ask("two"), ana = co_await ask("ana-1");
      CHECK(w.backend.names.size() == 3);
      CHECK(one.body() != two.body());
      CHECK((co_await ask("ana-2")).body() == ana.body());
      CHECK((co_await ask("one")).body() == one.body());
      CHECK(w.backend.names.size() == 3);
    });
  });
}

TEST_CASE("replays: a client that goes, at whatever point, comes again for the whole answer") {
  on_both([](site& s, world& w) -> awaitable<void> {
    const auto whole = co_await s.ask(keyed("k", body_of(9, true)));
    for (int goes = 0; goes < 14; ++goes) {
      const auto key = std::to_string(goes);
      auto c = co_await s.connect();
      co_await c.send(keyed(key, body_of(9, true)));
      co_await pause(duration(goes) * 1'000'000);
      c.stream.close();
      co_await pause(1ms);
      const auto before = w.backend.names.size();
      const auto r = co_await s.ask(keyed(key, body_of(9, true)));
      CHECK(r.result_int() == 200);
      CHECK(r.body().size() >= whole.body().size() - 20);
      CHECK(r.body().ends_with("data: [DONE]\n\n"));
      CHECK((w.backend.names.size() == before || !replayed(r)));
      CHECK(std::ranges::count(w.backend.names, w.backend.names.back()) == 1);
    }
    CHECK(w.backend.names.size() == 15);
  });
}

TEST_CASE("replays: an answer goes on for a grace that nobody reads it, and is cancelled then") {
  in_virtual_time(
      [](site& s, world& w) -> awaitable<void> {
        w.backend.between = 500ms;
        auto c = co_await s.connect();
        co_await c.send(keyed("k", body_of(1000, true)));
        co_await pause(3s);
        c.stream.close();
        co_await pause(9s);
        CHECK(w.backend.live == 1);
        {
          auto again = co_await s.connect();
          co_await again.send(keyed("k", body_of(1000, true)));
          co_await pause(60s);
          CHECK(w.backend.live == 1);
          again.stream.close();
        }
        co_await pause(9s);
        CHECK(w.backend.live == 1);
        CHECK(w.counted(R"(cokv_kept_answers{state="making"})") == 1);
        co_await pause(2s);
        CHECK(w.backend.live == 0);
        CHECK(w.counted(R"(cokv_kept_answers{state="making"})") == 0);
        CHECK(w.counted(R"(cokv_generations_total{outcome="cancelled"})") == 1);
        CHECK(w.backend.names.size() == 1);
        w.backend.between = 1ms;
        const auto r = co_await s.ask(keyed("k", body_of(1000, true)));
        CHECK(!replayed(r));
        CHECK(w.backend.names == std::vector(2, w.backend.names[0]));
      },
      {.grace = 10s});
}

TEST_CASE("replays: what has ended is kept for its retention, whoever reads it") {
  in_virtual_time(
      [](site& s, world& w) -> awaitable<void> {
        const auto first = co_await s.ask(keyed("k", body_of(3, false)));
        co_await pause(59s);
        CHECK((co_await s.ask(keyed("k", body_of(3, false)))).body() == first.body());
        CHECK(w.backend.names.size() == 1);
        co_await pause(2s);
        CHECK(w.counted(R"(cokv_kept_answers{state="complete"})") == 0);
        CHECK(w.counted("cokv_kept_answer_bytes") == 0);
        const auto later = co_await s.ask(keyed("k", body_of(3, false)));
        CHECK(!replayed(later));
        CHECK(json::parse(later.body()).at("choices") == json::parse(first.body()).at("choices"));
        CHECK(json::parse(later.body()).at("id") == json::parse(first.body()).at("id"));
      },
      {.keep = {.retention = 60s}});
}

TEST_CASE("replays: what failed or was refused is told to all who wait for it, and computed again for who asks then") {
  on_both([](site& s, world& w) -> awaitable<void> {
    const auto both = [&](std::string key, bool stream) -> awaitable<std::pair<response, response>> {
      auto first = co_await s.connect(), second = co_await s.connect();
      co_await first.send(keyed(key, body_of(4, stream)));
      co_await second.send(keyed(key, body_of(4, stream)));
      auto a = co_await first.read();
      co_return std::pair(std::move(a), co_await second.read());
    };
    for (bool stream : {false, true}) {
      w.backend.fail_at = 2;
      const std::string key = stream ? "s" : "w";
      const auto before = w.backend.names.size();
      auto [a, b] = co_await both(key, stream);
      for (auto* r : {&a, &b}) {
        CHECK(r->result_int() == (stream ? 200 : 500));
        CHECK(r->body().find("generation_failed") != std::string::npos);
        CHECK(r->body().find("[DONE]") == std::string::npos);
      }
      CHECK(a.body() == b.body());
      CHECK(w.backend.names.size() == before + 1);
      w.backend.fail_at.reset();
      const auto again = co_await s.ask(keyed(key, body_of(4, stream)));
      CHECK(again.result_int() == 200);
      CHECK(!replayed(again));
      CHECK(w.backend.names.size() == before + 2);
    }
    w.backend.refuse_with = errc::queue_full;
    for (int i = 0; i < 2; ++i) {
      const auto r = co_await s.ask(keyed("q", body_of(4, false)));
      CHECK(r.result_int() == 503);
      CHECK(r[bh::field::retry_after] == "1");
      CHECK(!replayed(r));
    }
    w.backend.refuse_with = {};
    CHECK((co_await s.ask(keyed("bad", R"({"model":"other","prompt":"x"})"))).result_int() == 404);
    w.backend.throws = true;
    const auto bug = co_await s.ask(keyed("t", body_of(4, false)));
    CHECK(bug.result_int() == 500);
    CHECK(bug.body().find("a bug") == std::string::npos);
    w.backend.throws = false;
    CHECK((co_await s.ask(keyed("t", body_of(4, false)))).result_int() == 200);
    CHECK(w.counted(R"(cokv_kept_answers{state="complete"})") == 3);
  });
}

TEST_CASE("replays: an answer that is too large is passed on at its reader's pace, and no second request joins it") {
  in_virtual_time(
      [](site& s, world& w) -> awaitable<void> {
        w.backend.padding = 1000;
        auto slow = co_await s.connect();
        co_await slow.send(keyed("k", body_of(3000, true)));
        co_await pause(2s);
        const auto joins = co_await s.ask(keyed("k", body_of(3000, true)));
        CHECK(joins.result_int() == 409);
        CHECK(reason_of(joins) == "idempotency_in_progress");
        co_await pause(10s);
        CHECK(w.backend.live == 1);  // it waits
        CHECK(w.counted("cokv_kept_answer_bytes") < 100'000);
        const auto r = co_await slow.read();
        CHECK(r.body().size() > 3'000'000);
        CHECK(r.body().ends_with("data: [DONE]\n\n"));
        CHECK(w.counted("cokv_kept_answer_bytes") == 0);
        // Its only reader goes: nobody could come for the rest.
        auto goes = co_await s.connect();
        co_await goes.send(keyed("k", body_of(3000, true)));
        co_await pause(2s);
        CHECK(w.backend.live == 1);
        goes.stream.close();
        co_await pause(100ms);
        CHECK(w.backend.live == 0);
        // An object is passed on, too.
        const auto object = co_await s.ask(keyed("o", body_of(300, false)));
        CHECK(json::parse(object.body()).at("usage").at("completion_tokens") == 300);
        CHECK(w.counted(R"(cokv_kept_answers{state="complete"})") == 0);
      },
      {.keep = {.answer_bytes = 50'000, .ahead = 10'000}});
}

TEST_CASE("replays: ten thousand keys are served, and no more are kept than may be") {
  in_virtual_time(
      [](site& s, world& w) -> awaitable<void> {
        w.backend.between = 0s;
        auto c = co_await s.connect();
        for (int i = 0; i < 10'000 / 20; ++i) {  // twenty seeds
          const auto r = co_await c.ask(keyed("key-" + std::to_string(i), body_of(1, false)));
          REQUIRE(r.result_int() == 200);
          REQUIRE(w.counted(R"(cokv_kept_answers{state="complete"})") <= 50);
        }
        CHECK(replayed(co_await c.ask(keyed("key-499", body_of(1, false)))));
        CHECK(!replayed(co_await c.ask(keyed("key-0", body_of(1, false)))));
      },
      {.keep = {.answers = 50}});
  on_sim_context(
      [] {
        return with_api({.keep = {.answers = 2}}, {}, [](site& s, world& w) -> awaitable<void> {
          w.backend.between = 100ms;
          std::vector<raw_client> clients;
          for (int i = 0; i < 2; ++i) {
            clients.push_back(co_await s.connect());
            co_await clients.back().send(keyed(std::to_string(i), body_of(9, false)));
          }
          co_await pause(10ms);
          const auto r = co_await s.ask(keyed("3", body_of(9, false)));
          CHECK(r.result_int() == 503);
          CHECK(r[bh::field::retry_after] == "1");
          for (auto& c : clients) CHECK((co_await c.read()).result_int() == 200);
        });
      },
      1);
}

TEST_CASE("replays: when the server ends, whoever reads is told so, and nothing is taken any more") {
  on_both([](site& s, world& w) -> awaitable<void> {
    auto streaming = co_await s.connect(), whole = co_await s.connect();
    co_await streaming.send(keyed("s", body_of(3000, true)));
    co_await whole.send(keyed("w", body_of(3000, false)));
    while (w.backend.live != 2) co_await pause(1ms);
    co_await pause(5ms);
    w.api.close();
    const auto r = co_await streaming.read();
    CHECK(r.result_int() == 200);
    CHECK(r.body().find("shutting_down") != std::string::npos);
    CHECK(r.body().find("[DONE]") == std::string::npos);
    CHECK((co_await whole.read()).result_int() == 503);
    CHECK((co_await s.ask(keyed("n", body_of(3, false)))).result_int() == 503);
    CHECK((co_await s.ask(post("/v1/completions", body_of(3, false)))).result_int() == 200);
  });
}

TEST_CASE("replays: cancelled at any step the API leaves no answer behind") {
  cancel_at_every_step(
      [](asio::any_io_executor) -> awaitable<void> {
        co_await with_api(
            {}, {},
            [](site& s, world&) -> awaitable<void> {
              auto first = co_await s.connect(), second = co_await s.connect();
              co_await first.send(keyed("k", body_of(3, true)));
              co_await second.send(keyed("k", body_of(3, true)));
              (void)co_await first.read();
              (void)co_await second.read();
            },
            true);
      },
      {.real = false});
}

namespace {

// Without an engine behind it: three events.
awaitable<void> make_three(openai::sink& out, std::shared_ptr<int> live) {
  ++*live;
  const std::shared_ptr<void> at_end(nullptr, [live](void*) { --*live; });
  out.start_events({});
  for (int i = 0; i < 3; ++i) {
    co_await pause(1ms);
    if (co_await out.write("data: x\n\n")) co_return;
  }
  co_await out.finish(true);
}

awaitable<void> answer_three(http::exchange& x, std::shared_ptr<openai::replays> kept, std::shared_ptr<int> live) {
  const openai::answer_name name("", "k", "/", "");
  (void)co_await kept->answer(x, name, [live](openai::sink& out) { return make_three(out, live); });
}

}  // namespace

TEST_CASE("replays: destroyed or cancelled at any step no maker is left") {
  const auto live = std::make_shared<int>(0);
  auto body = [live](asio::any_io_executor) -> awaitable<void> {
    http::metrics page;
    const auto kept = std::make_shared<openai::replays>(openai::replay_options{}, page);
    co_await with_site(
        {},
        [=](http::server& s) {
          s.route(http::verb::get, "/", [=](http::exchange& x) { return answer_three(x, kept, live); });
        },
        [&](site& s) -> awaitable<void> {
          auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
            group.spawn(kept->run());
            co_await pause(0s);
            auto first = co_await s.connect(), second = co_await s.connect();
            co_await first.send(get("/"));
            co_await second.send(get("/"));
            (void)co_await first.read();
            second.stream.close();
            (void)co_await s.ask(get("/"));
            kept->close();
          });
        },
        true);
  };
  cancel_at_every_step(body, {.real = false});
  CHECK(*live == 0);
  destroy_at_every_step(body, {.real = false});
  CHECK(*live == 0);
}
