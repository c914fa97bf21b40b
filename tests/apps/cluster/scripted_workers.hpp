// Two workers that say what the test has them say, and a router's answers from them.
#pragma once

#include "cluster/remote_answers.hpp"

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>

#include "../http_fixture.hpp"
#include "cluster/piece_json.hpp"
#include "cluster/worker_info.hpp"
#include "support/co_test.hpp"

namespace cokv::test::scripted {

using namespace cluster;
using http::exchange;
using http::status;
using http::verb;
namespace json = boost::json;

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

inline void route(http::server& s, std::shared_ptr<workers> w) {
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
    ticket t{
        .id = "r.0", .attempt = 1, .parts = {{.life = "p", .links = {}, .legs = {}}}, .wire = {2, 1, 8, 4, dtype::f32}};
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

inline std::string line_of(std::uint32_t i, finish_reason reason = finish_reason::none) {
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

inline generation_request request() {
  generation_request r;
  r.prompt = {1, 2, 3, 4};
  return r;
}

// "012" and how it ended.
inline awaitable<std::string> all_of(openai::answer& a, error_code& why) {
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

}  // namespace cokv::test::scripted
