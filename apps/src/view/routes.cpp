#include "view/routes.hpp"

#include <boost/json/serialize.hpp>

#include "cokv/runtime/deadline.hpp"
#include "view/web_files.hpp"

namespace cokv::view {
namespace {

namespace json = boost::json;
using http::exchange;
using http::status;
using http::verb;
using namespace std::chrono_literals;

constexpr duration period = 1s, least = 100ms;

// Nothing but its own files and its own server; nobody may frame it.
constexpr const char* policy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'";

struct web_route {
  const char* path;
  const char* file;
  const char* type;
};
constexpr web_route web_routes[] = {{"/", "index.html", "text/html; charset=utf-8"},
                                    {"/page.css", "page.css", "text/css; charset=utf-8"},
                                    {"/page.js", "page.js", "text/javascript; charset=utf-8"},
                                    {"/view.js", "view.js", "text/javascript; charset=utf-8"}};

struct source {
  std::function<json::object()> describe;
  journal& events;
  std::string model;

  std::string text(wall_time now) const {
    auto out = describe();
    out["model"] = json::string(model);
    out["at_ms"] = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count();
    return json::serialize(out);
  }
};

awaitable<void> follow(exchange& x, std::shared_ptr<const source> from) {
  if (from->events.followers() >= most_watchers)
    co_return (void) co_await x.refuse({status::service_unavailable, "too many are watching", {}, "busy"});
  auto& time = clock::of(co_await asio::this_coro::executor);
  journal::follower self(from->events);
  x.set(http::field::cache_control, "no-store");
  x.start(status::ok, "text/event-stream");
  while (!x.last_answer()) {
    const auto told = from->events.newest();
    const auto until = time.now() + period;
    if (co_await x.write("data: " + from->text(time.wall_now()) + "\n\n")) co_return;
    if (x.request().method == verb::head) break;
    co_await time.async_wait_for(least, asio::deferred);
    while (from->events.newest() == told && time.now() < until)
      (void)co_await with_deadline(self.more(), until - time.now());
  }
  co_await x.finish();
}

}  // namespace

void route_view(http::server& s, std::function<json::object()> describe, journal& events, std::string model) {
  for (const auto& w : web_routes)
    s.route(verb::get, w.path,
            [w](exchange& x) -> awaitable<void> {
              x.set(http::field::cache_control, "no-cache");
              x.set("Content-Security-Policy", policy);
              x.set("X-Content-Type-Options", "nosniff");
              x.set("Referrer-Policy", "no-referrer");
              co_await x.respond(status::ok, w.type, web_file(w.file));
            },
            {.open = true});
  constexpr auto admin = static_cast<std::uint8_t>(http::right::admin);
  const auto from = std::make_shared<const source>(source{std::move(describe), events, std::move(model)});
  s.route(verb::get, "/v1/status",
          [from](exchange& x) -> awaitable<void> {
            const auto text = from->text(clock::of(co_await asio::this_coro::executor).wall_now());
            x.set(http::field::cache_control, "no-store");
            co_await x.respond(status::ok, "application/json", text);
          },
          {.any_of = admin});
  s.route(verb::get, "/v1/status/stream", [from](exchange& x) { return follow(x, from); }, {.any_of = admin});
}

}  // namespace cokv::view
