#include "cluster/part_note.hpp"

#include <array>
#include <boost/json/serialize.hpp>

#include "cluster/error_name.hpp"
#include "cokv/runtime/error.hpp"
#include "http/json.hpp"

namespace cokv::cluster {
namespace json = boost::json;
namespace {

constexpr std::array names{"land", "send", "end", "ready", "kept", "over"};
constexpr auto any = std::numeric_limits<std::uint64_t>::max();

json::object to_json(const part_note::landing& l) {
  return {{"id", l.id},
          {"attempt", l.attempt},
          {"from", l.from.text()},
          {"sender", cluster::to_json(l.sender)},
          {"receiver", cluster::to_json(l.receiver)},
          {"tokens", l.tokens},
          {"first", l.first},
          {"blocks", json::array(l.blocks.begin(), l.blocks.end())}};
}

parsed<part_note::landing> read_landing(const json::value& v) {
  fields f(v, "land");
  part_note::landing l;
  l.id = f.id("id");
  l.attempt = f.u32("attempt", most_attempts);
  const auto from = topology::parse(f.text("from", topology::max_text));
  if (!from) f.refuse("from", "is no topology");
  l.from = from.value_or(topology());
  l.sender = f.take<kv_wire>("sender", read_wire);
  l.receiver = f.take<kv_wire>("receiver", read_wire);
  l.tokens = static_cast<std::uint32_t>(f.number("tokens", most_tokens, 1));
  l.first = f.u32("first", l.tokens);
  f.list("blocks", l.tokens, [&](const json::value& one) -> std::optional<std::string> {
    const auto n = unsigned_of(one);
    if (!n || *n > std::numeric_limits<std::uint32_t>::max()) return "has an item that is no block";
    l.blocks.push_back(static_cast<std::uint32_t>(*n));
    return {};
  });
  if (auto wrong = f.end()) return *wrong;
  return l;
}

}  // namespace

link_message encode(const part_note& n) {
  json::object o{{"task", n.task}, {"is", names[static_cast<std::size_t>(n.kind)]}};
  switch (n.kind) {
    case part_note::what::land:
      o["land"] = to_json(*n.land);
      break;
    case part_note::what::send:
      o["ticket"] = cluster::to_json(*n.send);
      break;
    case part_note::what::ready:
      if (n.part) o["part"] = cluster::to_json(*n.part);
      break;
    case part_note::what::kept:
      o["tokens"] = n.tokens;
      break;
    case part_note::what::over: {
      const auto code = name_of(n.code);
      o["tokens"] = n.tokens;
      o["bytes"] = n.bytes;
      o["code"] = json::string(code.data(), code.size());
      break;
    }
    case part_note::what::end:
      break;
  }
  const auto text = json::serialize(o);
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

result<part_note> read_note(std::span<const std::byte> message) {
  const auto v = http::parse_json({reinterpret_cast<const char*>(message.data()), message.size()});
  if (!v) return errc::protocol;
  fields f(*v, "note");
  part_note n;
  n.task = f.number("task", any);
  const auto kind = std::ranges::find(names, f.text("is", 16));
  if (kind == names.end()) return errc::protocol;
  n.kind = static_cast<part_note::what>(kind - names.begin());
  switch (n.kind) {
    case part_note::what::land:
      n.land = f.take<part_note::landing>("land", read_landing);
      break;
    case part_note::what::send:
      n.send = f.take<ticket>("ticket", [](const json::value& t) { return read_ticket(t); });
      break;
    case part_note::what::ready:
      if (f.has("part")) n.part = f.take<ticket_part>("part", read_part);
      break;
    case part_note::what::kept:
      n.tokens = f.u32("tokens", most_tokens);
      break;
    case part_note::what::over: {
      n.tokens = f.u32("tokens", most_tokens);
      n.bytes = f.number("bytes", any);
      const auto code = f.text("code", 64);
      n.code = code == name_of({}) ? error_code() : error_of(code);
      break;
    }
    case part_note::what::end:
      break;
  }
  if (f.end()) return errc::protocol;
  return n;
}

}  // namespace cokv::cluster
