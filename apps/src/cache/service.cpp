#include "cache/service.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "cache/events.hpp"
#include "cache/key_list.hpp"
#include "cache/problems.hpp"
#include "cache/transfer.hpp"
#include "cokv/kvstream/file_store.hpp"
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

// Nothing, or what is wrong with the value; the routes that do not know `name` refuse it themselves.
std::optional<http::problem> read_flag(const exchange& x, const char* name, bool& set) {
  const auto value = x.request().query_value(name);
  if (value && *value != "0" && *value != "1" && !value->empty())
    return http::problem{status::bad_request, std::string(name) + " is 0 or 1", name, "invalid_argument"};
  set = value && *value != "0";
  return std::nullopt;
}

std::optional<http::problem> read_write_options(const exchange& x, write_options& into) {
  into.tenant = x.who().name;
  if (auto wrong = read_flag(x, "deferred", into.deferred)) return wrong;
  return read_flag(x, "force", into.force);
}

http::problem not_by() { return {status::bad_request, "by is reference, or not there", "by", "invalid_argument"}; }

http::problem too_large(std::string message) {
  return {status::payload_too_large, std::move(message), {}, "too_large"};
}

struct counted {
  std::size_t& n;
  explicit counted(std::size_t& count) : n(count) { ++n; }
  ~counted() { --n; }
};

}  // namespace

service::service(store& s, std::vector<tier> tiers, service_options options, shared_totals all,
                 std::optional<shard_ref> home)
    : store_(s),
      tiers_(std::move(tiers)),
      options_(std::move(options)),
      room_(s.get_executor(), options_.room >> 10),
      all_(std::move(all)),
      home_(std::move(home)),
      told_(tiers_.size()),
      page_(all_->counters.sibling()) {
  all_->room += static_cast<std::int64_t>(options_.room >> 10 << 10);
  page_.add([this](http::scrape& page) { report(page); });
}

void service::add_routes(http::server& server) {
  const auto on = [&](verb method, std::string_view pattern, http::right needs,
                      awaitable<void> (service::*handler)(exchange&), http::route_options options = {}) {
    options.any_of = static_cast<std::uint8_t>(needs);
    server.route(
        method, pattern, [this, handler](exchange& x) { return within_namespace(x, handler); }, std::move(options));
  };
  using http::right;
  const std::uint64_t key_lists = 4096 + options_.frames.max_blocks * std::uint64_t{80};
  const auto begins = options_.frames.payload(frame_type::begin) + frame_header_bytes + frame_trailer_bytes;
  const std::vector<std::string> json{json_type}, frames{frames_type, "application/octet-stream"};
  const std::vector<std::string> of_match{"refresh"}, of_write{"deferred", "force"},
      of_stream{"deferred", "force", "by"};
  on(verb::post, "/v1/kv/{namespace}:match", right::read, &service::match,
     {.body_bytes = key_lists, .body_types = json, .query = of_match});
  on(verb::post, "/v1/kv/{namespace}:read", right::read, &service::read,
     {.body_bytes = begins, .body_types = frames, .query = {"by"}});
  on(verb::post, "/v1/kv/{namespace}:write", right::write, &service::write,
     {.body_bytes = options_.max_body, .body_types = frames, .descriptors = true, .query = of_stream});
  on(verb::put, "/v1/kv/{namespace}/{key}", right::write, &service::put,
     {.body_bytes = options_.max_body, .body_types = frames, .query = of_write});
  on(verb::get, "/v1/kv/{namespace}/{key}", right::read, &service::get);
  on(verb::delete_, "/v1/kv/{namespace}/{key}", right::write, &service::remove);
  server.route(verb::get, "/v1/info", [this](exchange& x) -> awaitable<void> {
    co_await ask();
    co_await x.respond(status::ok, json_type, info(x.who().may(http::right::admin)));
  });
  if (options_.lending)
    server.route(verb::get, "/v1/memory", [this](exchange& x) { return show_memory(x); },
                 {.any_of = static_cast<std::uint8_t>(right::read)});
  if (options_.events)
    server.route(verb::get, "/v1/events", [this](exchange& x) { return follow(x, *options_.events); },
                 {.any_of = right::read | right::admin, .query = {"namespace"}});
  const auto tell = [this](exchange& x) -> awaitable<void> {
    co_await ask();
    const auto page = page_.text();
    co_await x.respond(status::ok, "text/plain; version=0.0.4; charset=utf-8", page);
  };
  server.route(verb::get, "/metrics", tell, {.any_of = static_cast<std::uint8_t>(http::right::admin)});
  http::route_health(server);
}

