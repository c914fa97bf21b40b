#include <algorithm>
#include <boost/asio/ip/address_v6.hpp>
#include <charconv>

#include "cokv/runtime/net.hpp"
#include "text_error.hpp"

namespace cokv {

std::string endpoint::to_string() const {
  if (is_local()) return host;
  bool v6 = host.find(':') != std::string::npos;
  return (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

result<endpoint> parse_endpoint(std::string_view text) {
  using detail::text_error;
  if (text.empty()) return make_error_code(text_error::endpoint_empty);
  std::string_view host, port;
  if (text.front() == '[') {
    std::size_t close = text.find(']');
    if (close == text.npos) return make_error_code(text_error::endpoint_bracket);
    host = text.substr(1, close - 1);
    if (close + 1 == text.size()) return make_error_code(text_error::endpoint_no_port);
    if (text[close + 1] != ':') return make_error_code(text_error::endpoint_bracket);
    port = text.substr(close + 2);
    error_code ec;
    asio::ip::make_address_v6(std::string(host), ec);
    // The system reads an address up to a zero byte, and takes anything for the zone behind a '%'.
    const bool odd = std::ranges::any_of(host, [](char c) { return c <= ' ' || c >= 0x7f; });
    if (ec || odd) return make_error_code(text_error::endpoint_address);
  } else {
    std::size_t colon = text.rfind(':');
    if (colon == text.npos) return make_error_code(text_error::endpoint_no_port);
    host = text.substr(0, colon);
    port = text.substr(colon + 1);
    if (host.find(':') != host.npos) return make_error_code(text_error::endpoint_colons);
    for (char c : host) {
      bool known = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
                   c == '_';
      if (!known) return make_error_code(text_error::endpoint_host);
    }
  }
  if (port.empty()) return make_error_code(text_error::endpoint_no_port);
  unsigned value = 0;
  auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), value);
  if (error == std::errc::invalid_argument || end != port.data() + port.size())
    return make_error_code(text_error::endpoint_port_not_a_number);
  if (error == std::errc::result_out_of_range || value > 65535)
    return make_error_code(text_error::endpoint_port_too_large);
  return endpoint{std::string(host), static_cast<std::uint16_t>(value)};
}

}  // namespace cokv
