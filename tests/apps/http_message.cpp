#include "http/message.hpp"

#include <boost/json/parse.hpp>

using namespace cokv::http;

TEST_CASE("request target: path and query are decoded") {
  request_head head;
  REQUIRE_FALSE(parse_target("/v1/kv/a%20b?deferred=1&x=%26&flag", head));
  CHECK(head.path == "/v1/kv/a b");
  CHECK(head.query_value("deferred") == "1");
  CHECK(head.query_value("x") == "&");
  CHECK(head.query_value("flag") == "");
  CHECK_FALSE(head.query_value("none"));
  REQUIRE_FALSE(parse_target("http://host:1/p?q=1", head));
  CHECK(head.path == "/p");
}

TEST_CASE("request target: what is malformed or would pose as another path is refused") {
  request_head head;
  for (auto bad : {"", "v1", "/a%2Fb", "/a%2fb", "/%00", "/%zz", "/a b", "*"}) {
    CAPTURE(bad);
    CHECK(parse_target(bad, head));
  }
}

TEST_CASE("error body: OpenAI's error object, with null where nothing is said") {
  auto e = boost::json::parse(error_body({status::not_found, "no \"x\"", "model", "model_not_found"})).at("error");
  CHECK(e.at("message") == "no \"x\"");
  CHECK(e.at("type") == "not_found_error");
  CHECK(e.at("param") == "model");
  CHECK(e.at("code") == "model_not_found");
  e = boost::json::parse(error_body({status::bad_request, "m", {}, {}})).at("error");
  CHECK(e.at("type") == "invalid_request_error");
  CHECK(e.at("param").is_null());
  CHECK(e.at("code").is_null());
}
