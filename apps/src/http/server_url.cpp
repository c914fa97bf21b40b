#include <algorithm>
#include <boost/url/parse.hpp>
#include <boost/url/url_view.hpp>

#include "cokv/runtime/error.hpp"
#include "http/client.hpp"

namespace cokv::http {

std::string server_url::authority() const {
  auto out = at.host.find(':') == std::string::npos ? at.host : '[' + at.host + ']';
  if (at.port != (secure ? 443 : 80)) out += ':' + std::to_string(at.port);
  return out;
}

std::string server_url::to_string() const { return (secure ? "https://" : "http://") + authority(); }

result<server_url> parse_server_url(std::string_view text) {
  if (text.find("://") == text.npos) return errc::invalid_argument;  // "worker:8001" is a URL of scheme "worker"
  const auto url = boost::urls::parse_uri(boost::urls::string_view(text.data(), text.size()));
  if (!url) return errc::invalid_argument;
  server_url out;
  out.secure = url->scheme_id() == boost::urls::scheme::https;
  if (!out.secure && url->scheme_id() != boost::urls::scheme::http) return errc::unsupported;
  if (!url->has_authority() || url->has_userinfo() || url->has_query() || url->has_fragment())
    return errc::invalid_argument;
  if (!url->encoded_path().empty() && url->encoded_path() != "/") return errc::invalid_argument;
  const bool v6 = url->host_type() == boost::urls::host_type::ipv6;
  if (!v6 && url->host_type() != boost::urls::host_type::ipv4 && url->host_type() != boost::urls::host_type::name)
    return errc::invalid_argument;
  const auto host = v6 ? url->host_address() : url->host();
  out.at.host.assign(host.data(), host.size());
  // It goes into a header field: what was percent-encoded must not get that far.
  const auto known = [v6](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           (v6 ? c == ':' : c == '-' || c == '_');
  };
  if (out.at.host.empty() || !std::ranges::all_of(out.at.host, known)) return errc::invalid_argument;
  out.at.port = out.secure ? 443 : 80;
  if (url->has_port()) {  // port_number() is 0 both for ":0" and for a number that doesn't fit
    if (url->port_number() == 0) return errc::invalid_argument;
    out.at.port = url->port_number();
  }
  return out;
}

}  // namespace cokv::http
