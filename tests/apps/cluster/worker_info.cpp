#include "cluster/worker_info.hpp"

#include <doctest/doctest.h>

#include <boost/json/serialize.hpp>

#include "http/json.hpp"

using namespace cokv;
using namespace cokv::cluster;
namespace json = boost::json;

namespace {

worker_facts one() {
  worker_facts w;
  w.role = worker_role::decode;
  w.self = {.name = "decode-0", .life = "9c", .wire = {2, 1, 8, 16, dtype::f32}, .fingerprint = sha256().finish()};
  w.epoch = 0xffff'ffff'ffff'fff0u;
  w.links = {"tcp://127.0.0.1:4711"};
  w.max_sequence = 4096;
  w.blocks = 512, w.blocks_free = 500;
  w.running = 3, w.waiting = 1;
  w.prompt_tokens_left = 9000;
  w.step = {0.5, 0.25, 0};
  w.broken = true;
  return w;
}

json::value text_of(const worker_facts& w) { return *http::parse_json(json::serialize(to_json(w))); }

template <class Change>
std::string refused(Change change) {
  auto v = text_of(one());
  change(v.as_object());
  const auto r = read_worker(v);
  return r ? "taken" : r.error().parameter;
}

}  // namespace

TEST_CASE("worker_info: what is read is what was written") {
  const auto w = one();
  const auto r = read_worker(text_of(w));
  REQUIRE(r.has_value());
  CHECK(r->role == w.role);
  CHECK(r->self.name == w.self.name);
  CHECK(r->self.life == w.self.life);
  CHECK(r->self.wire == w.self.wire);
  CHECK(r->self.fingerprint == w.self.fingerprint);
  CHECK(r->epoch == w.epoch);
  CHECK(r->links == w.links);
  CHECK(r->max_sequence == w.max_sequence);
  CHECK(r->blocks == w.blocks);
  CHECK(r->blocks_free == w.blocks_free);
  CHECK(r->running == w.running);
  CHECK(r->waiting == w.waiting);
  CHECK(r->prompt_tokens_left == w.prompt_tokens_left);
  CHECK(r->step.a == w.step.a);
  CHECK(r->step.b == w.step.b);
  CHECK(r->broken);
  for (auto role : {worker_role::prefill, worker_role::decode, worker_role::both})
    CHECK(parse_role(to_string(role)) == role);
}

TEST_CASE("worker_info: what it did so far is told where it is, and read as strictly") {
  auto w = one();
  CHECK_FALSE(read_worker(text_of(w))->doing.has_value());
  w.doing = worker_activity{.at_us = 1,
                            .computing_us = 2,
                            .steps = 3,
                            .prompt_tokens = 4,
                            .cached_tokens = 5,
                            .generated_tokens = 6,
                            .sent_bytes = 7,
                            .kept_copies = 8,
                            .kept_bytes = 9};
  w.doing->tiers = {{"host", 10, 11, 12, false}, {"remote", 0, 13, 14, true}};
  const auto r = read_worker(text_of(w));
  REQUIRE(r.has_value());
  CHECK(r->doing == w.doing);
  auto v = text_of(w);
  v.as_object()["doing"].as_object()["tiers"] = json::array(9, v.at("doing").at("tiers").as_array()[0]);
  CHECK(read_worker(v).error().parameter == "doing.tiers");
  v = text_of(w);
  v.as_object()["doing"].as_object()["steps"] = -1;
  CHECK(read_worker(v).error().parameter == "doing.steps");
  v = text_of(w);
  v.as_object()["doing"].as_object()["tiers"].as_array()[0].as_object()["name"] = "<script>";
  CHECK(read_worker(v).error().parameter == "doing.tiers");
}

TEST_CASE("worker_info: what no worker says is refused by name") {
  CHECK(refused([](auto&) {}) == "taken");
  CHECK(refused([](auto& o) { o["role"] = "router"; }) == "worker.role");
  CHECK(refused([](auto& o) { o.erase("self"); }) == "worker.self");
  CHECK(refused([](auto& o) { o["self"].as_object()["life"] = ""; }) == "from.life");
  CHECK(refused([](auto& o) { o["epoch"] = -1; }) == "worker.epoch");
  CHECK(refused([](auto& o) { o["max_sequence"] = 0; }) == "worker.max_sequence");
  CHECK(refused([](auto& o) { o["blocks_free"] = 513; }) == "worker.blocks_free");
  CHECK(refused([](auto& o) { o["links"] = json::array(17, "x"); }) == "worker.links");
  CHECK(refused([](auto& o) { o["step"].as_object()["b"] = -1; }) == "step.a");
  CHECK(refused([](auto& o) { o["step"] = 1; }) == "step");
  CHECK(refused([](auto& o) { o["more"] = 1; }) == "worker.more");
}
