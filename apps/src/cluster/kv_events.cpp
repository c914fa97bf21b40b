#include "cluster/kv_events.hpp"

#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "http/json.hpp"

namespace cokv::cluster {
namespace {

constexpr std::size_t most_id = 128, most_data = std::size_t{1} << 20;
constexpr duration silence = std::chrono::seconds(40);  // a quiet stream has a comment every 15

parsed<kv_event> read_event(kv_event e, std::string_view data) {
  const auto v = http::parse_json(data);
  if (!v) return v.error();
  fields f(*v, "event");
  e.tier = f.text("tier", 64);
  (void)f.text("namespace", 64);
  f.list("keys", kv_event_reader::most_keys, [&](const boost::json::value& one) -> std::optional<std::string> {
    const auto key = one.is_string() ? block_key::parse(one.get_string()) : std::nullopt;
    if (!key) return "has what is no key";
    e.keys.push_back(*key);
    return std::nullopt;
  });
  if (auto wrong = f.end()) return *wrong;
  return e;
}

}  // namespace

void apply(const kv_event& e, prefix_index::worker at, prefix_index& index) {
  switch (e.kind) {
    case kv_event::what::stored:
      return index.stored(at, e.tier, e.keys);
    case kv_event::what::removed:
      return index.removed(at, e.tier, e.keys);
    case kv_event::what::overflow:
      return index.clear(at);
  }
}

parsed<std::optional<kv_event>> kv_event_reader::line(std::string_view text) {
  const auto value = [&](std::string_view field) -> std::optional<std::string_view> {
    if (!text.starts_with(field) || text.substr(field.size(), 1) != ":") return {};
    auto rest = text.substr(field.size() + 1);
    if (rest.starts_with(' ')) rest.remove_prefix(1);
    return rest;
  };
  if (!text.empty()) {
    if (const auto id = value("id")) id_ = id->substr(0, most_id);
    if (const auto kind = value("event")) kind_ = kind->substr(0, 32);
    if (const auto data = value("data")) {
      if (data_.size() + data->size() > most_data) return wrong("event.data", "is longer than a mebibyte");
      data_ += *data;
    }
    return std::optional<kv_event>();
  }
  // An empty line is an event's end.
  const auto kind = std::exchange(kind_, {});
  const auto data = std::exchange(data_, {});
  kv_event e{.id = id_};
  if (kind == "overflow") {
    e.kind = kv_event::what::overflow;
    return std::optional(std::move(e));
  }
  if (kind != "stored" && kind != "removed") return std::optional<kv_event>();
  e.kind = kind == "stored" ? kv_event::what::stored : kv_event::what::removed;
  auto whole = read_event(std::move(e), data);
  if (!whole) return whole.error();
  return std::optional(std::move(*whole));
}

awaitable<error_code> follow_kv(http::client& worker, std::string& last, std::function<void(const kv_event&)> heard) {
  http::client_request ask{.target = "/v1/events", .silence = silence};
  if (!last.empty()) ask.fields.set("Last-Event-ID", last);
  auto lines = co_await worker.open_lines(std::move(ask));
  if (!lines) co_return lines.error();
  if (lines->code() == 404 || lines->code() == 403) co_return errc::unsupported;
  if (lines->code() != 200) co_return errc::unavailable;
  kv_event_reader reader;
  for (;;) {
    const auto text = co_await lines->next();
    if (!text) co_return text.error();
    if (!*text) co_return asio::error::eof;
    const auto e = reader.line(**text);
    if (!e) co_return errc::protocol;
    if (!*e) continue;
    heard(**e);
    last = (*e)->id;
  }
}

}  // namespace cokv::cluster
