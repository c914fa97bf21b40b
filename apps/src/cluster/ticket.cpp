#include "cluster/ticket.hpp"

#include <boost/json/array.hpp>

#include "cokv/kvstream/convert.hpp"
#include "cokv/runtime/error.hpp"

namespace cokv::cluster {
namespace json = boost::json;
namespace {

std::string hex_of(std::span<const std::byte> bytes) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string out;
  for (const auto b : bytes) {
    out += digits[std::to_integer<unsigned>(b) >> 4];
    out += digits[std::to_integer<unsigned>(b) & 15];
  }
  return out;
}

std::optional<link_message> bytes_of(std::string_view hex) {
  if (hex.size() % 2 != 0) return {};
  const auto digit = [](char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; };
  link_message out;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    const int high = digit(hex[i]), low = digit(hex[i + 1]);
    if (high < 0 || low < 0) return {};
    out.push_back(static_cast<std::byte>(high << 4 | low));
  }
  return out;
}

cokv::topology take_topology(fields& f) {
  const auto text = f.text("topology", cokv::topology::max_text);
  if (auto t = cokv::topology::parse(text)) return *t;
  f.refuse("topology", "is none");
  return cokv::topology();
}

id256 take_fingerprint(fields& f) {
  const auto text = f.text("fingerprint", 64);
  if (auto id = parse_id256(text)) return *id;
  f.refuse("fingerprint", "is not 64 hex digits");
  return {};
}

}  // namespace

bool fits(const kv_wire& a, const kv_wire& b, bool converts) noexcept {
  const bool same = a.layers == b.layers && a.kv_heads == b.kv_heads && a.head_dim == b.head_dim;
  return same && (a.type == b.type || (converts && convertible(a.type) && convertible(b.type)));
}

json::object to_json(const kv_wire& w) {
  const auto type = to_string(w.type);
  return {{"block_tokens", w.block_tokens},
          {"dtype", json::string(type.data(), type.size())},
          {"layers", w.layers},
          {"kv_heads", w.kv_heads},
          {"head_dim", w.head_dim}};
}

parsed<kv_wire> read_wire(const json::value& v) {
  fields f(v, "wire");
  kv_wire w;
  w.block_tokens = static_cast<std::uint32_t>(f.number("block_tokens", 4096, 1));
  const auto type = parse_dtype(f.text("dtype", 32));
  w.layers = static_cast<std::uint32_t>(f.number("layers", 4096, 1));
  w.kv_heads = static_cast<std::uint32_t>(f.number("kv_heads", 4096, 1));
  w.head_dim = static_cast<std::uint32_t>(f.number("head_dim", 1 << 16, 1));
  if (!type) f.refuse("dtype", "is none");
  w.type = type.value_or(dtype::f32);
  if (auto wrong = f.end()) return *wrong;
  return w;
}

json::object to_json(const offer& o) {
  return {{"name", o.name},
          {"life", o.life},
          {"topology", o.topology.text()},
          {"wire", to_json(o.wire)},
          {"fingerprint", o.fingerprint.hex()},
          {"converts", o.converts}};
}

parsed<offer> read_offer(const json::value& v) {
  fields f(v, "from");
  offer o;
  o.name = f.id("name");
  o.life = f.id("life");
  o.topology = take_topology(f);
  o.wire = f.take<kv_wire>("wire", read_wire);
  o.fingerprint = take_fingerprint(f);
  o.converts = f.flag("converts");
  if (auto wrong = f.end()) return *wrong;
  return o;
}

json::object to_json(const ticket_part& p) {
  return {{"life", p.life}, {"links", json_of(p.links)}, {"legs", hex_of(encode(p.legs))}};
}

parsed<ticket_part> read_part(const json::value& v) {
  fields f(v, "parts");
  ticket_part p;
  p.life = f.id("life");
  p.links = f.texts("links", most_links, most_url_bytes);
  const auto bytes = bytes_of(f.text("legs", most_leg_tickets * 88));
  auto legs = bytes ? decode_tickets(*bytes) : result<std::vector<leg_ticket>>(errc::protocol);
  if (legs)
    p.legs = std::move(*legs);
  else
    f.refuse("legs", "are none");
  if (auto wrong = f.end()) return *wrong;
  return p;
}

json::object to_json(const ticket& t) {
  json::array parts;
  for (const auto& p : t.parts) parts.push_back(to_json(p));
  json::array blocks;
  for (const auto& b : t.blocks) blocks.push_back(json::array{b.index, b.generation});
  return {{"id", t.id},
          {"attempt", t.attempt},
          {"topology", t.topology.text()},
          {"wire", to_json(t.wire)},
          {"fingerprint", t.fingerprint.hex()},
          {"tokens", t.tokens},
          {"first", t.first},
          {"blocks", std::move(blocks)},
          {"parts", std::move(parts)},
          {"lease_ms", t.lease.count()}};
}

parsed<ticket> read_ticket(const json::value& v, std::uint32_t most_prompt) {
  fields f(v, "ticket");
  ticket t;
  t.id = f.id("id");
  t.attempt = f.u32("attempt", most_attempts);
  t.topology = take_topology(f);
  t.wire = f.take<kv_wire>("wire", read_wire);
  t.fingerprint = take_fingerprint(f);
  t.tokens = static_cast<std::uint32_t>(f.number("tokens", most_prompt, 1));
  t.first = f.u32("first", t.tokens);
  f.list("blocks", t.tokens, [&](const json::value& one) -> std::optional<std::string> {
    const auto* both = one.if_array();
    const auto index = both && both->size() == 2 ? unsigned_of((*both)[0]) : std::nullopt;
    const auto generation = index ? unsigned_of((*both)[1]) : std::nullopt;
    constexpr auto most = std::numeric_limits<std::uint32_t>::max();
    if (!generation || *index > most || *generation > most) return "has an item that is no block";
    t.blocks.push_back({static_cast<std::uint32_t>(*index), static_cast<std::uint32_t>(*generation)});
    return {};
  });
  f.list("parts", topology::max_workers, [&](const json::value& one) -> std::optional<std::string> {
    auto part = read_part(one);
    if (!part) {
      f.refuse(part.error());
      return {};
    }
    t.parts.push_back(std::move(*part));
    return {};
  });
  t.lease = std::chrono::milliseconds(f.number("lease_ms", 3'600'000, 1));
  if (auto wrong = f.end()) return *wrong;
  // What the numbers mean together.
  if (t.first < t.tokens && t.first % t.wire.block_tokens != 0) f.refuse("first", "is within a block");
  if (t.blocks.size() != (std::uint64_t{t.tokens} + t.wire.block_tokens - 1) / t.wire.block_tokens)
    f.refuse("blocks", "are not those of so many tokens");
  if (t.parts.size() != (t.first < t.tokens ? t.topology.workers() : 1))
    f.refuse("parts", "are not as many as workers");
  for (const auto& p : t.parts)
    if ((t.first == t.tokens) != p.legs.empty()) f.refuse("parts", "have other legs than what is wanted");
  if (auto wrong = f.end()) return *wrong;
  return t;
}

}  // namespace cokv::cluster
