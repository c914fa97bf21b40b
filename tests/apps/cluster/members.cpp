// A worker that says what the test has it say.
#include "cluster/members.hpp"

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>

#include "../http_fixture.hpp"
#include "cluster/members_routes.hpp"
#include "support/co_test.hpp"

using namespace cokv;
using namespace cokv::cluster;
using namespace cokv::test;
using http::exchange;
using http::status;
using http::verb;
namespace json = boost::json;

namespace {

struct script {
  std::string life = "1";
  status says = status::ok;
  bool hangs = false;
  std::size_t asked = 0;
};

void route(http::server& s, std::shared_ptr<script> w) {
  s.route(verb::get, "/v1/worker", [w](exchange& x) -> awaitable<void> {
    ++w->asked;
    if (w->hangs) co_await pause(1s);
    if (w->says != status::ok) co_return (void) co_await x.refuse({w->says, "no", {}, "no"});
    worker_facts f;
    f.self = {.name = "w", .life = w->life, .wire = {2, 1, 8, 4, dtype::f32}};
    f.max_sequence = 100;
    co_await x.respond(status::ok, "application/json", json::serialize(to_json(f)));
  });
}

struct told {
  std::vector<worker_change> changes;
  std::vector<std::string> problems;
};

// body(members, script, told, its URL)
template <class Body>
awaitable<void> with_one(Body body, bool swept = false) {
  const auto ex = co_await asio::this_coro::executor;
  auto w = std::make_shared<script>();
  auto t = std::make_shared<told>();
  co_await with_site(
      {}, [w](http::server& s) { route(s, w); },
      [&](site& s) -> awaitable<void> {
        members all(ex, {.period = 50ms, .dead_after = 150ms}, {});
        all.on_change = [t](const worker_table::worker&, worker_change c) { t->changes.push_back(c); };
        all.on_problem = [t](const std::string&, const std::string& what, bool lasting) {
          t->problems.push_back(what + (lasting ? "!" : ""));
        };
        const auto url = "http://" + s.at.to_string();
        CHECK(!all.add(url));
        auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
          group.spawn(all.run());
          co_await pause(10ms);
          co_await body(all, *w, *t, url);
          all.close();
        });
        CHECK_MESSAGE((v || swept), v.error().message());
      },
      swept);
}

using changes = std::vector<worker_change>;

}  // namespace

TEST_CASE("members: a worker that stops answering is lost within dead_after, and is used again when it answers") {
  co_test([](asio::any_io_executor) -> awaitable<void> {
    co_await with_one([](members& all, script& w, told& t, const std::string& url) -> awaitable<void> {
      CHECK(t.changes == changes{worker_change::came});
      auto s = all.seat_for({.what = worker_role::decode, .prompt = 7, .length = 50}, {});
      REQUIRE(s);
      CHECK(s->url() == url);
      CHECK(s->self().life == "1");
      CHECK(all.table().find(s->id())->tokens == 50);
      CHECK_FALSE(all.seat_for({.what = worker_role::decode, .prompt = 7, .length = 50}, {s->id()}));
      auto& time = clock::of(co_await asio::this_coro::executor);
      const auto start = time.now();
      w.hangs = true;
      CHECK((co_await s->lost().async_receive(as_result)).error() == errc::closed);
      CHECK(time.now() - start <= 200ms);
      CHECK(time.now() - start >= 90ms);
      CHECK_FALSE(all.seat_for({.what = worker_role::decode, .prompt = 7, .length = 50}, {}));
      CHECK(!(co_await s->calls().get("/v1/worker")));  // whoever still calls there
      w.hangs = false;
      co_await pause(250ms);
      CHECK(t.changes == changes{worker_change::came, worker_change::died, worker_change::came});
      auto again = all.seat_for({.what = worker_role::decode, .prompt = 1, .length = 50}, {});
      REQUIRE(again);
      CHECK(again->lost().is_open());
      s.reset();
      CHECK(all.table().find(again->id())->tokens == 50);
    });
  });
}

TEST_CASE("members: another run of a worker is the end of what the one before had") {
  co_test([](asio::any_io_executor) -> awaitable<void> {
    co_await with_one([](members& all, script& w, told& t, const std::string&) -> awaitable<void> {
      auto s = all.seat_for({.what = worker_role::prefill, .prompt = 1, .length = 50}, {});
      w.life = "2";
      s->suspect();  // not when its turn comes
      co_await pause(10ms);
      CHECK_FALSE(s->lost().is_open());
      CHECK(t.changes == changes{worker_change::came, worker_change::replaced});
      CHECK(all.seat_for({.what = worker_role::prefill, .prompt = 1, .length = 50}, {})->self().life == "2");
    });
  });
}

TEST_CASE("members: who leaves keeps what it has, is asked no more, and is forgotten when that is over") {
  co_test([](asio::any_io_executor) -> awaitable<void> {
    co_await with_one([](members& all, script& w, told&, const std::string& url) -> awaitable<void> {
      auto s = all.seat_for({.what = worker_role::decode, .prompt = 1, .length = 50}, {});
      CHECK(all.leave(url));
      CHECK_FALSE(all.leave("http://127.0.0.1:1"));
      CHECK_FALSE(all.leave("nonsense"));
      CHECK_FALSE(all.seat_for({.what = worker_role::decode, .prompt = 1, .length = 50}, {}));
      co_await pause(100ms);
      const auto asked = w.asked;
      co_await pause(300ms);
      CHECK(w.asked == asked);
      CHECK(s->lost().is_open());
      s.reset();
      co_await pause(100ms);
      CHECK(all.table().all().empty());
      CHECK(!all.add(url));
      co_await pause(20ms);
      CHECK(all.seat_for({.what = worker_role::decode, .prompt = 1, .length = 50}, {}));
    });
  });
}

