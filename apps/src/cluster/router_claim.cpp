#include "cluster/router_claim.hpp"

#include <charconv>

namespace cokv::cluster {
namespace json = boost::json;
namespace {

// The number at the beginning of `text`, which it is cut from.
std::optional<std::uint64_t> cut_number(std::string_view& text) {
  std::uint64_t n = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (ec != std::errc()) return {};
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return n;
}

bool cut(std::string_view& text, std::string_view what) {
  if (!text.starts_with(what)) return false;
  text.remove_prefix(what.size());
  return true;
}

bool sound(const router_claim& c) {
  return c.epoch >= 1 && c.epoch <= most_router_epoch && is_id(c.router) && c.lease.count() >= 1 &&
         c.lease <= most_router_lease;
}

}  // namespace

std::string to_field(const router_claim& c) {
  return std::to_string(c.epoch) + "; router=" + c.router + "; lease=" + std::to_string(c.lease.count());
}

std::optional<router_claim> parse_claim(std::string_view text) {
  router_claim c;
  const auto epoch = cut_number(text);
  if (!epoch || !cut(text, "; router=")) return {};
  c.epoch = *epoch;
  const auto router = text.substr(0, text.find(';'));
  text.remove_prefix(router.size());
  c.router = router;
  if (!cut(text, "; lease=")) return {};
  const auto lease = cut_number(text);
  if (!lease || !text.empty() || *lease > static_cast<std::uint64_t>(most_router_lease.count())) return {};
  c.lease = std::chrono::milliseconds(*lease);
  return sound(c) ? std::optional(std::move(c)) : std::nullopt;
}

json::object to_json(const router_claim& c) {
  return {{"epoch", c.epoch}, {"router", json::string(c.router)}, {"lease_ms", c.lease.count()}};
}

parsed<router_claim> read_claim(const json::value& v) {
  fields f(v, "");
  router_claim c;
  c.epoch = f.number("epoch", most_router_epoch, 1);
  c.router = f.id("router");
  c.lease = std::chrono::milliseconds(f.number("lease_ms", static_cast<std::uint64_t>(most_router_lease.count()), 1));
  if (auto wrong = f.end()) return *wrong;
  return c;
}

json::object to_json(const told_promise& p) {
  return {{"epoch", p.epoch}, {"router", json::string(p.router)}, {"left_ms", p.left.count()}};
}

parsed<told_promise> read_promise(const json::value& v) {
  fields f(v, "promise");
  told_promise p;
  p.epoch = f.number("epoch", most_router_epoch);
  p.router = p.epoch == 0 ? f.text("router", 0) : f.id("router");
  p.left = std::chrono::milliseconds(f.number("left_ms", static_cast<std::uint64_t>(most_router_lease.count())));
  if (auto wrong = f.end()) return *wrong;
  return p;
}

}  // namespace cokv::cluster
