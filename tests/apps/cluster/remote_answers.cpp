// Two workers that say what the test has them say.
#include "cluster/remote_answers.hpp"

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>

#include "../http_fixture.hpp"
#include "cluster/piece_json.hpp"
#include "cluster/worker_info.hpp"
#include "support/co_test.hpp"

using namespace cokv;
using namespace cokv::cluster;
using namespace cokv::test;
using http::exchange;
using http::status;
using http::verb;
namespace json = boost::json;

namespace {

struct workers {
  std::vector<std::string> lines;                  // of the decode worker
  std::vector<std::vector<std::string>> attempts;  // or of it by attempt; "running": it decodes already
  status room = status::created, prompt = status::ok;
  duration between = 1ms;
  std::string life = "p";
  std::string begun;     // what it says of a sequence that it is asked for; empty: it has none
  duration thinks = 0s;  // before it says so
  std::size_t looked = 0;
  std::size_t held = 0;  // calls that are refused, for another router's lease is not over
  std::string held_by = "held_epoch";
  bool stays = false;  // the last line is not the end of the connection
  std::size_t made = 0, given_up = 0, prefills = 0, prefills_cut = 0;
  std::vector<json::value> created;
  std::vector<std::string> read;  // ?from=

  std::vector<std::string> told() const {
    return attempts.empty() ? lines : attempts.at(std::clamp<std::size_t>(made, 1, attempts.size()) - 1);
  }
};

void route(http::server& s, std::shared_ptr<workers> w) {
  s.admit([w](const exchange& x, time_point) -> std::optional<http::problem> {
    const auto& r = x.request();
    if (w->held == 0 || r.method == verb::delete_ || r.path == "/v1/worker") return {};
    --w->held;
    return http::problem{status::conflict, "not yet", "epoch", w->held_by};
  });
  s.route(verb::get, "/v1/worker", [w](exchange& x) -> awaitable<void> {
    worker_facts f;
    f.self = {.name = "prefill-0", .life = w->life, .wire = {2, 1, 8, 4, dtype::f32}};
    f.max_sequence = 100;
    co_await x.respond(status::ok, "application/json", json::serialize(to_json(f)));
  });
  s.route(verb::post, "/v1/sequences", [w](exchange& x) -> awaitable<void> {
    auto body = co_await x.read_all();
    if (!body) co_return;
    ++w->made;
    w->created.push_back(json::parse(*body));
    if (auto told = w->told(); !told.empty() && told[0] == "running")
      co_return (void) co_await x.respond(status::ok, "application/json", R"({"running":true,"attempt":1,"pieces":2})");
    if (w->room != status::created) co_return (void) co_await x.refuse({w->room, "no", {}, "no"});
    ticket t{.id = "r.0", .attempt = 1, .life = "p", .wire = {2, 1, 8, 4, dtype::f32}};
    t.tokens = t.first = 4;
    t.blocks = {{0, 0}};
    t.lease = 1s;
    co_await x.respond(status::created, "application/json", json::serialize(to_json(t)));
  });
  s.route(verb::get, "/v1/sequences/{id}/pieces",
          [w](exchange& x) -> awaitable<void> {
            w->read.emplace_back(x.request().query_value("from").value_or("none"));
            x.start(status::ok, "application/x-ndjson");
            if (co_await x.write(std::string_view())) co_return;
            for (const auto& line : w->told()) {
              if (line == "running") continue;
              co_await pause(w->between);
              if (co_await x.write(line + '\n')) co_return;
            }
            if (w->stays) co_await pause(3600s);
            co_await x.finish();
          },
          {.query = {"from"}});
  s.route(verb::get, "/v1/sequences/{id}", [w](exchange& x) -> awaitable<void> {
    ++w->looked;
    if (w->thinks > 0s) co_await pause(w->thinks);
    if (w->begun.empty()) co_return (void) co_await x.refuse({status::not_found, "no", {}, "not_found"});
    co_await x.respond(status::ok, "application/json", w->begun);
  });
  s.route(verb::delete_, "/v1/sequences/{id}",
          [w](exchange& x) -> awaitable<void> {
            ++w->given_up;
            co_await x.respond(status::no_content, "", "");
          },
          {.query = {"attempt"}});
  s.route(verb::post, "/v1/prefills", [w](exchange& x) -> awaitable<void> {
    auto body = co_await x.read_all();
    if (!body) co_return;
    ++w->prefills;
    bool whole = false;
    const std::shared_ptr<void> at_end(nullptr, [held = w, &whole](void*) { held->prefills_cut += !whole; });
    co_await pause(w->between);
    whole = true;
    if (w->prompt != status::ok) co_return (void) co_await x.refuse({w->prompt, "no", {}, "no"});
    co_await x.respond(status::ok, "application/json", R"({"tokens":4,"computed":2,"cached":2,"sent_bytes":128})");
  });
}

std::string line_of(std::uint32_t i, finish_reason reason = finish_reason::none) {
  return encode(piece{i, {.token = static_cast<token_id>(10 + i), .text = std::to_string(i), .reason = reason}});
}

template <class Body>
awaitable<void> with_workers(std::shared_ptr<workers> w, Body body, bool swept = false, std::uint32_t attempts = 1) {
  auto ex = co_await asio::this_coro::executor;
  co_await with_site(
      {}, [w](http::server& s) { route(s, w); },
      [&](site& s) -> awaitable<void> {
        members both(ex, {}, {});
        CHECK(!both.add("http://" + s.at.to_string()));
        remote_answers answers(ex, both, {.prefix = "r", .attempts = attempts, .pause = 1ms});
        auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
          group.spawn(both.run());
          group.spawn(answers.run());
          while (both.table().usable(worker_role::both) == 0) co_await pause(1ms);
          co_await body(answers);
          co_await pause(20ms);
          answers.close();
          both.close();
        });
        CHECK(both.table().all().begin()->second.requests == 0);
        CHECK_MESSAGE((v || swept), v.error().message());
        CHECK(answers.requests() == 0);
      },
      swept);
}

