#include "store/redis/url.hpp"

#include <boost/url/decode_view.hpp>
#include <boost/url/pct_string_view.hpp>

#include "cokv/runtime/error.hpp"

namespace cokv::detail {
namespace {

constexpr std::uint16_t usual_port = 6379;

result<std::string> decoded(std::string_view text) {
  const auto view = boost::urls::make_pct_string_view(boost::urls::string_view(text.data(), text.size()));
  if (!view) return errc::invalid_argument;
  std::string out;
  for (const char c : **view) out += c;
  return out;
}

bool has_port(std::string_view host) {
  const auto close = host.rfind(']');
  return host.find(':', close == host.npos ? 0 : close) != host.npos;
}

}  // namespace

result<redis_url> parse_redis_url(std::string_view text) {
  const auto colon = text.find("://");
  if (colon == text.npos) return errc::invalid_argument;
  if (text.substr(0, colon) != "redis") return errc::unsupported;
  text.remove_prefix(colon + 3);
  redis_url out;
  if (const auto at = text.rfind('@'); at != text.npos) {
    const auto user = text.substr(0, at);
    const auto split = user.find(':');
    if (split == user.npos) return errc::invalid_argument;
    auto name = decoded(user.substr(0, split));
    auto password = decoded(user.substr(split + 1));
    if (!name || !password || password->empty()) return errc::invalid_argument;
    out.user = std::move(*name);
    out.password = std::move(*password);
    text.remove_prefix(at + 1);
  }
  if (const auto slash = text.find('/'); slash != text.npos) {
    const auto database = text.substr(slash + 1);
    if (!database.empty() && database != "0")  // a cluster has no other
      return database.find_first_not_of("0123456789") == database.npos ? errc::unsupported : errc::invalid_argument;
    text = text.substr(0, slash);
  }
  while (true) {
    const auto comma = text.find(',');
    const auto one = text.substr(0, comma);
    if (one.empty()) return errc::invalid_argument;
    auto at = parse_endpoint(has_port(one) ? std::string(one) : std::string(one) + ':' + std::to_string(usual_port));
    if (!at || at->host.empty() || at->port == 0 || at->is_local()) return errc::invalid_argument;
    out.hosts.push_back(std::move(*at));
    if (comma == text.npos) return out;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace cokv::detail