awaitable<void> service::within_namespace(exchange& x, awaitable<void> (service::*handler)(exchange&)) {
  const auto ns = namespace_of(x);
  if (ns && !x.who().may_use(*ns))
    co_return (void) co_await x.refuse(
        {status::forbidden, "this API key is for other namespaces", "namespace", "permission_denied"});
  co_await (this->*handler)(x);
}

// ---- small requests

awaitable<void> service::match(exchange& x) {
  const auto ns = namespace_of(x);
  if (!ns) co_return (void) co_await x.refuse(bad_id("namespace"));
  match_options how;
  if (auto wrong = read_flag(x, "refresh", how.refresh)) co_return (void) co_await x.refuse(std::move(*wrong));
  const auto body = co_await x.read_all();
  if (!body) co_return;
  auto list = parse_key_list(*body, options_.frames.max_blocks);
  if (list.refused) co_return (void) co_await x.refuse(std::move(*list.refused));
  auto matched = co_await store_.async_match(*ns, std::move(list.keys), how, as_result);
  if (!matched) co_return co_await refuse(x, problem_of(matched.error(), transfer::reading));
  offer(x);
  co_await x.respond(status::ok, json_type, "{\"matched\":" + std::to_string(*matched) + "}");
}

awaitable<void> service::remove(exchange& x) {
  const auto ns = namespace_of(x);
  if (!ns) co_return (void) co_await x.refuse(bad_id("namespace"));
  const auto key = key_of(x);
  if (!key) co_return (void) co_await x.refuse(bad_id("key"));
  auto gone = co_await store_.async_remove(*ns, *key, as_result);
  if (!gone) co_return co_await refuse(x, problem_of(gone.error(), transfer::reading));
  co_await x.respond(status::no_content, "", "");
}

awaitable<void> service::refuse(exchange& x, http::problem p) {
  if (p.code == status::service_unavailable) x.set(http::field::retry_after, "1");
  co_await x.refuse(std::move(p));
}

// ---- room

std::uint64_t service::max_held() const { return (options_.room >> 10 << 10) - 1; }

std::uint64_t service::max_segment() const {
  const auto around = stream_bytes({{0}}, 1);
  const auto in_body = options_.max_body > around ? options_.max_body - around : 0;
  return std::min({options_.frames.max_segment, in_body, max_held()});
}

// Readers keep what they read from being given up. When a write has found no room they have to keep up for a while, so that
// it finds some when it is tried again.
bool service::pressed() const { return clock::of(store_.get_executor()).now() < all_->pressed_until.load(); }

service::held_room service::held_for(exchange& x, permit room, std::uint64_t bytes) {
  // It may outlive the exchange, in a context that is destroyed; the exchange may outlive it anyway.
  const auto taken = static_cast<std::int64_t>(((bytes >> 10) + 1) << 10);
  all_->room -= taken;
  auto holding = std::shared_ptr<const bool>(new bool(true), [all = all_, taken](const bool* p) {
    all->room += taken;
    delete p;
  });
  x.contend([this, held = std::weak_ptr(holding)] { return (waiting_ != 0 || pressed()) && !held.expired(); }, bytes);
  return {std::move(room), std::move(holding)};
}

awaitable<boost::system::result<service::held_room, http::problem>> service::hold(exchange& for_whom,
                                                                                  std::uint64_t bytes) {
  const auto wanted = (bytes >> 10) + 1;
  if (bytes > max_held())
    co_return too_large("a layer of all blocks is " + std::to_string(bytes) + " bytes; one transfer may hold " +
                        std::to_string(max_held()));
  if (auto now = room_.try_acquire(wanted)) co_return held_for(for_whom, std::move(*now), bytes);
  counted in_line(waiting_);
  auto turn = co_await with_deadline(room_.async_acquire(wanted, asio::deferred), options_.patience);
  if (turn) co_return held_for(for_whom, std::move(*turn), bytes);
  co_return http::problem{status::service_unavailable,
                          "other transfers have taken the memory that is meant for them; try again",
                          {},
                          "busy"};
}

// ---- uploads

std::optional<http::problem> service::check_begin(const stream_begin& about, namespace_id ns,
                                                  const block_key* only) const {
  if (about.ns != ns) return problem_of(errc::namespace_mismatch, transfer::storing);
  if (only && (about.keys.size() != 1 || about.keys[0] != *only))
    return http::problem{status::bad_request, "the stream's only key has to be the one in the path", "key",
                         "invalid_argument"};
  if (const auto whole = stream_bytes(about.layout, about.keys.size()); whole > options_.max_body)
    return too_large("the stream that is announced is " + std::to_string(whole) + " bytes; a body may have " +
                     std::to_string(options_.max_body));
  return std::nullopt;
}