generation_request request() {
  generation_request r;
  r.prompt = {1, 2, 3, 4};
  return r;
}

// "012" and how it ended.
awaitable<std::string> all_of(openai::answer& a, error_code& why) {
  std::string out;
  for (;;) {
    auto g = co_await a.next();
    if (!g) {
      why = g.error();
      co_return out;
    }
    out += g->text;
  }
}

void ends(std::vector<std::string> lines, std::string_view text, error_code why, status room = status::created,
          status prompt = status::ok) {
  co_test([=](asio::any_io_executor) -> awaitable<void> {
    auto w = std::make_shared<workers>();
    w->lines = lines, w->room = room, w->prompt = prompt;
    co_await with_workers(w, [&](remote_answers& answers) -> awaitable<void> {
      auto a = answers.submit(request()).value();
      error_code ended;
      CHECK(co_await all_of(*a, ended) == text);
      CHECK_MESSAGE(ended == why, ended.message());
    });
    CHECK(w->made == 1);
    CHECK(w->given_up == 1);  // nothing is left for the worker to keep
  });
}

}  // namespace

TEST_CASE("remote_answers: pieces come as the decode worker tells them, and the report is of both workers") {
  co_test([](asio::any_io_executor) -> awaitable<void> {
    auto w = std::make_shared<workers>();
    w->lines = {line_of(0), line_of(1), line_of(2, finish_reason::stop), encode(ending{})};
    co_await with_workers(w, [&](remote_answers& answers) -> awaitable<void> {
      auto a = answers.submit(request()).value();
      error_code ended;
      CHECK(co_await all_of(*a, ended) == "012");
      CHECK(ended == asio::error::eof);
      CHECK(a->report().prompt_tokens == 4);
      CHECK(a->report().generated_tokens == 3);
      CHECK(a->report().cached_tokens == 3);
      CHECK(a->report().reason == finish_reason::stop);
    });
    CHECK(w->prefills == 1);
    CHECK(w->prefills_cut == 0);
  });
}

TEST_CASE("remote_answers: what is repeated is told once, and what is missing is an error") {
  ends({line_of(0), line_of(0), line_of(1), encode(ending{})}, "01", asio::error::eof);
  ends({line_of(0), line_of(2), encode(ending{})}, "0", errc::protocol);
  ends({line_of(0), "{}"}, "0", errc::protocol);
}

TEST_CASE("remote_answers: an answer that was not ended is not complete") {
  ends({line_of(0)}, "0", errc::unavailable);
  ends({line_of(0), encode(ending{errc::device_lost, "gone"})}, "0", errc::device_lost);
  ends({}, "", errc::unavailable, status::service_unavailable);
}

namespace {

// After the first attempt, which told "01", others.
void moves(std::vector<std::vector<std::string>> attempts, std::string_view text, error_code why,
           std::function<void(const workers&)> check) {
  co_test([=](asio::any_io_executor) -> awaitable<void> {
    auto w = std::make_shared<workers>();
    w->attempts = attempts;
    co_await with_workers(
        w,
        [&](remote_answers& answers) -> awaitable<void> {
          auto asked = request();
          asked.max_tokens = 9;
          auto a = answers.submit(std::move(asked)).value();
          error_code ended;
          CHECK(co_await all_of(*a, ended) == text);
          CHECK_MESSAGE(ended == why, ended.message());
          CHECK(a->report().generated_tokens == text.size());
          CHECK(a->report().prompt_tokens == 4);
        },
        false, 4);
    check(*w);
  });
}

}  // namespace

