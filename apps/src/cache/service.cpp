#include "cache/service.hpp"

#include <algorithm>

#include "cache/key_list.hpp"
#include "cache/problems.hpp"
#include "cache/transfer.hpp"
#include "cokv/runtime/deadline.hpp"

namespace cokv::cache {
namespace {

using http::exchange;
using http::status;
using http::verb;

constexpr const char* frames_type = "application/vnd.cokv.frames";
constexpr const char* json_type = "application/json";

http::problem bad_id(const char* what) {
  return {status::bad_request, std::string(what) + " is not 64 hexadecimal digits", what, "invalid_argument"};
}

std::optional<namespace_id> namespace_of(const exchange& x) {
  return namespace_id::parse(x.request().parameter("namespace"));
}
std::optional<block_key> key_of(const exchange& x) { return block_key::parse(x.request().parameter("key")); }

// Nothing, or what is wrong with the query: `deferred` is the only name, 0 and 1 its values.
std::optional<http::problem> read_deferred(const exchange& x, bool& deferred) {
  for (const auto& [name, value] : x.request().query) {
    if (name != "deferred") return http::problem{status::bad_request, "no such parameter", name, "invalid_argument"};
    if (value != "0" && value != "1" && !value.empty())
      return http::problem{status::bad_request, "deferred is 0 or 1", name, "invalid_argument"};
    deferred = value != "0";
  }
  return std::nullopt;
}

}  // namespace

service::service(store& s, std::vector<tier> tiers, service_options options)
    : store_(s), tiers_(std::move(tiers)), options_(options), room_(s.get_executor(), options.room >> 10) {
  page_.add([this](http::scrape& page) { report(page); });
}

void service::add_routes(http::server& server) {
  const auto on = [&](verb method, std::string_view pattern, awaitable<void> (service::*handler)(exchange&),
                      http::route_options options = {}) {
    server.route(method, pattern, [this, handler](exchange& x) { return (this->*handler)(x); }, options);
  };
  const std::uint64_t key_lists = 4096 + options_.frames.max_blocks * std::uint64_t{80};
  const auto begins = options_.frames.payload(frame_type::begin) + frame_header_bytes + frame_trailer_bytes;
  on(verb::post, "/v1/kv/{namespace}:match", &service::match, {.body_bytes = key_lists});
  on(verb::post, "/v1/kv/{namespace}:read", &service::read, {.body_bytes = begins});
  on(verb::post, "/v1/kv/{namespace}:write", &service::write, {.body_bytes = options_.max_body});
  on(verb::put, "/v1/kv/{namespace}/{key}", &service::put, {.body_bytes = options_.max_body});
  on(verb::get, "/v1/kv/{namespace}/{key}", &service::get);
  on(verb::delete_, "/v1/kv/{namespace}/{key}", &service::remove);
  server.route(verb::get, "/v1/info",
               [this](exchange& x) -> awaitable<void> { co_await x.respond(status::ok, json_type, info()); });
  page_.route(server);
  http::route_health(server);
}

// ---- small requests

awaitable<void> service::match(exchange& x) {
  const auto ns = namespace_of(x);
  if (!ns) co_return (void) co_await x.refuse(bad_id("namespace"));
  const auto body = co_await x.read_all();
  if (!body) co_return;
  auto list = parse_key_list(*body, options_.frames.max_blocks);
  if (list.refused) co_return (void) co_await x.refuse(std::move(*list.refused));
  auto matched = co_await store_.async_match(*ns, std::move(list.keys), as_result);
  if (!matched) co_return (void) co_await x.refuse(problem_of(matched.error()));
  co_await x.respond(status::ok, json_type, "{\"matched\":" + std::to_string(*matched) + "}");
}

awaitable<void> service::remove(exchange& x) {
  const auto ns = namespace_of(x);
  if (!ns) co_return (void) co_await x.refuse(bad_id("namespace"));
  const auto key = key_of(x);
  if (!key) co_return (void) co_await x.refuse(bad_id("key"));
  auto gone = co_await store_.async_remove(*ns, *key, as_result);
  if (!gone) co_return (void) co_await x.refuse(problem_of(gone.error()));
  co_await x.respond(status::no_content, "", "");
}

// ---- uploads

awaitable<result<permit>> service::hold(std::uint64_t bytes) {
  const auto wanted = (bytes >> 10) + 1;
  if (wanted > options_.room >> 10) co_return make_error_code(errc::too_large);
  if (auto now = room_.try_acquire(wanted)) co_return std::move(*now);
  co_return co_await with_deadline(room_.async_acquire(wanted, asio::deferred), options_.patience);
}

// Takes a stream in: a layer is handed to the store when all of it is verified, and the blocks become visible when the
// stream was complete.
awaitable<error_code> service::store_stream(exchange& x, stream_parser& parser, namespace_id ns, bool deferred,
                                            const block_key* only) {
  std::vector<std::byte> chunk(64 << 10);
  std::span<const std::byte> in;
  std::unique_ptr<block_writer> writer;
  permit held;
  layer_memory memory;
  std::vector<buffer> layer;
  for (;;) {
    switch (parser.next(in)) {
      case stream_event::begun: {
        const auto& about = parser.about();
        if (about.ns != ns) co_return errc::namespace_mismatch;
        if (only && (about.keys.size() != 1 || about.keys[0] != *only)) co_return errc::invalid_argument;
        if (stream_bytes(about.layout, about.keys.size()) > options_.max_body) co_return errc::too_large;
        auto room = co_await hold(layer_memory::needed(about.layout, about.keys.size()));
        if (!room) co_return room.error();
        held = std::move(*room);
        auto opened = co_await store_.async_open_write(ns, about.layout, about.keys, {.deferred = deferred}, as_result);
        if (!opened) co_return opened.error();
        writer = std::move(*opened);
        layer = memory.of(about.layout, about.keys.size(), 0);
        break;
      }
      case stream_event::segment:
        parser.into(layer[parser.block()].bytes());
        break;
      case stream_event::arrived:
        break;
      case stream_event::layer: {
        const auto done = parser.layer();
        if (auto stored = co_await writer->async_write(done, layer, as_result); !stored) co_return stored.error();
        if (done + 1 < parser.about().layout.layers())
          layer = memory.of(parser.about().layout, parser.about().keys.size(), done + 1);
        break;
      }
      case stream_event::ended: {
        std::array<std::byte, 1> beyond;
        auto n = in.empty() ? co_await x.read_some(asio::buffer(beyond)) : result<std::size_t>(in.size());
        if (!n) co_return n.error();
        if (*n != 0) co_return errc::protocol;
        auto visible = co_await writer->async_commit(as_result);
        co_return visible ? error_code() : visible.error();
      }
      case stream_event::damaged:
        co_return errc::digest_mismatch;
      case stream_event::missing:
        co_return errc::invalid_argument;  // a write of what does not come
      case stream_event::acked:
        co_return errc::protocol;
      case stream_event::failed:
        co_return parser.error();
      case stream_event::more: {
        const auto room = parser.room();
        auto n = co_await x.read_some(room.empty() ? asio::buffer(chunk) : asio::buffer(room.data(), room.size()));
        if (!n) co_return n.error();
        if (*n == 0) co_return errc::protocol;  // cut
        if (room.empty())
          in = std::span(chunk).first(*n);
        else
          parser.filled(*n);
        break;
      }
    }
  }
}

awaitable<service::upload> service::receive(exchange& x, namespace_id ns, bool deferred, const block_key* only) {
  stream_parser parser(options_.frames);
  const auto ec = co_await store_stream(x, parser, ns, deferred, only);
  if (ec == errc::digest_mismatch) ++damaged_;
  co_return upload{parser.about(), ec};
}

awaitable<void> service::write(exchange& x) {
  const auto ns = namespace_of(x);
  if (!ns) co_return (void) co_await x.refuse(bad_id("namespace"));
  bool deferred = false;
  if (auto wrong = read_deferred(x, deferred)) co_return (void) co_await x.refuse(std::move(*wrong));
  const auto taken = co_await receive(x, *ns, deferred, nullptr);
  if (x.body_error()) co_return;
  if (taken.error) co_return (void) co_await x.refuse(problem_of(taken.error));
  const auto ack = ack_frame(*ns, taken.about.generation, {}, static_cast<std::uint32_t>(taken.about.keys.size()));
  co_await x.respond(deferred ? status::accepted : status::ok, frames_type,
                     {reinterpret_cast<const char*>(ack.data()), ack.size()});
}

awaitable<void> service::put(exchange& x) {
  const auto ns = namespace_of(x);
  if (!ns) co_return (void) co_await x.refuse(bad_id("namespace"));
  const auto key = key_of(x);
  if (!key) co_return (void) co_await x.refuse(bad_id("key"));
  bool deferred = false;
  if (auto wrong = read_deferred(x, deferred)) co_return (void) co_await x.refuse(std::move(*wrong));
  const auto taken = co_await receive(x, *ns, deferred, &*key);
  if (x.body_error()) co_return;
  if (taken.error) co_return (void) co_await x.refuse(problem_of(taken.error));
  co_await x.respond(deferred ? status::accepted : status::no_content, "", "");
}

// ---- downloads

awaitable<void> service::read(exchange& x) {
  const auto ns = namespace_of(x);
  if (!ns) co_return (void) co_await x.refuse(bad_id("namespace"));
  const auto body = co_await x.read_all();
  if (!body) co_return;
  stream_parser parser(options_.frames);
  auto in = std::as_bytes(std::span(*body));
  const auto event = parser.next(in);
  if (event != stream_event::begun || !in.empty()) {
    const auto ec = event == stream_event::failed ? parser.error() : make_error_code(errc::protocol);
    if (ec == errc::digest_mismatch) ++damaged_;
    co_return (void) co_await x.refuse(problem_of(ec));
  }
  if (parser.about().ns != *ns) co_return (void) co_await x.refuse(problem_of(errc::namespace_mismatch));
  co_await send(x, parser.about());
}

awaitable<void> service::get(exchange& x) {
  const auto ns = namespace_of(x);
  if (!ns) co_return (void) co_await x.refuse(bad_id("namespace"));
  const auto key = key_of(x);
  if (!key) co_return (void) co_await x.refuse(bad_id("key"));
  auto layout = co_await store_.async_layout(*ns, *key, as_result);
  if (!layout) co_return (void) co_await x.refuse(problem_of(layout.error()));
  stream_begin about{.ns = *ns, .layout = std::move(*layout), .keys = {*key}};
  if (x.request().method != verb::head) co_return co_await send(x, std::move(about));
  if (!co_await x.start(status::ok, frames_type, stream_bytes(about.layout, 1))) co_await x.finish();
}

awaitable<void> service::send(exchange& x, stream_begin about) {
  auto matched = co_await store_.async_match(about.ns, about.keys, as_result);
  if (!matched) co_return (void) co_await x.refuse(problem_of(matched.error()));
  permit held;
  std::unique_ptr<block_reader> reader;
  if (*matched != 0) {
    auto room = co_await hold(layer_memory::needed(about.layout, *matched));
    if (!room) co_return (void) co_await x.refuse(problem_of(room.error()));
    held = std::move(*room);
    std::vector<block_key> keys(about.keys.begin(), about.keys.begin() + static_cast<std::ptrdiff_t>(*matched));
    auto opened = co_await store_.async_open_read(about.ns, about.layout, std::move(keys), as_result);
    if (!opened) co_return (void) co_await x.refuse(problem_of(opened.error()));
    reader = std::move(*opened);
  }
  const auto ns = about.ns;
  block_sender sender(std::move(about), static_cast<std::uint32_t>(*matched));
  if (co_await x.start(status::ok, frames_type, sender.length())) co_return;
  co_await sender.run(x, reader.get());
  if (!sender.damaged()) co_return;
  // It is of no use to anybody, and in the way of a good one.
  ++damaged_stored_;
  reader.reset();
  (void)co_await store_.async_remove(ns, *sender.damaged(), as_result);
}

}  // namespace cokv::cache
