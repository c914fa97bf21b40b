// A server that answers as slowly as it is told: what the runner measures of it is what was told.
#include "load/runner.hpp"

#include <boost/json/parse.hpp>

#include "../http_fixture.hpp"
#include "support/co_test.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace cokv::workload;
namespace json = boost::json;

namespace {

struct script {
  duration first = 20ms, between = 5ms;
  std::uint32_t tokens = 4;
  bool usage = true, done = true, chat = false;
  std::string instead;  // of the second token
  http::status status = http::status::ok;

  std::size_t asked = 0, at_once = 0, most_at_once = 0, cancelled = 0;
  std::vector<json::value> bodies;
};

void route(http::server& s, std::shared_ptr<script> w) {
  const auto answer = [w](http::exchange& x) -> awaitable<void> {
    const auto body = co_await x.read_all();
    if (!body) co_return;
    ++w->asked;
    w->most_at_once = std::max(w->most_at_once, ++w->at_once);
    bool whole = false;
    const std::shared_ptr<void> at_end(nullptr, [w, &whole](void*) {
      --w->at_once;
      w->cancelled += !whole;
    });
    w->bodies.push_back(json::parse(*body));
    if (w->status != http::status::ok) {
      whole = true;
      co_return (void) co_await x.refuse({w->status, "no", {}, "no"});
    }
    x.start(http::status::ok, "text/event-stream");
    if (co_await x.write(std::string_view())) co_return;
    for (std::uint32_t i = 0; i < w->tokens; ++i) {
      co_await pause(i == 0 ? w->first : w->between);
      std::string event = w->chat ? R"({"choices":[{"delta":{"content":"x"}}]})" : R"({"choices":[{"text":"x"}]})";
      if (i == 1 && !w->instead.empty()) event = w->instead;
      if (co_await x.write("data: " + event + "\n\n")) co_return;
    }
    if (w->usage)
      (void)co_await x.write(R"(data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":)" +
                             std::to_string(w->tokens) + "}}\n\n");
    if (w->done) (void)co_await x.write("data: [DONE]\n\n");
    whole = true;
    co_await x.finish();
  };
  s.route(http::verb::post, "/v1/completions", answer);
  s.route(http::verb::post, "/v1/chat/completions", answer);
}

template <class Body>
awaitable<void> with_server(std::shared_ptr<script> w, Body body) {
  const auto ex = co_await asio::this_coro::executor;
  co_await with_site(
      {}, [w](http::server& s) { route(s, w); },
      [&](site& s) -> awaitable<void> {
        http::client c(ex, {s.at}, {.max_connections = 100, .max_idle = 100});
        co_await body(c);
      });
}

template <class Body>
void once(std::shared_ptr<script> w, Body body) {
  co_test([=](asio::any_io_executor) { return with_server(w, body); }, {.real = false, .seeds = 5});
}

std::vector<load_item> each(duration gap, std::size_t n) {
  std::vector<load_item> out;
  for (std::size_t i = 0; i < n; ++i)
    out.push_back({std::chrono::duration_cast<std::chrono::microseconds>(gap * i), 5, 4});
  return out;
}

}  // namespace

TEST_CASE("load: what is measured is what the server took") {
  for (bool chat : {false, true}) {
    auto w = std::make_shared<script>();
    w->chat = chat;
    once(w, [w, chat](http::client& c) -> awaitable<void> {
      const auto items = each(100ms, 3);
      const prompt_maker make({.model = "m", .chat = chat});
      std::vector<request_record> all;
      co_await run_load(c, items, make, {}, all);
      REQUIRE(all.size() == 3);
      for (auto& r : all) {
        CHECK(r.answered());
        CHECK(r.ttft_ms >= 20);
        CHECK(r.ttft_ms < 25);
        CHECK(r.total_ms >= 35);
        CHECK(r.total_ms < 42);
        CHECK(r.tpot_ms().value() == doctest::Approx(5).epsilon(0.3));
        CHECK(r.gaps_ms.size() == 3);
        CHECK(r.prompt_tokens == 7);
        CHECK(r.output_tokens == 4);
        CHECK(r.late_ms < 1);
      }
    });
  }
}

