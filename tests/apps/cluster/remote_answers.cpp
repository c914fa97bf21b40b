// Two workers that say what the test has them say.
#include "cluster/remote_answers.hpp"

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
  std::vector<std::string> lines;  // of the decode worker
  status room = status::created, prompt = status::ok;
  duration between = 1ms;
  bool stays = false;  // the last line is not the end of the connection
  std::size_t made = 0, given_up = 0, prefills = 0, prefills_cut = 0;
};

void route(http::server& s, std::shared_ptr<workers> w) {
  s.route(verb::get, "/v1/worker", [](exchange& x) -> awaitable<void> {
    worker_facts f;
    f.self = {.name = "prefill-0", .life = "p", .wire = {2, 1, 8, 4, dtype::f32}};
    f.max_sequence = 100;
    co_await x.respond(status::ok, "application/json", json::serialize(to_json(f)));
  });
  s.route(verb::post, "/v1/sequences", [w](exchange& x) -> awaitable<void> {
    auto body = co_await x.read_all();
    if (!body) co_return;
    ++w->made;
    if (w->room != status::created) co_return (void) co_await x.refuse({w->room, "no", {}, "no"});
    ticket t{.id = "r.0", .attempt = 1, .life = "d", .wire = {2, 1, 8, 4, dtype::f32}};
    t.tokens = t.first = 4;
    t.blocks = {{0, 0}};
    t.lease = 1s;
    co_await x.respond(status::created, "application/json", json::serialize(to_json(t)));
  });
  s.route(verb::get, "/v1/sequences/{id}/pieces",
          [w](exchange& x) -> awaitable<void> {
            x.start(status::ok, "application/x-ndjson");
            if (co_await x.write(std::string_view())) co_return;
            for (const auto& line : w->lines) {
              co_await pause(w->between);
              if (co_await x.write(line + '\n')) co_return;
            }
            if (w->stays) co_await pause(3600s);
            co_await x.finish();
          },
          {.query = {"from"}});
  s.route(verb::delete_, "/v1/sequences/{id}", [w](exchange& x) -> awaitable<void> {
    ++w->given_up;
    co_await x.respond(status::no_content, "", "");
  });
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
awaitable<void> with_workers(std::shared_ptr<workers> w, Body body, bool swept = false) {
  auto ex = co_await asio::this_coro::executor;
  co_await with_site(
      {}, [w](http::server& s) { route(s, w); },
      [&](site& s) -> awaitable<void> {
        http::client both(ex, {s.at});
        remote_answers answers(ex, both, both, {.prefix = "r"});
        auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
          group.spawn(answers.run());
          co_await pause(0s);
          co_await body(answers);
          co_await pause(20ms);
          answers.close();
        });
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
        true);
  };
  cancel_at_every_step(body, {.real = false});
  destroy_at_every_step(body, {.real = false});
}