http::problem service::problem_of_stream(const stream_parser& parser, transfer way) const {
  if (parser.from_peer()) {  // an error frame: its sender gave up, whatever it says the reason is
    const auto& said = parser.peer_text().empty() ? parser.error().message() : parser.peer_text();
    return {status::bad_request, "the sender gave up: " + said, {}, "aborted"};
  }
  if (parser.error() != errc::too_large) return problem_of(parser.error(), way);
  const auto& f = options_.frames;
  return too_large("a stream has at most " + std::to_string(f.max_blocks) + " blocks of " +
                   std::to_string(f.max_layers) + " layers, " + std::to_string(max_segment()) + " bytes a segment");
}

// Takes a stream in: straight to where the store keeps its segments, or else into memory for one layer. A layer is handed
// to the store when all of it is verified, and the blocks become visible when the stream was complete. What comes back
// with the body broken is not looked at.
awaitable<std::optional<http::problem>> service::store_stream(exchange& x, stream_receiver& in, namespace_id ns,
                                                              write_options how, const block_key* only) {
  const auto failed = [](error_code ec) { return problem_of(ec, transfer::storing); };
  held_room held;
  std::optional<upload_memory> memory;
  for (;;) {
    switch (in.next()) {
      case stream_event::begun: {
        const auto& about = in.about();
        if (auto wrong = check_begin(about, ns, only)) co_return wrong;
        const auto bytes = layer_memory::needed(about.layout, about.keys.size());
        auto room = co_await hold(x, bytes);
        if (!room) co_return room.error();
        held = std::move(*room);
        auto opened = co_await store_.async_open_write(ns, about.layout, about.keys, how, as_result);
        if (!opened) co_return co_await quota_or(failed(opened.error()), how.tenant, about);
        memory.emplace(about, std::move(*opened));
        memory->expect(in);
        x.next_turn(about.layout.segments[0] * about.keys.size());
        break;
      }
      case stream_event::segment:  // never before begun, and all layers to come are expected
        co_return failed(errc::protocol);
      case stream_event::arrived:
        memory->arrived(in.block(), in.digest());
        break;
      case stream_event::layer: {
        const auto& about = in.about();
        const auto done = in.layer();
        if (auto ec = co_await memory->store_layer(done)) co_return failed(ec);
        if (done + 1 == about.layout.layers()) break;
        memory->expect(in);
        x.next_turn(about.layout.segments[done + 1] * about.keys.size());
        break;
      }
      case stream_event::ended: {
        std::array<std::byte, 1> beyond;
        auto n = in.unread() == 0 ? co_await x.read_some(asio::buffer(beyond)) : result<std::size_t>(in.unread());
        if (!n) co_return failed(n.error());
        if (*n != 0) co_return failed(errc::protocol);
        auto visible = co_await memory->writer().async_commit(as_result);
        if (!visible) co_return failed(visible.error());
        co_return std::nullopt;
      }
      case stream_event::damaged:
        ++all_->damaged;
        co_return failed(errc::digest_mismatch);
      case stream_event::missing:  // a write of what does not come
        co_return http::problem{
            status::bad_request, "a write brings all its blocks: nothing was stored", {}, "invalid_argument"};
      case stream_event::acked:
        co_return failed(errc::protocol);
      case stream_event::failed:
        if (!in.parser().from_peer() && in.error() == errc::digest_mismatch) ++all_->damaged;
        co_return problem_of_stream(in.parser(), transfer::storing);
      case stream_event::more: {
        auto n = co_await x.read_some(in.room());
        if (!n) co_return failed(n.error());
        if (*n == 0) co_return failed(errc::protocol);  // cut
        in.filled(*n);
        break;
      }
    }
  }
}

// A write that would be beyond its tenant's quota hears so, not that the store is full. Of several tiers the last one
// decides; what another has no room for is not kept there.
awaitable<http::problem> service::quota_or(http::problem p, std::string tenant, const stream_begin& about) {
  if (p.code != status::insufficient_storage && p.reason != "too_large") co_return p;
  if (tiers_.empty()) co_return p;
  co_await ask();
  const auto last = info_of(tiers_.size() - 1);
  const auto block = last.kind == "file" ? file_store::bytes_of(about.layout, last.direct) : about.layout.bytes();
  const auto bytes = block * about.keys.size();
  for (const auto& t : last.tenants)
    if (t.name == tenant && t.quota_bytes != 0 && t.used_bytes + bytes > t.quota_bytes)
      co_return http::problem{status::insufficient_storage,
                              "the quota of " + tenant + " is " + std::to_string(t.quota_bytes) + " bytes of " +
                                  tiers_.back().name + ", and what it has can't be given up or is too little",
                              {},
                              "quota_exceeded"};
  co_return p;
}