TEST_CASE("remote_answers: what was told is part of the next attempt's prompt, and nothing is told twice") {
  moves({{line_of(0), line_of(1)}, {line_of(0), line_of(1, finish_reason::stop), encode(ending{})}}, "0101",
        asio::error::eof, [](const workers& w) {
          REQUIRE(w.created.size() == 2);
          CHECK(w.created[1].at("attempt") == 2);
          auto& r = w.created[1].at("request");
          CHECK(r.at("tokens") == json::value{1, 2, 3, 4, 10, 11});
          CHECK(r.at("continues") == 2);
          CHECK(r.at("max_tokens") == 7);
          CHECK(w.read == std::vector<std::string>{"0", "0"});
          CHECK(w.given_up == 2);
        });
}

TEST_CASE("remote_answers: an attempt whose KV came after all is read on where it was") {
  moves({{line_of(0), line_of(1)}, {"running", line_of(1), line_of(2, finish_reason::stop), encode(ending{})}}, "012",
        asio::error::eof, [](const workers& w) {
          CHECK(w.read == std::vector<std::string>{"0", "2"});
          CHECK(w.prefills == 1);
        });
}

TEST_CASE("remote_answers: an answer whose last token was told is complete, whatever becomes of its worker") {
  moves({{line_of(0), line_of(1, finish_reason::length)}}, "01", asio::error::eof,
        [](const workers& w) { CHECK(w.made == 1); });
}

TEST_CASE("remote_answers: it ends after so many attempts, with the last one's error") {
  moves({{line_of(0)}}, "0000", errc::unavailable, [](const workers& w) {
    CHECK(w.made == 4);
    CHECK(w.created[3].at("request").at("continues") == 3);
  });
  moves({{line_of(0), encode(ending{errc::device_lost, "gone"})}}, "0000", errc::device_lost,
        [](const workers& w) { CHECK(w.made == 4); });
}

TEST_CASE("remote_answers: a worker that the router before still holds is waited for, and has not failed") {
  for (const char* why : {"held_epoch", "stale_epoch"})
    for (std::size_t held : {1u, 4u, 9u})
      co_test([=](asio::any_io_executor) -> awaitable<void> {
        auto w = std::make_shared<workers>();
        w->lines = {line_of(0), line_of(1), line_of(2, finish_reason::stop), encode(ending{})};
        w->held = held, w->held_by = why;
        co_await with_workers(w, [&](remote_answers& answers) -> awaitable<void> {
          auto a = answers.submit(request(), "key.abc-0").value();
          error_code ended;
          CHECK(co_await all_of(*a, ended) == "012");
          CHECK_MESSAGE(ended == asio::error::eof, ended.message());
          CHECK(answers.answers_moved() + answers.prompts_moved() == 0);
        });
        CHECK(w->made == 1);
        CHECK(w->held == 0);
      });
}

TEST_CASE("remote_answers: another conflict is none that is waited for") {
  co_test([](asio::any_io_executor) -> awaitable<void> {
    auto w = std::make_shared<workers>();
    w->held = 1000, w->held_by = "stale_attempt";
    co_await with_workers(w, [&](remote_answers& answers) -> awaitable<void> {
      auto a = answers.submit(request()).value();
      error_code ended;
      CHECK(co_await all_of(*a, ended) == "");
      CHECK(ended == errc::unavailable);
    });
    CHECK(w->held == 999);
  });
}

namespace {

// By a name, where the decode worker says that of it.
void named(std::string begun, std::vector<std::vector<std::string>> attempts, std::string_view text,
           std::function<void(const workers&, const remote_answers&)> check, duration thinks = 0s) {
  co_test(
      [=](asio::any_io_executor) -> awaitable<void> {
        auto w = std::make_shared<workers>();
        w->begun = begun, w->attempts = attempts, w->thinks = thinks;
        co_await with_workers(
            w,
            [&](remote_answers& answers) -> awaitable<void> {
              auto asked = request();
              asked.max_tokens = 9;
              auto a = answers.submit(std::move(asked), "key.abc-0").value();
              error_code ended;
              CHECK(co_await all_of(*a, ended) == text);
              CHECK_MESSAGE(ended == asio::error::eof, ended.message());
              CHECK(a->report().generated_tokens == text.size());
              co_await pause(20ms);
              CHECK(w->looked == 1);
              check(*w, answers);
            },
            false, 4);
      },
      {.real = thinks == 0s});
}

const std::vector<std::string> three{line_of(0), line_of(1), line_of(2, finish_reason::stop), encode(ending{})};

}  // namespace