TEST_CASE(
    "members: a run that was let go does not come back by itself; another run does, and so does one that is asked "
    "back") {
  co_test([](asio::any_io_executor) -> awaitable<void> {
    co_await with_one([](members& all, script& w, told&, const std::string& url) -> awaitable<void> {
      CHECK(all.leave(url));
      CHECK(all.join(url, w.life) == errc::closed);
      co_await pause(100ms);
      CHECK(all.table().all().empty());
      CHECK(all.join(url, w.life) == errc::closed);
      CHECK(all.join("nonsense", w.life) == errc::invalid_argument);
      w.life = "2";
      CHECK(!all.join(url, w.life));
      CHECK(all.leave(url));  // before it was heard
      co_await pause(50ms);
      CHECK(all.join(url, w.life) == errc::closed);
      w.life = "3";
      CHECK(!all.join(url, w.life));
      co_await pause(50ms);
      CHECK(all.seat_for({.what = worker_role::decode, .prompt = 1, .length = 50}, {}));
      CHECK(all.leave(url));
      CHECK(!all.add(url));
      CHECK(!all.join(url, w.life));
      co_await pause(50ms);
      CHECK(all.seat_for({.what = worker_role::decode, .prompt = 1, .length = 50}, {}));
    });
  });
}

TEST_CASE("members: who joined by itself and says nothing any more is forgotten; who was named is asked for ever") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        members all(ex, {}, {});
        CHECK(!all.join("http://nobody:1", "1"));
        CHECK(!all.add("http://named:1"));
        CHECK(!all.join("http://named:1", "1"));
        auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
          group.spawn(all.run());
          co_await pause(std::chrono::minutes(9));
          CHECK(all.table().all().size() == 2);
          CHECK(!all.join("http://nobody:1", "1"));
          co_await pause(std::chrono::minutes(9));
          CHECK(all.table().all().size() == 2);
          co_await pause(std::chrono::minutes(2));
          CHECK(all.table().find("http://nobody:1") == std::nullopt);
          CHECK(all.table().find("http://named:1"));
          all.close();
        });
        CHECK(!v.error());
      },
      {.real = false, .seeds = 2});
}

TEST_CASE("members: what is no worker is told once, and whether waiting helps") {
  co_test([](asio::any_io_executor) -> awaitable<void> {
    co_await with_one([](members& all, script& w, told& t, const std::string&) -> awaitable<void> {
      CHECK(all.add("nonsense") == errc::invalid_argument);
      CHECK(all.add("ftp://127.0.0.1:1"));
      w.says = status::unauthorized;
      co_await pause(200ms);
      w.says = status::service_unavailable;
      co_await pause(200ms);
      REQUIRE(t.problems.size() == 2);
      CHECK(t.problems[0].find("key") != std::string::npos);
      CHECK(t.problems[0].ends_with('!'));
      CHECK_FALSE(t.problems[1].ends_with('!'));
      CHECK(t.changes == changes{worker_change::came, worker_change::died});
    });
  });
}

TEST_CASE("members: cancelled or destroyed at any step they leave no question behind") {
  auto body = [](asio::any_io_executor) -> awaitable<void> {
    co_await with_one(
        [](members& all, script& w, told&, const std::string&) -> awaitable<void> {
          auto s = all.seat_for({.what = worker_role::decode, .prompt = 1, .length = 50}, {});
          w.life = "2";
          co_await pause(120ms);
          w.hangs = true;
          co_await pause(400ms);
        },
        true);
  };
  cancel_at_every_step(body, {.real = false});
  destroy_at_every_step(body, {.real = false});
}

TEST_CASE("members: the routes add, tell and let go, and refuse what is none") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    co_await with_one([ex](members& all, script&, told&, const std::string& url) -> awaitable<void> {
      co_await with_site(
          {}, [&](http::server& s) { route_members(s, all); },
          [&](site& s) -> awaitable<void> {
            const auto status_of = [&](std::string request) -> awaitable<unsigned> {
              auto r = co_await s.ask(std::move(request));
              co_return r.result_int();
            };
            const std::string json_type = "Content-Type: application/json\r\n";
            const auto gone = [](const std::string& at) { return "DELETE " + at + " HTTP/1.1\r\nHost: x\r\n\r\n"; };
            auto listed = co_await s.ask(get("/v1/workers"));
            const auto one = json::parse(listed.body()).at("workers").as_array().at(0);
            CHECK(one.at("url") == json::string(url));
            CHECK(one.at("state") == "here");
            CHECK(one.at("role") == "both");
            CHECK(co_await status_of(post("/v1/workers", R"({"url":"http://127.0.0.1:1"})", json_type)) == 204);
            CHECK(co_await status_of(post("/v1/workers", "{\"url\":\"" + url + "\"}", json_type)) == 204);
            CHECK(all.table().all().size() == 2);
            for (const char* bad : {"{}", "[]", "{", R"({"url":7})", R"({"url":"x"})", R"({"url":"http://a:1/b"})",
                                    R"({"url":"http://a:1","more":1})"})
              CHECK_MESSAGE(co_await status_of(post("/v1/workers", bad, json_type)) == 400, bad);
            CHECK(co_await status_of(gone("/v1/workers")) == 400);
            CHECK(co_await status_of(gone("/v1/workers?url=http://127.0.0.1:2")) == 404);
            CHECK(co_await status_of(gone("/v1/workers?url=http://127.0.0.1:1")) == 204);
            co_await pause(200ms);
            CHECK(all.table().all().size() == 1);
          });
    });
  });
}
