// The routes over an entrance that does as it is told: rooms and answers without an engine.
#include "cluster/decode_service.hpp"

#include <boost/json/serialize.hpp>

#include "../http_fixture.hpp"
#include "http/client.hpp"
#include "http/json.hpp"
#include "support/co_test.hpp"

using namespace cokv;
using namespace cokv::cluster;
using namespace cokv::test;
namespace json = boost::json;

namespace {

constexpr kv_wire wire{.layers = 2, .kv_heads = 1, .head_dim = 8, .block_tokens = 4};

// A prompt as its writer sees it.
struct told {
  explicit told(const asio::any_io_executor& ex) : answer(ex, 64), ended(ex, 1) {}
  channel<generated> answer;
  channel<char> ended;  // closed: its KV is there, or it was given up
  bool decodes = false, running = false, given_up = false;
  error_code why = asio::error::eof;  // behind what was said

  void say(token_id t) { REQUIRE(answer.try_send(generated{.token = t, .text = std::to_string(t)})); }
  void finish(error_code ec = asio::error::eof) {
    why = ec;
    answer.close();
    ended.close();
  }
};

class told_answer final : public openai::answer {
 public:
  explicit told_answer(std::shared_ptr<told> t) : t_(std::move(t)) {}
  ~told_answer() override {
    t_->given_up = true;
    t_->ended.close();
  }
  awaitable<result<generated>> next() override {
    auto g = co_await t_->answer.async_receive(as_result);
    if (!g && g.error() == errc::closed) co_return t_->why;
    co_return g;
  }
  const generation_report& report() const override { return report_; }

 private:
  std::shared_ptr<told> t_;
  generation_report report_;
};

class told_entrance final : public entrance {
 public:
  explicit told_entrance(asio::any_io_executor ex) : ex_(std::move(ex)) {}

  awaitable<result<admitted>> open(generation_request r, offer from, std::string id, std::uint32_t attempt) override {
    ++*opening;
    const std::shared_ptr<void> at_end(nullptr, [n = opening](void*) { --*n; });
    co_await pause(takes);
    if (refuses) co_return refuses;
    if (!(from.wire == wire)) co_return make_error_code(errc::namespace_mismatch);
    auto t = std::make_shared<told>(ex_);
    prompts.push_back(t);
    cluster::ticket ticket{
        .id = id, .attempt = attempt, .parts = {{.life = "here", .links = {}, .legs = {}}}, .wire = wire};
    ticket.tokens = ticket.first = static_cast<std::uint32_t>(r.prompt.size());
    ticket.blocks.resize((r.prompt.size() + 3) / 4);
    ticket.lease = 1s;
    co_return admitted{.ticket = ticket,
                       .answer = std::make_unique<told_answer>(t),
                       .run = [t]() -> awaitable<error_code> {
                         t->running = true;
                         const std::shared_ptr<void> at_end(nullptr, [t](void*) { t->running = false; });
                         (void)co_await t->ended.async_receive(as_result);
                         co_return error_code();
                       },
                       .decodes = [t] { return t->decodes; }};
  }

  awaitable<result<admitted>> resume(generation_request r, lost_answer lost, std::string id,
                                     std::uint32_t attempt) override {
    if (lost.life != "lost" || lost.attempt != 3) co_return errc::not_found;
    auto t = std::make_shared<told>(ex_);
    t->decodes = true;
    prompts.push_back(t);
    auto follower = std::make_shared<int>();
    following = follower;
    co_return admitted{.ticket = {},
                       .answer = std::make_unique<told_answer>(t),
                       .run = []() -> awaitable<error_code> { co_return error_code(); },
                       .decodes = [] { return true; },
                       .covered = [this, follower](std::uint32_t piece) -> awaitable<void> {
                         asked = piece;
                         while (piece >= covered) co_await pause(1ms);
                       },
                       .restored = static_cast<std::uint32_t>(r.prompt.size() - 1)};
  }

  std::uint32_t covered = 1000;  // pieces of resumed ones that may be told
  std::uint32_t asked = 0;       // the last one
  std::weak_ptr<int> following;  // what holds the blocks that the last resumed one's copies lack
  std::vector<std::shared_ptr<told>> prompts;
  std::shared_ptr<std::size_t> opening = std::make_shared<std::size_t>(0);  // of coroutines that may outlive it
  error_code refuses;
  duration takes = 0s;

