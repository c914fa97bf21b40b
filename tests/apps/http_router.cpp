#include "http/router.hpp"

using namespace cokv::http;

namespace {

router<int> kv_routes() {
  router<int> r;
  r.add(verb::get, "/v1/kv/{namespace}/{key}", 1);
  r.add(verb::put, "/v1/kv/{namespace}/{key}", 2);
  r.add(verb::post, "/v1/kv/{namespace}:match", 3);
  r.add(verb::post, "/v1/kv/{namespace}:read", 4);
  r.add(verb::get, "/v1/kv/special/{key}", 5);
  r.add(verb::get, "/healthz", 6);
  return r;
}

}  // namespace

TEST_CASE("router: names take one segment, or the part of it before a literal suffix") {
  auto r = kv_routes();
  auto m = r.find(verb::get, "/v1/kv/ab/cd");
  REQUIRE(m.target);
  CHECK(*m.target == 1);
  CHECK(m.parameters == std::vector<std::pair<std::string, std::string>>{{"namespace", "ab"}, {"key", "cd"}});
  m = r.find(verb::post, "/v1/kv/ab:read");
  REQUIRE(m.target);
  CHECK(*m.target == 4);
  CHECK(m.parameters[0].second == "ab");
  CHECK_FALSE(r.find(verb::post, "/v1/kv/:read").target);
  CHECK_FALSE(r.find(verb::get, "/v1/kv//cd").target);
}

TEST_CASE("router: literal segments win over names") {
  auto r = kv_routes();
  auto m = r.find(verb::get, "/v1/kv/special/x");
  REQUIRE(m.target);
  CHECK(*m.target == 5);
}

TEST_CASE("router: an unknown path allows nothing, a known one with another method says what it answers") {
  auto r = kv_routes();
  CHECK(r.find(verb::get, "/nope").allowed.empty());
  CHECK(r.find(verb::get, "/healthz/").allowed.empty());
  CHECK(r.find(verb::get, "/v1/kv/a/b/c").allowed.empty());
  auto m = r.find(verb::delete_, "/v1/kv/a/b");
  CHECK_FALSE(m.target);
  CHECK(m.allowed == "GET, PUT, HEAD");
}

TEST_CASE("router: GET's handler answers HEAD unless HEAD has its own") {
  auto r = kv_routes();
  REQUIRE(r.find(verb::head, "/healthz").target);
  CHECK(*r.find(verb::head, "/healthz").target == 6);
  r.add(verb::head, "/v1/kv/{namespace}/{key}", 7);
  CHECK(*r.find(verb::head, "/v1/kv/a/b").target == 7);
  CHECK_FALSE(r.find(verb::head, "/v1/kv/a:match").target);
}
