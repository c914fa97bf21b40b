// Names and addresses as text: what is read is written as a text that is read as the same; where there is one spelling
// only, it is the text that was read.
#include <algorithm>
#include <string>

#include "cokv/kvstream/block_key.hpp"
#include "cokv/kvstream/dtype.hpp"
#include "cokv/kvstream/namespace_id.hpp"
#include "cokv/kvstream/topology.hpp"
#include "cokv/runtime/net.hpp"
#include "fuzz/harness.hpp"
#include "link/link_url.hpp"
#include "store/http_url.hpp"

namespace cokv::fuzz {
namespace {

bool printable(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= 0x20 && c < 0x7f; });
}

void check_topology(std::string_view text) {
  const auto t = topology::parse(text);
  if (!t) return reach("text: no topology");
  require(t->text() == text, "a topology has one spelling");
  require(topology(t->depth(), t->degree(), t->microbatch(), t->starts()) == *t, "a topology is made of its numbers");
  require(t->workers() > 0 && t->workers() <= topology::max_workers, "workers within the limit");
  require(t->number(t->at(t->workers() - 1)) == t->workers() - 1, "workers are numbered");
  reach(t->starts().empty() ? "text: topology" : "text: topology with starts");
}

void check_names(std::string_view text) {
  if (const auto type = parse_dtype(text)) {
    require(to_string(*type) == text && size_of(*type) > 0, "an element type has one name");
    reach("text: element type");
  }
  const auto id = parse_id256(text);
  const auto key = block_key::parse(text);
  const auto ns = namespace_id::parse(text);
  require(id.has_value() == key.has_value() && id.has_value() == ns.has_value(), "keys and namespaces are ids");
  if (!id) return;
  std::string lower(text);
  for (auto& c : lower)
    if (c >= 'A' && c <= 'F') c = static_cast<char>(c - 'A' + 'a');
  require(id->hex() == lower && key->hex() == lower && ns->hex() == lower, "an id is written as it was read");
  reach("text: id");
}

void check_endpoint(std::string_view text) {
  const auto at = parse_endpoint(text);
  if (!at) return reach("text: no endpoint");
  require(printable(at->host), "a host is something to print");
  require(parse_endpoint(at->to_string()).value() == *at, "an endpoint is read as it was written");
  reach("text: endpoint");
}

void check_urls(std::string_view text) {
  if (const auto url = detail::parse_link_url(text)) {
    require(printable(url->to_string()), "a URL is something to print");
    require(detail::parse_link_url(url->to_string()).value() == *url, "a URL is read as it was written");
    reach("text: link URL");
  }
  if (const auto url = detail::parse_http_url(text); url && url->is_local()) {
    require("unix://" + url->host.substr(5) == text && url->on_this_machine(), "a socket has one spelling");
    reach("text: socket URL");
  } else if (url) {
    const auto again = detail::parse_http_url("http://" + url->authority());
    require(again && again->host == url->host && again->port == url->port, "a URL is read as it was written");
    reach("text: HTTP URL");
  }
}

}  // namespace

void text(bytes in) {
  const std::string_view text(reinterpret_cast<const char*>(in.data()), in.size());
  check_topology(text);
  check_names(text);
  check_endpoint(text);
  check_urls(text);
}

}  // namespace cokv::fuzz