TEST_CASE("remote_answers: one by a name that is decoded already, from its beginning, is read there") {
  for (const char* state : {"decodes", "over"})
    named(R"({"attempt":3,"pieces":2,"continues":0,"state":")" + std::string(state) + "\"}", {three}, "012",
          [](const workers& w, const remote_answers& answers) {
            CHECK(answers.answers_followed() == 1);
            CHECK(w.made == 0);
            CHECK(w.prefills == 0);
            CHECK(w.read == std::vector<std::string>{"0"});
            CHECK(w.given_up == 1);  // at its end
          });
}

TEST_CASE("remote_answers: one by a name that nobody can follow is computed, later than any attempt at it") {
  const auto computed = [](std::uint32_t attempt, std::size_t given_up) {
    return [=](const workers& w, const remote_answers& answers) {
      CHECK(answers.answers_followed() == 0);
      REQUIRE(w.created.size() == 1);
      CHECK(w.created[0].at("id") == "key.abc-0");
      CHECK(w.created[0].at("attempt") == attempt);
      CHECK(w.created[0].at("request").at("continues") == 0);
      CHECK(w.given_up == given_up);
    };
  };
  named("", {three}, "012", computed(1, 1));
  named("{", {three}, "012", computed(1, 1));
  named(R"({"attempt":3,"pieces":2,"continues":1,"state":"decodes"})", {three}, "012", computed(4, 2));
  named(R"({"attempt":3,"pieces":2,"continues":0,"state":"failed"})", {three}, "012", computed(4, 2));
  named(R"({"attempt":3,"pieces":1,"continues":0,"state":"waits"})", {three}, "012", computed(4, 1));
  named(R"({"attempt":1023,"pieces":1,"continues":0,"state":"waits"})", {three}, "012", computed(1, 2));
  named(R"({"attempt":3,"pieces":2,"continues":0,"state":"decodes"})", {three}, "012", computed(1, 1), 5s);
}

TEST_CASE("remote_answers: one that was followed and is lost goes on as any other") {
  co_test([](asio::any_io_executor) -> awaitable<void> {
    auto w = std::make_shared<workers>();
    w->begun = R"({"attempt":3,"pieces":2,"continues":0,"state":"decodes"})";
    w->attempts = {{line_of(0), line_of(1)}};
    co_await with_workers(
        w,
        [&](remote_answers& answers) -> awaitable<void> {
          std::vector<answer_event> told;
          answers.on_change = [&](const answer_event& e) { told.push_back(e); };
          auto asked = request();
          asked.max_tokens = 9;
          auto a = answers.submit(std::move(asked), "key.abc-0").value();
          CHECK((co_await a->next())->text == "0");
          CHECK((co_await a->next())->text == "1");
          w->attempts.push_back({line_of(0, finish_reason::stop), encode(ending{})});
          std::string rest;
          while (auto g = co_await a->next()) rest += g->text;
          CHECK(rest.ends_with('0'));
          REQUIRE(w->created.size() >= 1);
          CHECK(w->created[0].at("attempt") == 4);
          CHECK(w->created[0].at("request").at("continues") == 2);
          REQUIRE(!told.empty());
          CHECK(told[0].what == answer_change::followed);
          CHECK(told[0].amount == 2);
          CHECK(told[0].to.starts_with("http://"));
        },
        false, 4);
  });
}

TEST_CASE("remote_answers: what a slow reader has not got when its worker is lost comes from the next attempt") {
  co_test([](asio::any_io_executor) -> awaitable<void> {
    auto w = std::make_shared<workers>();
    std::vector<std::string> many;
    for (std::uint32_t i = 0; i < 30; ++i) many.push_back(line_of(i));
    w->attempts = {many, {line_of(0), line_of(1, finish_reason::stop), encode(ending{})}};
    w->between = 0s;
    co_await with_workers(
        w,
        [&](remote_answers& answers) -> awaitable<void> {
          auto asked = request();
          asked.max_tokens = 100;
          auto a = answers.submit(std::move(asked)).value();
          // Another life of it ends what it had, while more lines wait than are kept for a reader.
          co_await pause(40ms);
          w->life = "q";
          co_await pause(800ms);
          std::vector<token_id> got;
          while (auto g = co_await a->next()) got.push_back(g->token);
          REQUIRE(w->created.size() >= 2);
          const auto before = w->created.back().at("request").at("continues").to_number<std::size_t>();
          REQUIRE(got.size() == before + 2);
          for (std::size_t i = 0; i < before; ++i) CHECK(got[i] == static_cast<token_id>(10 + i));
          CHECK(got[before] == 10);
          CHECK(a->report().generated_tokens == got.size());
        },
        false, 4);
  });
}