TEST_CASE("load: requests are sent at their times, whatever became of those before them, and no more than may be") {
  auto w = std::make_shared<script>();
  w->first = 1s;
  once(w, [w](http::client& c) -> awaitable<void> {
    w->most_at_once = 0;
    const auto items = each(10ms, 30);
    const prompt_maker make({.model = "m"});
    std::vector<request_record> all;
    co_await run_load(c, items, make, {.max_in_flight = 20}, all);
    CHECK(w->most_at_once == 20);
    for (std::size_t i = 0; i < all.size(); ++i) {
      CHECK(all[i].sent == (i < 20));
      CHECK(all[i].answered() == (i < 20));
      CHECK(all[i].late_ms < 1);
    }
    CHECK(all[25].error == "not sent: too many in flight");
  });
}

TEST_CASE("load: what is no whole answer is told by its kind") {
  struct one {
    script how;
    std::string error;
    duration timeout = 60s;
  };
  std::vector<one> all;
  all.push_back({{.status = http::status::service_unavailable}, "status 503 (no)"});
  all.push_back({{.done = false}, "cut: without [DONE]"});
  all.push_back({{.instead = R"({"error":{"code":"unavailable","message":"gone"}})"}, "in its stream: unavailable"});
  all.push_back({{.instead = "{"}, make_error_code(errc::protocol).message()});
  all.push_back({{.first = 10s}, make_error_code(errc::deadline).message(), 2s});
  for (auto& kind : all) {
    auto w = std::make_shared<script>(kind.how);
    once(w, [w, kind](http::client& c) -> awaitable<void> {
      const auto items = each(1ms, 2);
      const prompt_maker make({.model = "m"});
      std::vector<request_record> got;
      co_await run_load(c, items, make, {.timeout = kind.timeout}, got);
      for (auto& r : got) {
        CHECK(r.sent);
        CHECK_FALSE(r.answered());
        CHECK(r.error == kind.error);
      }
    });
  }
}

TEST_CASE("load: a cancelled one sends nothing more and keeps what was measured") {
  auto w = std::make_shared<script>();
  once(w, [w](http::client& c) -> awaitable<void> {
    const auto items = each(20ms, 100);
    const prompt_maker make({.model = "m"});
    std::vector<request_record> all;
    (void)co_await with_deadline(run_load(c, items, make, {}, all), 205ms);
    std::size_t answered = 0, interrupted = 0, sent = 0;
    for (auto& r : all) answered += r.answered(), interrupted += r.sent && r.stopped, sent += r.sent;
    CHECK(all.size() == 100);
    CHECK(sent == 11);
    CHECK(answered + interrupted == 11);
    CHECK(answered >= 8);
    CHECK(interrupted >= 1);
    for (std::size_t i = 11; i < all.size(); ++i) CHECK((all[i].stopped && !all[i].sent));
  });
}

TEST_CASE("load: prompts are as long as asked for, begin alike where they share, and are the same for a seed") {
  const load_item item{0us, 40, 9};
  const prompt_maker ids({.model = "m", .vocabulary = 100, .shared = 16, .groups = 2, .ignore_eos = true, .seed = 5});
  const auto tokens = [&](const prompt_maker& of, std::size_t n) {
    return json::parse(of.body(item, n)).at("prompt").as_array();
  };
  const auto a = tokens(ids, 0), b = tokens(ids, 2), c = tokens(ids, 1);
  CHECK(a.size() == 40);
  for (auto& t : a) CHECK((t.to_number<int>() >= 3 && t.to_number<int>() < 100));
  CHECK(std::equal(a.begin(), a.begin() + 16, b.begin()));
  CHECK_FALSE(std::equal(a.begin() + 16, a.end(), b.begin() + 16));
  CHECK_FALSE(std::equal(a.begin(), a.begin() + 16, c.begin()));
  CHECK(tokens(ids, 0) == a);
  const auto body = json::parse(ids.body(item, 0));
  CHECK(body.at("ignore_eos") == true);
  CHECK(body.at("max_tokens") == 9);
  CHECK(body.at("stream_options").at("include_usage") == true);
  CHECK_FALSE(body.as_object().contains("seed"));
  const prompt_maker text({.model = "m", .chat = true, .temperature = 0.5});
  const auto chat = json::parse(text.body(item, 0));
  const auto& words = chat.at("messages").at(0).at("content").as_string();
  CHECK(std::ranges::count(words, ' ') == 39);
  CHECK(chat.as_object().contains("seed"));
  CHECK(text.target() == "/v1/chat/completions");
}
