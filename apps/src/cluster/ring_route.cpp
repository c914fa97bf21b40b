#include "cluster/ring_route.hpp"

#include "http/json.hpp"

namespace cokv::cluster {
namespace {

awaitable<void> stand(http::exchange& x, answer_copies& copies) {
  auto body = co_await x.read_all();
  if (!body) co_return;
  const auto v = http::parse_json(*body);
  if (!v) co_return (void) co_await x.refuse(v.error());
  auto place = read_ring_place(*v);
  if (!place) co_return (void) co_await x.refuse(place.error());
  if (!copies.stand(std::move(*place)))
    co_return (void) co_await x.refuse({http::status::conflict, "a later ring is known here", "epoch", "stale_epoch"});
  co_await x.respond(http::status::no_content, "", "");
}

}  // namespace

void route_ring(http::server& s, answer_copies& copies) {
  s.route(http::verb::put, "/v1/ring", [&copies](http::exchange& x) { return stand(x, copies); },
          {.body_bytes = 64 << 10,
           .any_of = static_cast<std::uint8_t>(http::right::admin),
           .body_types = {"application/json"}});
}

}  // namespace cokv::cluster