awaitable<service::upload> service::receive(exchange& x, namespace_id ns, write_options how, const block_key* only) {
  stream_receiver in(options_.frames);
  auto refused = co_await store_stream(x, in, ns, std::move(how), only);
  note(refused);
  co_return upload{in.about(), std::move(refused)};
}

void service::note(const std::optional<http::problem>& refused) {
  constexpr duration for_readers = std::chrono::seconds(30);
  const auto now = clock::of(store_.get_executor()).now();
  if (refused && refused->code == status::insufficient_storage) all_->pressed_until = now + for_readers;
  const bool full = refused && refused->code == status::insufficient_storage && refused->reason != "quota_exceeded";
  if (full)
    if (const auto said = all_->full.refused(now)) spdlog::warn("{}", *said);
  if (!refused)
    if (const auto said = all_->full.stored(now)) spdlog::info("{}", *said);
}

awaitable<void> service::write(exchange& x) {
  const auto ns = namespace_of(x);
  if (!ns) co_return (void) co_await x.refuse(bad_id("namespace"));
  write_options how;
  if (auto wrong = read_write_options(x, how)) co_return (void) co_await x.refuse(std::move(*wrong));
  const auto by = x.request().query_value("by");
  if (by && *by != "reference") co_return co_await refuse(x, not_by());
  auto taken = by ? co_await take(x, *ns, how) : co_await receive(x, *ns, how, nullptr);
  if (x.body_error()) co_return;
  if (taken.refused) co_return co_await refuse(x, std::move(*taken.refused));
  offer(x);
  const auto ack = ack_frame(*ns, taken.about.generation, {}, static_cast<std::uint32_t>(taken.about.keys.size()));
  co_await x.respond(how.deferred ? status::accepted : status::ok, frames_type,
                     {reinterpret_cast<const char*>(ack.data()), ack.size()});
}

awaitable<void> service::put(exchange& x) {
  const auto ns = namespace_of(x);
  if (!ns) co_return (void) co_await x.refuse(bad_id("namespace"));
  const auto key = key_of(x);
  if (!key) co_return (void) co_await x.refuse(bad_id("key"));
  write_options how;
  if (auto wrong = read_write_options(x, how)) co_return (void) co_await x.refuse(std::move(*wrong));
  auto taken = co_await receive(x, *ns, how, &*key);
  if (x.body_error()) co_return;
  if (taken.refused) co_return co_await refuse(x, std::move(*taken.refused));
  co_await x.respond(how.deferred ? status::accepted : status::no_content, "", "");
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
  if (event == stream_event::failed) {
    if (!parser.from_peer() && parser.error() == errc::digest_mismatch) ++all_->damaged;
    co_return co_await refuse(x, problem_of_stream(parser, transfer::reading));
  }
  if (event != stream_event::begun || !in.empty())
    co_return co_await refuse(x, {status::bad_request, "a read is asked for with one begin frame", {}, "protocol"});
  if (parser.about().ns != *ns) co_return co_await refuse(x, problem_of(errc::namespace_mismatch, transfer::reading));
  const auto by = x.request().query_value("by");
  if (by && *by != "reference") co_return co_await refuse(x, not_by());
  co_await (by ? lend(x, parser.about()) : send(x, parser.about()));
}

awaitable<void> service::get(exchange& x) {
  const auto ns = namespace_of(x);
  if (!ns) co_return (void) co_await x.refuse(bad_id("namespace"));
  const auto key = key_of(x);
  if (!key) co_return (void) co_await x.refuse(bad_id("key"));
  auto layout = co_await store_.async_layout(*ns, *key, as_result);
  if (!layout) co_return co_await refuse(x, problem_of(layout.error(), transfer::reading));
  stream_begin about{.ns = *ns, .layout = std::move(*layout), .keys = {*key}};
  if (x.request().method != verb::head) co_return co_await send(x, std::move(about));
  x.start(status::ok, frames_type, stream_bytes(about.layout, 1));
  co_await x.finish();
}

awaitable<void> service::send(exchange& x, stream_begin about) {
  auto opened = co_await store_.async_open_read(about.ns, about.layout, about.keys, as_result);
  if (!opened) co_return co_await refuse(x, problem_of(opened.error(), transfer::reading));
  auto reader = std::move(*opened);
  const auto found = static_cast<std::uint32_t>(reader->found());
  held_room held;
  if (found != 0) {
    auto room = co_await hold(x, layer_memory::needed(about.layout, found));
    if (!room) co_return co_await refuse(x, room.error());
    held = std::move(*room);
  }
  block_sender sender(std::move(about), found);
  offer(x);
  x.start(status::ok, frames_type, sender.length());
  co_await sender.run(x, *reader);
}

}  // namespace cokv::cache
