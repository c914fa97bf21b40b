#include "http/message.hpp"

#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <boost/url/parse.hpp>
#include <boost/url/url_view.hpp>

#include "cokv/runtime/error.hpp"

namespace cokv::http {
namespace {

std::string_view type_of(status code) {
  switch (code) {
    case status::unauthorized:
      return "authentication_error";
    case status::forbidden:
      return "permission_error";
    case status::not_found:
      return "not_found_error";
    case status::too_many_requests:
      return "rate_limit_error";
    case status::not_implemented:  // these two are 5xx, and yet about what the client sent
    case status::http_version_not_supported:
      return "invalid_request_error";
    default:
      return static_cast<unsigned>(code) >= 500 ? "server_error" : "invalid_request_error";
  }
}

// For a problem that brings no word of its own.
std::string_view word_of(status code) {
  switch (code) {
    case status::unauthorized:
      return "invalid_api_key";
    case status::forbidden:
      return "permission_denied";
    case status::not_found:
      return "not_found";
    case status::method_not_allowed:
      return "method_not_allowed";
    case status::request_timeout:
      return "timeout";
    case status::payload_too_large:
      return "too_large";
    case status::unsupported_media_type:
      return "unsupported_media_type";
    case status::request_header_fields_too_large:
      return "header_too_large";
    case status::not_implemented:
      return "not_implemented";
    case status::service_unavailable:
      return "unavailable";
    case status::http_version_not_supported:
      return "unsupported_version";
    default:
      return static_cast<unsigned>(code) >= 500 ? "internal_error" : "invalid_request";
  }
}

}  // namespace

std::string error_body(const problem& p) {
  namespace json = boost::json;
  auto text = [](std::string_view s) { return json::string_view(s.data(), s.size()); };
  json::object error{{"message", p.message},
                     {"type", text(type_of(p.code))},
                     {"param", p.parameter.empty() ? json::value(nullptr) : json::value(p.parameter.c_str())},
                     {"code", text(p.reason.empty() ? word_of(p.code) : std::string_view(p.reason))}};
  return json::serialize(json::object{{"error", std::move(error)}});
}

std::optional<std::string_view> request_head::query_value(std::string_view name) const {
  for (const auto& [key, value] : query)
    if (key == name) return value;
  return std::nullopt;
}

std::string_view request_head::parameter(std::string_view name) const {
  for (const auto& [key, value] : parameters)
    if (key == name) return value;
  return {};
}

error_code parse_target(std::string_view target, request_head& into) {
  namespace urls = boost::urls;
  auto url = target.starts_with('/') ? urls::parse_origin_form(urls::string_view(target.data(), target.size()))
                                     : urls::parse_uri(urls::string_view(target.data(), target.size()));
  if (!url) return errc::invalid_argument;
  // Segments are matched after decoding, so an encoded slash would let one segment pose as two.
  if (auto path = url->encoded_path(); path.find("%2F") != path.npos || path.find("%2f") != path.npos)
    return errc::invalid_argument;
  const auto decoded = url->path();
  into.path.assign(decoded.data(), decoded.size());
  if (into.path.find('\0') != std::string::npos) return errc::invalid_argument;
  into.query.clear();
  for (auto p : url->params())
    into.query.emplace_back(std::string(p.key.begin(), p.key.end()), std::string(p.value.begin(), p.value.end()));
  return {};
}

}  // namespace cokv::http
