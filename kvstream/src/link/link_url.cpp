#include "link/link_url.hpp"

#include "cokv/runtime/error.hpp"

namespace cokv::detail {

result<link_url> parse_link_url(std::string_view text) {
  const auto colon = text.find("://");
  if (colon == text.npos || colon == 0) return errc::invalid_argument;
  if (text.substr(0, colon) != "tcp") return errc::unsupported;
  auto at = parse_endpoint(text.substr(colon + 3));
  if (!at) return errc::invalid_argument;
  return link_url{std::move(*at)};
}

}  // namespace cokv::detail
