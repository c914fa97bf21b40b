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

TEST_CASE("error body: OpenAI's error object, and every one has a word") {
  auto e = boost::json::parse(error_body({status::not_found, "no \"x\"", "model", "model_not_found"})).at("error");
  CHECK(e.at("message") == "no \"x\"");
  CHECK(e.at("type") == "not_found_error");
  CHECK(e.at("param") == "model");
  CHECK(e.at("code") == "model_not_found");
  e = boost::json::parse(error_body({status::bad_request, "m", {}, {}})).at("error");
  CHECK(e.at("type") == "invalid_request_error");
  CHECK(e.at("param").is_null());
  CHECK(e.at("code") == "invalid_request");
  struct row {
    status code;
    const char *type, *word;
  };
  for (const auto& [code, type, word] :
       {row{status::http_version_not_supported, "invalid_request_error", "unsupported_version"},
        row{status::not_implemented, "invalid_request_error", "not_implemented"},
        row{status::payload_too_large, "invalid_request_error", "too_large"},
        row{status::request_timeout, "invalid_request_error", "timeout"},
        row{status::internal_server_error, "server_error", "internal_error"},
        row{status::service_unavailable, "server_error", "unavailable"}}) {
    e = boost::json::parse(error_body({code, "m", {}, {}})).at("error");
    CHECK(e.at("type") == type);
    CHECK(e.at("code") == word);
  }
}
