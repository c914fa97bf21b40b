// What a handler sees of a request, and the one shape of every error body: OpenAI's error object.
//
//     if (!model) co_return co_await x.refuse({http::status::not_found, "no such model", "model", "model_not_found"});
#pragma once

#include <boost/beast/http/fields.hpp>
#include <boost/beast/http/status.hpp>
#include <boost/beast/http/verb.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cokv/runtime/asio.hpp"

namespace cokv::http {

namespace beast = boost::beast;
using beast::http::field;
using beast::http::status;
using beast::http::verb;

// A refusal: what the client did wrong, in words it can act on.
struct problem {
  status code = status::bad_request;
  std::string message;
  std::string parameter;  // the field at fault; empty: none
  std::string reason;     // machine-readable ("model_not_found"); empty: the status' own word ("too_large")
};

// {"error":{"message":..., "type":..., "param":..., "code":...}}
std::string error_body(const problem& p);

struct request_head {
  verb method = verb::unknown;
  std::string path;                                             // decoded, without the query
  std::vector<std::pair<std::string, std::string>> query;       // decoded, in order
  std::vector<std::pair<std::string, std::string>> parameters;  // what the route's {names} matched
  beast::http::fields fields;
  unsigned version = 11;

  std::optional<std::string_view> query_value(std::string_view name) const;
  std::string_view parameter(std::string_view name) const;  // empty: no such name in the pattern
};

// Splits and decodes a request target ("/v1/x?y=1"; an absolute URL as proxies send it). invalid_argument: malformed.
error_code parse_target(std::string_view target, request_head& into);

}  // namespace cokv::http