TEST_CASE("remote_answers: who goes takes the prompt and the sequence along") {
  co_test([](asio::any_io_executor) -> awaitable<void> {
    auto w = std::make_shared<workers>();
    w->lines = {line_of(0), line_of(1)};
    w->stays = true;
    w->between = 5ms;
    co_await with_workers(w, [&](remote_answers& answers) -> awaitable<void> {
      auto a = answers.submit(request()).value();
      CHECK((co_await a->next())->text == "0");
      CHECK(answers.requests() == 1);
      a.reset();
      co_await pause(20ms);
      CHECK(answers.requests() == 0);
      CHECK(w->given_up == 1);
    });
  });
}

TEST_CASE(
    "remote_answers: who watches sees where an answer is, its KV's way, and that it moved; who only goes moved "
    "nothing") {
  co_test([](asio::any_io_executor) -> awaitable<void> {
    auto w = std::make_shared<workers>();
    w->attempts = {{line_of(0), line_of(1)}, {line_of(0), line_of(1)}};
    w->stays = true;
    w->between = 5ms;
    co_await with_workers(
        w,
        [&](remote_answers& answers) -> awaitable<void> {
          std::vector<answer_event> told;
          answers.on_change = [&](const answer_event& e) { told.push_back(e); };
          CHECK(answers.underway(9).empty());
          auto r = request();
          r.max_tokens = 7;
          auto a = answers.submit(r).value(), b = answers.submit(request()).value();
          CHECK(answers.underway(9).size() == 2);
          CHECK(answers.underway(1).size() == 1);
          b.reset();
          CHECK((co_await a->next())->text == "0");
          CHECK((co_await a->next())->text == "1");
          co_await pause(10ms);
          const auto all = answers.underway(9);
          REQUIRE(all.size() == 1);
          CHECK(all[0].id == "r.0");
          CHECK(all[0].decode.starts_with("http://"));
          CHECK(all[0].prefill == all[0].decode);
          CHECK(all[0].prompt_tokens == 4);
          CHECK(all[0].told == 2);
          CHECK(all[0].most == 7);
          CHECK(all[0].attempt == 1);
          CHECK(all[0].moved == 0);
          a.reset();
          co_await pause(20ms);
          CHECK(answers.underway(9).empty());
          CHECK(answers.answers_moved() == 0);
          REQUIRE(told.size() == 1);
          CHECK(told[0].what == answer_change::sent);
          CHECK(told[0].id == "r.0");
          CHECK(told[0].amount == 128);
          CHECK(told[0].from == all[0].prefill);
          CHECK(told[0].to == all[0].decode);
        },
        false, 3);
  });
  co_test([](asio::any_io_executor) -> awaitable<void> {
    auto w = std::make_shared<workers>();
    w->attempts = {{line_of(0)}, {line_of(0), encode(ending{})}};
    co_await with_workers(
        w,
        [&](remote_answers& answers) -> awaitable<void> {
          std::vector<answer_event> told;
          answers.on_change = [&](const answer_event& e) { told.push_back(e); };
          auto a = answers.submit(request()).value();
          error_code ended;
          (void)co_await all_of(*a, ended);
          CHECK(answers.answers_moved() == 1);
          const auto moved = std::ranges::find(told, answer_change::answer_moved, &answer_event::what);
          REQUIRE(moved != told.end());
          CHECK(moved->amount == 1);
          CHECK(moved->from.starts_with("http://"));
        },
        false, 2);
  });
}

TEST_CASE("remote_answers: cancelled or destroyed at any step it leaves no request behind") {
  auto body = [](asio::any_io_executor) -> awaitable<void> {
    auto w = std::make_shared<workers>();
    w->lines = {line_of(0), line_of(1), encode(ending{})};
    co_await with_workers(
        w,
        [](remote_answers& answers) -> awaitable<void> {
          auto a = answers.submit(request());
          if (!a) co_return;
          error_code ended;
          (void)co_await all_of(**a, ended);
        },
        true, 2);
  };
  cancel_at_every_step(body, {.real = false});
  destroy_at_every_step(body, {.real = false});
}
