#include "http/connection.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/beast/http/rfc7230.hpp>

#include "cokv/runtime/deadline.hpp"

namespace cokv::http::detail {
namespace {

namespace bh = beast::http;

constexpr std::size_t pipelined_bytes = 64 << 10;  // read ahead of the request that is being answered

problem problem_of(error_code ec, std::size_t header_limit) {
  if (ec == bh::error::header_limit || ec == errc::too_large)
    return {status::request_header_fields_too_large,
            "the request's header is larger than " + std::to_string(header_limit) + " bytes"};
  if (ec == bh::error::bad_version)
    return {status::http_version_not_supported, "only HTTP/1.0 and HTTP/1.1 are spoken here"};
  if (ec == errc::deadline) return {status::request_timeout, "the request's header took too long"};
  return {status::bad_request, "malformed HTTP request: " + ec.message(), {}, "malformed_request"};
}

problem forbidden(std::uint8_t any_of) {
  std::string wanted;
  for (const auto& [r, word] : {std::pair(right::read, "read"), {right::write, "write"}, {right::admin, "admin"}})
    if (any_of & static_cast<std::uint8_t>(r)) wanted += (wanted.empty() ? "" : " or ") + std::string(word);
  return {status::forbidden, "this API key has not the right to do that: it takes " + wanted, {}, "permission_denied"};
}

// What a handler left unanswered because the body could not be read.
std::optional<problem> problem_of_body(error_code ec, std::uint64_t limit) {
  if (ec == errc::too_large)
    return problem{status::payload_too_large, "the request body is larger than " + std::to_string(limit) + " bytes"};
  if (ec == errc::deadline)
    return problem{status::request_timeout, "the request body came too slowly, or stopped coming"};
  if (ec == errc::protocol)
    return problem{status::bad_request, "malformed request body: its chunks are broken", {}, "malformed_request"};
  return std::nullopt;  // the client has gone
}

}  // namespace

connection::connection(std::shared_ptr<server_state> s, byte_stream stream)
    : server_(std::move(s)),
      wire_(std::move(stream), server_->options.limit.header_bytes + pipelined_bytes),
      at_(server_->connections.insert(server_->connections.end(), this)),
      since_(clock::of(server_->ex).now()) {}

connection::~connection() {
  server_->connections.erase(at_);
  server_->changed.try_send(true);
}

void connection::close() {
  if (shaking_) shaking_->cancel();
  wire_.stream.close();
}

// A client that is slow, or speaks no TLS, is none of the others' business: it is counted, and gone.
awaitable<bool> connection::shake_hands() {
  if (server_->draining) co_return false;
  const auto peer = wire_.stream.peer();
  result<byte_stream> secure = make_error_code(asio::error::operation_aborted);
  ++server_->handshakes;
  auto ended = co_await with(task_group{}, [&](task_group& scope) -> awaitable<void> {
    shaking_ = &scope;
    secure = co_await with_deadline(async_tls_accept(std::move(wire_.stream), server_->options.tls),
                                    server_->options.limit.handshake);
  });
  shaking_ = nullptr;
  --server_->handshakes;
  server_->changed.try_send(true);
  if (ended && secure) wire_.stream = std::move(*secure);
  if (ended && secure) co_return true;
  ++server_->failed_handshakes;
  if (server_->options.handshake_failed) server_->options.handshake_failed();
  spdlog::debug("{}: {}", peer, (ended ? secure.error() : ended.error()).message());
  co_return false;
}

awaitable<void> connection::run() {
  if (server_->options.tls && !co_await shake_hands()) co_return;
  for (;;) {
    idle_ = true;
    since_ = clock::of(server_->ex).now();
    server_->changed.try_send(true);
    if (server_->draining) co_return;
    if (wire_.ahead.size() == 0) {
      if (!co_await wire_.read_ahead(server_->options.limit.idle)) co_return;
    }
    idle_ = false;
    switch (co_await serve_one()) {
      case next::again:
        continue;
      case next::end:
        co_return;
      case next::linger:
        co_await linger();
        co_return;
    }
  }
}

// Beast's parser, fed by hand: its own read operation can lose a cancellation between two reads, and a client that
// sends a byte at a time would then keep the connection.
awaitable<result<void>> connection::read_head(exchange::parser& parser) {
  auto& time = clock::of(server_->ex);
  const auto until = time.now() + server_->options.limit.header;
  for (;;) {
    if (wire_.ahead.size() != 0) {
      error_code ec;
      wire_.ahead.consume(parser.put(wire_.ahead.data(), ec));
      if (ec && ec != bh::error::need_more) co_return ec;
      if (parser.is_header_done()) co_return result<void>();
      if (!ec && wire_.ahead.size() != 0) continue;
    }
    const auto left = until - time.now();
    if (left <= duration(0)) co_return make_error_code(errc::deadline);
    if (auto n = co_await wire_.read_ahead(left); !n) co_return n.error();
  }
}

std::optional<problem> connection::check_head(exchange::parser& parser, request_head& head) {
  auto& message = parser.get();
  head.method = message.method();
  head.version = message.version();
  const auto target = message.target();
  if (head.version != 10 && head.version != 11)
    return problem_of(bh::error::bad_version, server_->options.limit.header_bytes);
  if (parse_target({target.data(), target.size()}, head))
    return problem{status::bad_request, "malformed request target", {}, "malformed_request"};
  if (const auto hosts = message.count(field::host); hosts > 1 || (head.version == 11 && hosts == 0))
    return problem{status::bad_request, "a request has one Host header", {}, "malformed_request"};
  // Where another reader may see the end of the request elsewhere, it is none.
  const auto lengths = message.count(field::content_length), codings = message.count(field::transfer_encoding);
  const auto length = message[field::content_length];
  const bool digits = std::all_of(length.begin(), length.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (!digits || lengths + codings > 1 || (codings != 0 && head.version == 10))
    return problem{status::bad_request, "a request says once how long it is", {}, "malformed_request"};
  if (codings != 0 && !beast::iequals(message[field::transfer_encoding], "chunked"))
    return problem{status::not_implemented, "the only transfer encoding spoken here is chunked"};
  if (auto coding = message[field::content_encoding]; !coding.empty() && !beast::iequals(coding, "identity"))
    return problem{status::unsupported_media_type, "request bodies are read without content encoding"};
  head.fields = message.base();
  return std::nullopt;
}

// A parameter without a meaning, or a body of another kind, is a mistake that its sender wants to hear of.
std::optional<problem> connection::check_use(const request_head& head, const exchange& x,
                                             const route_options& route) const {
  for (auto at = head.query.begin(); at != head.query.end(); ++at) {
    const auto& name = at->first;
    if (std::find(route.query.begin(), route.query.end(), name) == route.query.end())
      return problem{status::bad_request, "the query parameter " + name + " means nothing here", name,
                     "unknown_parameter"};
    if (std::any_of(head.query.begin(), at, [&](auto& p) { return p.first == name; }))
      return problem{status::bad_request, "the query parameter " + name + " is there twice", name, "invalid_argument"};
  }
  if (x.body_done() || route.body_types.empty()) return std::nullopt;
  const auto given = head.fields[field::content_type];
  auto type = std::string_view(given.data(), given.size());
  type = type.substr(0, type.find(';'));
  while (!type.empty() && type.back() == ' ') type.remove_suffix(1);
  if (type.empty()) return std::nullopt;
  std::string wanted;
  for (const auto& t : route.body_types) {
    if (beast::iequals(beast::string_view(type.data(), type.size()), t)) return std::nullopt;
    wanted += (wanted.empty() ? "" : " or ") + t;
  }
  return problem{status::unsupported_media_type,
                 "the request body is " + std::string(type) + "; send it with Content-Type: " + wanted};
}

awaitable<connection::next> connection::serve_one() {
  auto& time = clock::of(server_->ex);
  const auto start = time.now();
  exchange::parser parser;
  parser.header_limit(static_cast<std::uint32_t>(server_->options.limit.header_bytes));
  parser.body_limit(boost::none);  // bounded by the exchange, route by route

  const auto read = co_await read_head(parser);
  request_head head;
  std::optional<problem> refused;
  if (!read) {
    // Nobody is there to hear of it, unless it is the request itself that is at fault.
    const auto ec = read.error();
    if (ec != errc::deadline && ec != errc::too_large &&
        &ec.category() != &make_error_code(bh::error::need_more).category())
      co_return next::end;
    refused = problem_of(ec, server_->options.limit.header_bytes);
  } else {
    refused = check_head(parser, head);
  }

  const bool sound = read && !refused;
  exchange x(wire_, server_->options.limit, parser, head, server_->now, sound);
  auto found = refused ? decltype(server_->routes)::match{} : server_->routes.find(head.method, head.path);
  const bool open = found.target && (*found.target)->options.open;
  if (!refused && !open) {
    const auto given = head.fields[field::authorization];
    const auto who = server_->options.keys.find({given.data(), given.size()});
    if (who) x.identify(who);
    if (!who) {
      x.set(field::www_authenticate, "Bearer realm=\"cokv\"");
      refused = problem{status::unauthorized,
                        given.empty() ? "this server needs an API key: Authorization: Bearer KEY" : "unknown API key",
                        {},
                        "invalid_api_key"};
    }
  }
  if (!refused && server_->admit) {
    refused = server_->admit(x, time.now());
    if (refused && refused->code == status::service_unavailable) x.set(field::retry_after, "1");
  }
  if (!refused && found.allowed.empty())
    refused = problem{status::not_found, "no such route: " + head.path, {}, "unknown_route"};
  if (!refused && !found.target) {
    x.set(field::allow, found.allowed);
    refused = problem{status::method_not_allowed, head.path + " answers " + found.allowed, {}, "method_not_allowed"};
  }
  if (found.target && !open && !refused && !x.who().may_any((*found.target)->options.any_of))
    refused = forbidden((*found.target)->options.any_of);
  if (found.target && !refused) refused = check_use(head, x, (*found.target)->options);
  if (found.target && !refused) {
    const auto limit = (*found.target)->options.body_bytes.value_or(server_->options.limit.body_bytes);
    x.limit_body(limit);
    if (x.content_length() && *x.content_length() > limit) refused = problem_of_body(errc::too_large, limit);
  }

  // Beside requests that are read ahead they may be of one of those.
  const bool wanted = !refused && (*found.target)->options.descriptors;
  if (!wanted && (!x.body_done() || wire_.ahead.size() == 0)) wire_.drop_descriptors();
  wire_.keep_descriptors(wanted || x.body_done());

  if (refused) {
    co_await x.refuse(*refused);
  } else {
    head.parameters = std::move(found.parameters);
    co_await answer(x, **found.target);
  }
  if (!peer_gone_) co_await x.skip_body();
  if (wire_.ahead.size() == 0) wire_.drop_descriptors();  // else they may be the next request's
  wire_.keep_descriptors(true);

  const served record{head.method, found.target ? std::string_view((*found.target)->pattern) : std::string_view(),
                      x.code(),    x.received(),
                      x.sent(),    time.now() - start};
  spdlog::debug("{} {} {} -> {} in {:.1f} ms", x.peer(), std::string_view(bh::to_string(head.method)), head.path,
                static_cast<unsigned>(x.code()), std::chrono::duration<double, std::milli>(record.took).count());
  if (server_->options.observe) server_->options.observe(record);
  if (peer_gone_ || !x.finished()) co_return next::end;
  co_return x.reusable() ? next::again : next::linger;
}

awaitable<void> connection::answer(exchange& x, const target& to) {
  struct count {
    std::size_t& n;
    explicit count(std::size_t& n) : n(n) { ++n; }
    ~count() { --n; }
  } running(server_->running);

  auto ended = co_await with(task_group{}, [&](task_group& scope) -> awaitable<void> {
    handler_ = &scope;
    // While the body is on its way the handler itself reads the stream.
    auto watch = [this, &scope, &x] { watch_peer(x, scope); };
    if (x.body_done())
      watch();
    else
      x.watch_with(watch);
    co_await handle(x, to, scope);
  });
  x.watch_with({});
  wire_.unwatch();
  handler_ = nullptr;
  (void)ended;  // the client's going is told by peer_gone_
  if (stopped_ && !peer_gone_) co_await say_farewell(x);
}

bool connection::stop_handler() {
  if (!handler_ || std::exchange(stopped_, true)) return false;
  handler_->cancel();
  return true;
}

awaitable<void> connection::say_farewell(exchange& x) {
  if (x.started()) co_return co_await x.say_last_words();
  x.close_after();
  x.set(field::retry_after, "1");
  co_await x.refuse({status::service_unavailable, "the server is shutting down", {}, "shutting_down"});
}

awaitable<void> connection::handle(exchange& x, const target& to, const task_group& scope) {
  std::string failure;
  try {
    co_await to.run(x);
  } catch (const boost::system::system_error& e) {
    if (scope.cancelled()) throw;  // nobody waits for an answer
    failure = e.what();
  } catch (const std::exception& e) {
    failure = e.what();
  }
  if (!failure.empty()) spdlog::error("{} {}: {}", x.peer(), to.pattern, failure);
  if (!failure.empty()) x.withdraw();
  if (x.started()) co_return;
  const auto limit = to.options.body_bytes.value_or(server_->options.limit.body_bytes);
  if (x.body_error()) {
    if (auto p = problem_of_body(x.body_error(), limit)) co_await x.refuse(*p);
  } else {
    if (failure.empty()) spdlog::error("{} {}: the handler gave no answer", x.peer(), to.pattern);
    co_await x.refuse({status::internal_server_error, "the server failed to answer; its log says why"});
  }
}

// Reads ahead what a pipelining client sends; an end or an error means that nobody waits for the answer any more.
void connection::watch_peer(exchange& x, task_group& scope) {
  wire_.watch([this, &x, &scope](error_code ec) {
    if (ec) {
      peer_gone_ = true;
      x.has_left();
      scope.fail(errc::closed);  // cancels the handler
    } else if (x.stays()) {
      wire_.ahead.consume(wire_.ahead.size());
    }
  });
}

// A close with unread bytes would reset the connection, and the answer with it. More may come after any answer (the rest
// of a body, requests that were pipelined, stray bytes): read on until the client has closed too, for a little while.
awaitable<void> connection::linger() {
  auto& time = clock::of(server_->ex);
  const auto& limit = server_->options.limit;
  const auto until = time.now() + limit.linger;
  lingering_ = true;
  wire_.keep_descriptors(false);
  wire_.drop_descriptors();
  wire_.stream.shutdown_send();
  for (std::uint64_t seen = 0; seen < limit.linger_bytes;) {
    seen += wire_.ahead.size();
    wire_.ahead.consume(wire_.ahead.size());
    since_ = time.now();
    server_->changed.try_send(true);
    const auto left = until - since_;
    if (left <= duration(0)) co_return;
    if (!co_await wire_.read_ahead(left)) co_return;
  }
}

}  // namespace cokv::http::detail
