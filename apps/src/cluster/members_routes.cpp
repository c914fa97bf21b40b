#include "cluster/members_routes.hpp"

#include <boost/json/serialize.hpp>

#include "cokv/runtime/error.hpp"
#include "http/json.hpp"

namespace cokv::cluster {
namespace {

namespace json = boost::json;
using http::exchange;
using http::status;
using http::verb;

constexpr std::size_t most_workers = 1024;

awaitable<void> add(exchange& x, members& workers) {
  auto body = co_await x.read_all();
  if (!body) co_return;
  auto v = http::parse_json(*body);
  if (!v) co_return (void) co_await x.refuse(v.error());
  fields f(*v, "");
  const auto url = f.text("url", most_url_bytes);
  const auto life = f.has("life") ? f.id("life") : std::string();
  if (auto wrong = f.end()) co_return (void) co_await x.refuse(*wrong);
  if (!workers.table().find(url) && workers.table().all().size() >= most_workers)
    co_return (void) co_await x.refuse({status::service_unavailable, "no more workers are taken", {}, "queue_full"});
  const auto ec = life.empty() ? workers.add(url) : workers.join(url, life);
  if (ec == errc::closed)
    co_return (void) co_await x.refuse({status::conflict, "this run of it was told to leave", "life", "let_go"});
  if (ec)
    co_return (void) co_await x.refuse(
        {status::bad_request, "url: takes http://HOST:PORT or https://HOST:PORT", "url", "invalid_value"});
  co_await x.respond(status::no_content, "", "");
}

awaitable<void> leave(exchange& x, members& workers) {
  const auto url = x.request().query_value("url");
  if (!url) co_return (void) co_await x.refuse({status::bad_request, "url: which worker?", "url", "invalid_value"});
  if (!workers.leave(std::string(*url)))
    co_return (void) co_await x.refuse({status::not_found, "no such worker is here", "url", "not_found"});
  co_await x.respond(status::no_content, "", "");
}

}  // namespace

json::object to_json(const worker_table::worker& w) {
  const auto role = to_string(w.facts.role), state = to_string(w.state);
  json::object out{{"url", json::string(w.url)},
                   {"state", json::string(state.data(), state.size())},
                   {"leaving", w.leaving},
                   {"requests", w.requests},
                   {"given", w.given}};
  if (w.state == presence::unheard) return out;
  out["role"] = json::string(role.data(), role.size());
  out["name"] = json::string(w.facts.self.name);
  out["life"] = json::string(w.facts.self.life);
  out["blocks"] = w.facts.blocks;
  out["blocks_free"] = w.facts.blocks_free;
  out["running"] = w.facts.running;
  out["waiting"] = w.facts.waiting;
  if (!w.wrong.empty()) out["wrong"] = json::string(w.wrong);
  return out;
}

void route_members(http::server& s, members& workers, bool may_change) {
  constexpr auto admin = static_cast<std::uint8_t>(http::right::admin);
  s.route(verb::get, "/v1/workers",
          [&workers](exchange& x) -> awaitable<void> {
            json::array all;
            for (const auto& [id, w] : workers.table().all()) all.push_back(to_json(w));
            co_await x.respond(status::ok, "application/json",
                               json::serialize(json::object{{"workers", std::move(all)}}));
          },
          {.any_of = admin});
  if (!may_change) return;
  s.route(verb::post, "/v1/workers", [&workers](exchange& x) { return add(x, workers); },
          {.body_bytes = 4096, .any_of = admin, .body_types = {"application/json"}});
  s.route(verb::delete_, "/v1/workers", [&workers](exchange& x) { return leave(x, workers); },
          {.any_of = admin, .query = {"url"}});
}

}  // namespace cokv::cluster
