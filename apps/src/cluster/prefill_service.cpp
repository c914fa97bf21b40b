#include "cluster/prefill_service.hpp"

#include <boost/json/serialize.hpp>

#include "cluster/error_name.hpp"
#include "cluster/request_json.hpp"
#include "cokv/runtime/error.hpp"
#include "http/json.hpp"

namespace cokv::cluster {
namespace {

namespace json = boost::json;
using http::status;

struct order {
  std::string id;
  std::uint32_t attempt = 0;
  generation_request request;
  cluster::ticket ticket;
};

parsed<order> read_order(std::string_view text, const request_limits& limits) {
  auto v = http::parse_json(text);
  if (!v) return v.error();
  fields f(*v, "");
  order o;
  o.id = f.id("id");
  o.attempt = f.u32("attempt", most_attempts);
  o.request = f.take<generation_request>("request", [&](const json::value& r) { return read_request(r, limits); });
  o.ticket = f.take<ticket>("ticket", [&](const json::value& t) { return read_ticket(t, limits.tokens); });
  if (auto wrong = f.end()) return *wrong;
  if (o.ticket.id != o.id || o.ticket.attempt != o.attempt) return wrong("ticket", "is of another request");
  return o;
}

http::problem refusal(error_code why) {
  const std::string reason(name_of(why));
  if (why == errc::namespace_mismatch)
    return {status::unprocessable_entity, "KV of another model, element type or layout", "ticket", "shape_mismatch"};
  if (why == errc::invalid_argument || why == errc::too_large)
    return {status::bad_request, "the request is none that is taken here: " + why.message(), "request", reason};
  if (why == errc::queue_full || why == errc::closed)
    return {status::service_unavailable, "it can't be taken now: " + why.message(), {}, reason};
  return {status::bad_gateway, "its KV did not arrive: " + why.message(), {}, reason};
}

}  // namespace

void prefill_service::route(http::server& s) {
  s.route(http::verb::post, "/v1/prefills", [this](http::exchange& x) { return compute(x); },
          {.body_bytes = 16 << 20,
           .any_of = static_cast<std::uint8_t>(http::right::admin),
           .body_types = {"application/json"}});
}

awaitable<void> prefill_service::compute(http::exchange& x) {
  auto body = co_await x.read_all();
  if (!body) co_return;
  auto asked = read_order(*body, {.tokens = engine_.max_sequence()});
  if (!asked) co_return (void) co_await x.refuse(asked.error());
  auto done = co_await depart(engine_, links_, std::move(asked->request), std::move(asked->ticket), how_);
  if (!done) co_return (void) co_await x.refuse(refusal(done.error()));
  ++prompts_;
  sent_bytes_ += done->sent_bytes;
  json::object told{{"tokens", done->tokens},
                    {"computed", done->computed},
                    {"cached", done->cached},
                    {"sent_bytes", done->sent_bytes}};
  if (done->over) told["over"] = true;
  co_await x.respond(status::ok, "application/json", json::serialize(told));
}

}  // namespace cokv::cluster
