#include "cluster/epoch_route.hpp"

#include <boost/json/serialize.hpp>

#include "http/json.hpp"

namespace cokv::cluster {
namespace {

using http::exchange;
using http::status;
using answer = epoch_gate::answer;

std::optional<http::problem> refusal(answer a, const told_promise& p) {
  if (a == answer::taken) return {};
  const auto at = "epoch " + std::to_string(p.epoch);
  if (a == answer::stale)
    return http::problem{status::conflict, "a later router is promised: " + at, "epoch", "stale_epoch"};
  return http::problem{status::conflict, "another router is heard of, with " + at, "epoch", "held_epoch"};
}

awaitable<void> promise(exchange& x, epoch_gate& gate) {
  auto body = co_await x.read_all();
  if (!body) co_return;
  const auto v = http::parse_json(*body);
  if (!v) co_return (void) co_await x.refuse(v.error());
  const auto claim = read_claim(*v);
  if (!claim) co_return (void) co_await x.refuse(claim.error());
  const auto t = clock::of(co_await asio::this_coro::executor).now();
  const auto a = gate.ask(*claim, t);
  const auto told = gate.promised(t);
  if (auto no = refusal(a, told)) {
    x.set(claim_field, std::to_string(told.epoch));
    co_return (void) co_await x.refuse(*no);
  }
  co_await x.respond(status::ok, "application/json", boost::json::serialize(to_json(told)));
}

}  // namespace

void route_epoch(http::server& s, epoch_gate& gate) {
  constexpr auto admin = static_cast<std::uint8_t>(http::right::admin);
  s.route(http::verb::get, "/v1/epoch",
          [&gate](exchange& x) -> awaitable<void> {
            const auto told = gate.promised(clock::of(co_await asio::this_coro::executor).now());
            co_await x.respond(status::ok, "application/json", boost::json::serialize(to_json(told)));
          },
          {.any_of = admin});
  s.route(http::verb::put, "/v1/epoch", [&gate](exchange& x) { return promise(x, gate); },
          {.body_bytes = 4096, .any_of = admin, .body_types = {"application/json"}});
  s.admit([&gate](const exchange& x, time_point t) -> std::optional<http::problem> {
    const auto& fields = x.request().fields;
    const auto found = fields.find(claim_field);
    if (found == fields.end() || !x.who().may(http::right::admin)) return {};
    const auto claim = parse_claim({found->value().data(), found->value().size()});
    if (!claim) return http::problem{status::bad_request, "Cokv-Epoch: is none", claim_field, "invalid_value"};
    const auto a = gate.ask(*claim, t);
    return refusal(a, gate.promised(t));
  });
}

}  // namespace cokv::cluster
