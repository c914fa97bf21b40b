#include "cluster/ticket.hpp"

#include <doctest/doctest.h>

#include <boost/json/serialize.hpp>

#include "http/json.hpp"

using namespace cokv;
using namespace cokv::cluster;
namespace json = boost::json;

namespace {

ticket one() {
  ticket t;
  t.id = "req-1.0";
  t.attempt = 3;
  t.parts = {{.life = "5f2a",
              .links = {"shm:///run/user/0/kv", "tcp://127.0.0.1:4711"},
              .legs = {{0xffff'ffff'ffff'ffffu, 1, 2, {3, 0x8000'0000'0000'0000u, 5}}, {6, 7, 8, {9, 10, 11}}}},
             {.life = "5f2b", .links = {}, .legs = {{1, 2, 3, {4, 5, 6}}}}};
  t.topology = cokv::topology(2, 1, 4);
  t.wire = {.layers = 12, .kv_heads = 4, .head_dim = 64, .block_tokens = 16, .type = dtype::bf16};
  t.fingerprint = sha256().finish();
  t.tokens = 50;
  t.first = 32;
  t.blocks = {{1, 2}, {3, 4}, {4'294'967'295u, 4'294'967'295u}, {0, 0}};
  t.lease = std::chrono::milliseconds(5000);
  return t;
}

json::value text_of(const ticket& t) { return *http::parse_json(json::serialize(to_json(t))); }

// Of the first worker's part.
template <class Change>
auto of_part(Change change) {
  return [change](json::object& o) { change(o["parts"].as_array()[0].as_object()); };
}

template <class Change>
std::string refused(Change change, std::uint32_t most = most_tokens) {
  auto v = text_of(one());
  change(v.as_object());
  const auto r = read_ticket(v, most);
  return r ? "taken" : r.error().parameter;
}

}  // namespace

TEST_CASE("ticket: what is read is what was written") {
  const auto t = one();
  const auto r = read_ticket(text_of(t));
  REQUIRE(r.has_value());
  CHECK(r->id == t.id);
  CHECK(r->attempt == t.attempt);
  REQUIRE(r->parts.size() == 2);
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(r->parts[i].life == t.parts[i].life);
    CHECK(r->parts[i].links == t.parts[i].links);
    CHECK(r->parts[i].legs == t.parts[i].legs);
  }
  CHECK(r->topology == t.topology);
  CHECK(r->wire == t.wire);
  CHECK(r->fingerprint == t.fingerprint);
  CHECK(r->tokens == t.tokens);
  CHECK(r->first == t.first);
  CHECK(r->blocks == t.blocks);
  CHECK(r->lease == t.lease);
  CHECK(r->wire.shape() == geometry::attention(12, 4, 64, dtype::bf16, 16));

  auto all = one();  // the receiver has all of it
  all.first = all.tokens;
  all.parts.resize(1);
  all.parts[0].legs.clear();
  CHECK(read_ticket(text_of(all)).has_value());
}

TEST_CASE("offer: what is read is what was written") {
  const offer o{.name = "prefill-0",
                .life = "77",
                .topology = cokv::topology(1, 2),
                .wire = one().wire,
                .fingerprint = one().fingerprint};
  auto v = *http::parse_json(json::serialize(to_json(o)));
  const auto r = read_offer(v);
  REQUIRE(r.has_value());
  CHECK(r->name == o.name);
  CHECK(r->life == o.life);
  CHECK(r->topology == o.topology);
  CHECK(r->wire == o.wire);
  CHECK(r->fingerprint == o.fingerprint);
  for (const char* member : {"name", "life", "topology", "wire", "fingerprint"}) {
    auto less = v.as_object();
    less.erase(member);
    CHECK(read_offer(less).error().parameter == "from." + std::string(member));
  }
}

TEST_CASE("ticket: numbers that don't fit each other, and what no ticket has, are refused by name") {
  CHECK(refused([](auto&) {}) == "taken");
  CHECK(refused(of_part([](auto& o) { o.erase("legs"); })) == "parts.legs");
  CHECK(refused([](auto& o) { o["parts"].as_array().pop_back(); }) == "ticket.parts");
  CHECK(refused([](auto& o) { o["parts"].as_array().push_back(o["parts"].as_array()[0]); }) == "ticket.parts");
  CHECK(refused([](auto& o) { o["topology"] = "pp1xtp1"; }) == "ticket.parts");
  CHECK(refused([](auto& o) { o["more"] = 1; }) == "ticket.more");
  CHECK(refused([](auto& o) { o["id"] = std::string(129, 'x'); }) == "ticket.id");
  CHECK(refused([](auto& o) { o["id"] = ""; }) == "ticket.id");
  CHECK(refused(of_part([](auto& o) { o["life"] = "a/b"; })) == "parts.life");
  CHECK(refused([](auto& o) { o["attempt"] = 1025; }) == "ticket.attempt");
  CHECK(refused([](auto& o) { o["tokens"] = 0; }) == "ticket.tokens");
  CHECK(refused([](auto& o) { o["tokens"] = 65; }) == "ticket.blocks");
  CHECK(refused([](auto&) {}, 49) == "ticket.tokens");
  CHECK(refused([](auto& o) { o["first"] = 51; }) == "ticket.first");
  CHECK(refused([](auto& o) { o["first"] = 33; }) == "ticket.first");
  CHECK(refused([](auto& o) { o["first"] = 50; }) == "ticket.parts");  // nothing is wanted, and legs are there
  CHECK(refused(of_part([](auto& o) { o["legs"] = ""; })) == "ticket.parts");
  CHECK(refused(of_part([](auto& o) { o["legs"] = "0"; })) == "parts.legs");
  CHECK(refused(of_part([](auto& o) { o["legs"] = "00"; })) == "parts.legs");
  CHECK(refused(of_part([](auto& o) { o["legs"] = std::string(88, 'G'); })) == "parts.legs");
  CHECK(refused(of_part([](auto& o) { o["legs"] = std::string(88 * 4097, '0'); })) == "parts.legs");
  CHECK(refused([](auto& o) { o["blocks"].as_array().pop_back(); }) == "ticket.blocks");
  CHECK(refused([](auto& o) { o["blocks"].as_array()[0] = json::array{1}; }) == "ticket.blocks");
  CHECK(refused([](auto& o) { o["blocks"].as_array()[0] = json::array{1, 4294967296}; }) == "ticket.blocks");
  CHECK(refused(of_part([](auto& o) { o["links"] = json::array(17, "tcp://a:1"); })) == "parts.links");
  CHECK(refused(of_part([](auto& o) { o["links"] = json::array{std::string(1025, 'x')}; })) == "parts.links");
  CHECK(refused([](auto& o) { o["topology"] = "pp0xtp1"; }) == "ticket.topology");
  CHECK(refused([](auto& o) { o["fingerprint"] = "abc"; }) == "ticket.fingerprint");
  CHECK(refused([](auto& o) { o["lease_ms"] = 0; }) == "ticket.lease_ms");
  CHECK(refused([](auto& o) { o["wire"].as_object()["dtype"] = "f64"; }) == "wire.dtype");
  CHECK(refused([](auto& o) { o["wire"].as_object()["block_tokens"] = 0; }) == "wire.block_tokens");
  CHECK(refused([](auto& o) { o["wire"].as_object()["layers"] = 4097; }) == "wire.layers");
  CHECK(refused([](auto& o) { o["wire"] = json::array(); }) == "wire");
}