 private:
  asio::any_io_executor ex_;
};

std::string creation(std::string_view id, std::uint32_t attempt, kv_wire w = wire, std::uint32_t continues = 0) {
  generation_request r;
  r.prompt = {1, 2, 3, 4, 5};
  r.continues = continues;
  return json::serialize(json::object{{"id", json::string(id.data(), id.size())},
                                      {"attempt", attempt},
                                      {"request", to_json(r)},
                                      {"from", to_json(offer{.name = "prefill-0", .life = "there", .wire = w})}});
}

template <class Body>
awaitable<void> with_worker(decode_options o, Body body, bool swept = false) {
  auto ex = co_await asio::this_coro::executor;
  told_entrance door(ex);
  o.max_sequence = 16;
  decode_service api(ex, door, o);
  co_await with_site(
      {}, [&](http::server& s) { api.route(s); },
      [&](site& s) -> awaitable<void> {
        http::client c(ex, {s.at});
        auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
          group.spawn(api.run());
          co_await pause(0s);
          co_await body(c, door, api);
          api.close();
        });
        CHECK_MESSAGE((v || swept), v.error().message());
      },
      swept);
  CHECK(api.sequences() == 0);
  for (auto& t : door.prompts) {
    CHECK(!t->running);
    CHECK(t->given_up);
  }
}

awaitable<std::string> next(http::line_stream& from) {
  auto text = co_await from.next();
  if (!text) co_return text.error().message();
  if (!*text) co_return "over";
  auto heard = read_line(**text);
  REQUIRE(heard.has_value());
  if (const auto* p = std::get_if<piece>(&*heard)) co_return std::to_string(p->index) + ':' + p->what.text;
  co_return std::get<ending>(*heard).code ? "error" : "end";
}

template <class Body>
void on_both(decode_options o, Body body) {
  co_test([=](asio::any_io_executor) { return with_worker(o, body); });
}

template <class Body>
void in_virtual_time(decode_options o, Body body) {
  co_test([=](asio::any_io_executor) { return with_worker(o, body); }, {.real = false});
}

}  // namespace

TEST_CASE("decode_service: a prompt gets a ticket, its answer is told as it comes, and is kept for a retry") {
  on_both({}, [](http::client& c, told_entrance& door, decode_service& api) -> awaitable<void> {
    auto made = co_await c.post("/v1/sequences", creation("a.0", 1));
    REQUIRE(made.has_value());
    CHECK(made->code == 201);
    const auto t = read_ticket(*http::parse_json(made->body));
    REQUIRE(t.has_value());
    CHECK(t->id == "a.0");
    CHECK(t->attempt == 1);
    auto pieces = co_await c.open_lines({.target = "/v1/sequences/a.0/pieces"});
    REQUIRE(pieces.has_value());
    auto& prompt = *door.prompts.at(0);
    prompt.say(7);
    CHECK(co_await next(*pieces) == "0:7");
    CHECK(prompt.running);
    prompt.decodes = true;
    prompt.say(8);
    CHECK(co_await next(*pieces) == "1:8");
    prompt.finish();
    CHECK(co_await next(*pieces) == "end");
    CHECK(co_await next(*pieces) == "over");
    auto again = co_await c.open_lines({.target = "/v1/sequences/a.0/pieces?from=1"});
    CHECK(co_await next(*again) == "1:8");
    CHECK(co_await next(*again) == "end");
    CHECK(api.sequences() == 1);
    CHECK((co_await c.del("/v1/sequences/a.0"))->code == 204);
    CHECK((co_await c.del("/v1/sequences/a.0"))->code == 204);
    co_await pause(5ms);
    CHECK(api.sequences() == 0);
    CHECK((co_await c.get("/v1/sequences/a.0/pieces"))->code == 404);
  });
}

TEST_CASE("decode_service: a sequence says how far it is, and behind how much of its answer it began") {
  on_both({}, [](http::client& c, told_entrance& door, decode_service&) -> awaitable<void> {
    const auto state = [&](std::string id) -> awaitable<std::string> {
      auto r = co_await c.get("/v1/sequences/" + id);
      REQUIRE(r.has_value());
      co_return r->code == 200 ? r->body : std::to_string(r->code);
    };
    CHECK(co_await state("a.0") == "404");
    CHECK((co_await c.post("/v1/sequences", creation("a.0", 2, wire, 3)))->code == 201);
    CHECK(co_await state("a.0") == R"({"attempt":2,"pieces":0,"continues":3,"state":"waits"})");
    auto& prompt = *door.prompts.at(0);
    prompt.say(7);
    co_await pause(5ms);
    CHECK(co_await state("a.0") == R"({"attempt":2,"pieces":1,"continues":3,"state":"waits"})");
    prompt.decodes = true;
    CHECK(co_await state("a.0") == R"({"attempt":2,"pieces":1,"continues":3,"state":"decodes"})");
    prompt.finish();
    co_await pause(5ms);
    CHECK(co_await state("a.0") == R"({"attempt":2,"pieces":1,"continues":3,"state":"over"})");
    CHECK((co_await c.post("/v1/sequences", creation("b.0", 1)))->code == 201);
    door.prompts.at(1)->finish(errc::device_lost);
    co_await pause(5ms);
    CHECK(co_await state("b.0") == R"({"attempt":1,"pieces":0,"continues":0,"state":"failed"})");
    CHECK((co_await c.del("/v1/sequences/b.0"))->code == 204);
    CHECK(co_await state("b.0") == "404");
  });
}

