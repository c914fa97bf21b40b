#include "store/http_url.hpp"

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <boost/url/parse.hpp>
#include <boost/url/url_view.hpp>

#include "cokv/runtime/error.hpp"

namespace cokv::detail {

std::string http_url::authority() const {
  if (is_local()) return "localhost";
  std::string out = host.find(':') == std::string::npos ? host : '[' + host + ']';
  if (port != (secure ? 443 : 80)) out += ':' + std::to_string(port);
  return out;
}

bool http_url::on_this_machine() const {
  if (host == "localhost" || is_local()) return true;
  error_code ec;
  const auto address = asio::ip::make_address(host, ec);  // a name may look like one
  return !ec && address.is_loopback();
}

result<http_url> parse_http_url(std::string_view text) {
  if (text.find("://") == text.npos) return errc::invalid_argument;  // "cache:9009" is a URL of scheme "cache"
  if (constexpr std::string_view socket = "unix://"; text.starts_with(socket)) {
    const auto path = text.substr(socket.size());
    const bool clean = std::ranges::all_of(path, [](unsigned char b) { return b > 0x20 && b != 0x7f; });
    if (path.size() < 2 || path.front() != '/' || !clean) return errc::invalid_argument;
    return http_url::local(path);
  }
  const auto url = boost::urls::parse_uri(boost::urls::string_view(text.data(), text.size()));
  if (!url) return errc::invalid_argument;
  const bool secure = url->scheme_id() == boost::urls::scheme::https;
  if (!secure && url->scheme_id() != boost::urls::scheme::http) return errc::unsupported;
  if (!url->has_authority() || url->has_userinfo() || url->has_query() || url->has_fragment())
    return errc::invalid_argument;
  if (!url->encoded_path().empty() && url->encoded_path() != "/") return errc::invalid_argument;
  http_url out;
  out.secure = secure;
  if (secure) out.port = 443;
  switch (url->host_type()) {
    case boost::urls::host_type::ipv4:
    case boost::urls::host_type::ipv6: {
      const auto host = url->host_address();
      out.host.assign(host.data(), host.size());
      break;
    }
    case boost::urls::host_type::name: {
      const auto host = url->host_name();
      out.host.assign(host.data(), host.size());
      break;
    }
    default:
      return errc::invalid_argument;
  }
  if (out.host.empty()) return errc::invalid_argument;
  // The host goes into a header field: a decoded %0d%0a must not get that far, nor a ':' or '/' that makes it another.
  const auto known = [name = url->host_type() == boost::urls::host_type::name](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '-' ||
           (name ? c == '_' : c == ':');
  };
  if (!std::ranges::all_of(out.host, known)) return errc::invalid_argument;
  if (url->has_port()) {
    // port_number() is 0 both for ":0" and for a number that doesn't fit.
    if (url->port_number() == 0) return errc::invalid_argument;
    out.port = url->port_number();
  }
  return out;
}

}  // namespace cokv::detail