TEST_CASE("decode_service: an error ends an answer as itself") {
  on_both({}, [](http::client& c, told_entrance& door, decode_service&) -> awaitable<void> {
    CHECK((co_await c.post("/v1/sequences", creation("a.0", 1)))->code == 201);
    auto pieces = co_await c.open_lines({.target = "/v1/sequences/a.0/pieces"});
    door.prompts.at(0)->say(7);
    door.prompts.at(0)->finish(errc::unavailable);
    CHECK(co_await next(*pieces) == "0:7");
    CHECK(co_await next(*pieces) == "error");
  });
}

TEST_CASE("decode_service: of an answer that failed nothing is held for copies, as long as it is told") {
  on_both({}, [](http::client& c, told_entrance& door, decode_service&) -> awaitable<void> {
    auto v = http::parse_json(creation("r", 4))->as_object();
    v.erase("from");
    v["lost"] = to_json(lost_answer{"lost", 3});
    CHECK((co_await c.post("/v1/sequences", json::serialize(v)))->code == 200);
    auto pieces = co_await c.open_lines({.target = "/v1/sequences/r/pieces"});
    door.prompts.at(0)->say(7);
    CHECK(co_await next(*pieces) == "0:7");
    CHECK(!door.following.expired());
    door.prompts[0]->finish(errc::unavailable);
    CHECK(co_await next(*pieces) == "error");
    co_await pause(5ms);
    CHECK(door.following.expired());
  });
}

TEST_CASE("decode_service: attempts of one prompt: the same ticket, a new room, a refusal, or what decodes already") {
  on_both({}, [](http::client& c, told_entrance& door, decode_service& api) -> awaitable<void> {
    const auto first = co_await c.post("/v1/sequences", creation("a.0", 2));
    CHECK((co_await c.post("/v1/sequences", creation("a.0", 2)))->body == first->body);
    CHECK(door.prompts.size() == 1);
    CHECK((co_await c.post("/v1/sequences", creation("a.0", 1)))->code == 409);
    CHECK((co_await c.post("/v1/sequences", creation("a.0", 3)))->code == 201);
    REQUIRE(door.prompts.size() == 2);
    CHECK(door.prompts[0]->given_up);
    CHECK(!door.prompts[0]->running);
    CHECK(api.sequences() == 1);
    door.prompts[1]->say(7);
    door.prompts[1]->decodes = true;
    co_await pause(5ms);
    for (std::uint32_t attempt : {1u, 3u, 4u}) {
      auto r = co_await c.post("/v1/sequences", creation("a.0", attempt));
      CHECK(r->code == 200);
      CHECK(r->body == R"({"running":true,"attempt":3,"pieces":1})");
    }
  });
}

TEST_CASE("decode_service: what can't be taken is refused, and leaves nothing") {
  on_both({.max_sequences = 1}, [](http::client& c, told_entrance& door, decode_service& api) -> awaitable<void> {
    auto code = [&](std::string body) -> awaitable<unsigned> {
      auto r = co_await c.post("/v1/sequences", std::move(body));
      co_return r ? r->code : 0;
    };
    CHECK(co_await code("{") == 400);
    CHECK(co_await code("{}") == 400);
    CHECK(co_await code(creation("a/0", 1)) == 400);
    auto other = wire;
    other.head_dim = 16;
    CHECK(co_await code(creation("a.0", 1, other)) == 422);
    for (auto [why, expected] : std::vector<std::pair<errc, unsigned>>{
             {errc::deadline, 503}, {errc::queue_full, 503}, {errc::too_large, 400}, {errc::closed, 503}}) {
      door.refuses = why;
      CHECK(co_await code(creation("a.0", 1)) == expected);
      CHECK(api.sequences() == 0);
    }
    door.refuses = {};
    CHECK(co_await code(creation("a.0", 1)) == 201);
    CHECK(co_await code(creation("b.0", 1)) == 503);
    CHECK((co_await c.get("/v1/sequences/b.0/pieces"))->code == 404);
    CHECK((co_await c.get("/v1/sequences/a.0/pieces?from=x"))->code == 400);
  });
}

TEST_CASE("decode_service: who goes while room is made leaves none, and an answer that nobody reads is given up") {
  in_virtual_time(
      {.orphan_grace = 10s, .retention = 30s},
      [](http::client& c, told_entrance& door, decode_service& api) -> awaitable<void> {
        door.takes = 5s;
        auto hasty = co_await c.ask(
            {.method = http::verb::post, .target = "/v1/sequences", .body = creation("a.0", 1), .first_byte = 1s});
        CHECK(hasty.error() == errc::deadline);
        co_await pause(100ms);
        CHECK(*door.opening == 0);
        CHECK(api.sequences() == 0);
        door.takes = 0s;
        CHECK((co_await c.post("/v1/sequences", creation("a.0", 1)))->code == 201);
        co_await pause(9s);
        CHECK(!door.prompts.at(0)->given_up);
        {
          auto pieces = co_await c.open_lines({.target = "/v1/sequences/a.0/pieces"});
          co_await pause(60s);
          CHECK(!door.prompts.at(0)->given_up);
        }
        co_await pause(9s);
        CHECK(!door.prompts.at(0)->given_up);
        co_await pause(2s);
        CHECK(door.prompts.at(0)->given_up);
        CHECK((co_await c.get("/v1/sequences/a.0/pieces"))->body.find("closed") != std::string::npos);
        co_await pause(31s);
        CHECK(api.sequences() == 0);
      });
}

TEST_CASE("decode_service: cancelled or destroyed at any step it leaves no prompt behind") {
  auto body = [](asio::any_io_executor) -> awaitable<void> {
    co_await with_worker(
        {},
        [](http::client& c, told_entrance& door, decode_service&) -> awaitable<void> {
          auto made = co_await c.post("/v1/sequences", creation("a.0", 1));
          if (!made || made->code != 201) co_return;
          door.prompts.at(0)->say(7);
          auto pieces = co_await c.open_lines({.target = "/v1/sequences/a.0/pieces"});
          if (pieces) (void)co_await pieces->next();
        },
        true);
  };
  cancel_at_every_step(body, {.real = false});
  destroy_at_every_step(body, {.real = false});
}

TEST_CASE(
    "decode_service: an answer that was lost elsewhere goes on from its copy, and pieces wait for copies of their "
    "own") {
  on_both({.sign = 500ms}, [](http::client& c, told_entrance& door, decode_service& api) -> awaitable<void> {
    const auto order = [](std::uint32_t attempt, std::uint32_t of) {
      auto v = http::parse_json(creation("r", attempt))->as_object();
      v.erase("from");
      v["lost"] = to_json(lost_answer{"lost", of});
      return json::serialize(v);
    };
    auto none = co_await c.post("/v1/sequences", order(4, 2));
    REQUIRE(none.has_value());
    CHECK(none->code == 404);
    CHECK(none->body.find("not_found") != std::string::npos);
    CHECK(api.sequences() == 0);
    auto made = co_await c.post("/v1/sequences", order(4, 3));
    REQUIRE(made.has_value());
    CHECK(made->code == 200);
    CHECK(*http::parse_json(made->body) == *http::parse_json(R"({"running":true,"attempt":4,"restored":4})"));
    auto again = co_await c.post("/v1/sequences", order(4, 3));
    REQUIRE(again.has_value());
    CHECK(*http::parse_json(again->body) ==
          *http::parse_json(R"({"running":true,"attempt":4,"pieces":0,"restored":4})"));
    CHECK(door.prompts.size() == 1);
    door.covered = 1;
    for (token_id t : {7, 8}) door.prompts[0]->say(t);
    auto lines = co_await c.open_lines({.target = "/v1/sequences/r/pieces"});
    REQUIRE(lines.has_value());
    CHECK(co_await next(*lines) == "0:7");
    auto waits = co_await with_deadline(lines->next(), 100ms);
    CHECK(waits.error() == errc::deadline);
    door.covered = 2;
    auto more = co_await c.open_lines({.target = "/v1/sequences/r/pieces?from=1"});
    REQUIRE(more.has_value());
    CHECK(co_await next(*more) == "1:8");
    door.prompts[0]->finish();
    CHECK(co_await next(*more) == "end");
    co_await pause(5ms);
    CHECK(door.asked == 2);  // also what its last step computed is waited for, and no longer held then
    CHECK(!door.following.expired());
    door.covered = 3;
    auto both = http::parse_json(order(5, 3))->as_object();
    both["from"] = to_json(offer{.name = "prefill-0", .life = "there", .wire = wire});
    auto wrong = co_await c.post("/v1/sequences", json::serialize(both));
    REQUIRE(wrong.has_value());
    CHECK(wrong->code == 400);
    CHECK((co_await c.del("/v1/sequences/r")).value().code == 204);
  });
}
