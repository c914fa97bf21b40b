#include "http/client_pool.hpp"

#include <algorithm>
#include <array>

#include "cokv/runtime/deadline.hpp"

namespace cokv::http::detail {
namespace {

constexpr std::size_t head_bytes = 16 << 10, read_ahead_bytes = 64 << 10;

// It becomes part of the request's first line.
bool is_target(std::string_view target) {
  return target.starts_with('/') && std::ranges::all_of(target, [](unsigned char c) { return c > 0x20 && c < 0x7f; });
}

struct counted {
  explicit counted(std::size_t& n) : of(n) { ++of; }
  counted(const counted&) = delete;
  ~counted() { --of; }
  std::size_t& of;
};

}  // namespace

client_connection::client_connection(byte_stream s, std::function<void()> on_expiry)
    : io(std::move(s), read_ahead_bytes), expiry(io.stream.get_executor(), std::move(on_expiry)) {}

// ---- an exchange

client_exchange::client_exchange(std::shared_ptr<client_pool> pool, std::unique_ptr<client_connection> connection)
    : pool_(std::move(pool)), connection_(std::move(connection)) {
  pool_->lent.push_back(this);
}

client_exchange::~client_exchange() { std::erase(pool_->lent, this); }

error_code client_exchange::told(error_code ec) const {
  if (pool_->closed) return errc::closed;
  return ec == asio::error::eof ? make_error_code(errc::unavailable) : ec;
}

awaitable<error_code> client_exchange::write(std::span<asio::const_buffer> bytes) {
  for (std::size_t i = 0; i < bytes.size();) {
    if (bytes[i].size() == 0) {
      ++i;
      continue;
    }
    auto n = connection_->io.write_now(bytes.subspan(i));
    if (!n) n = co_await connection_->io.write_some(bytes.subspan(i), silence_);
    if (!n) co_return n.error();
    for (auto left = *n; left > 0;) {
      const auto part = std::min(left, bytes[i].size());
      bytes[i] += part;
      left -= part;
      if (bytes[i].size() == 0) ++i;
    }
  }
  co_return error_code();
}

awaitable<error_code> client_exchange::read_ahead(duration limit) {
  auto n = co_await connection_->io.read_ahead(limit);
  if (n) heard_ = true;
  if (!n) late_ |= n.error() == errc::deadline;
  co_return n ? error_code() : told(n.error());
}

awaitable<error_code> client_exchange::read_head(duration first_byte) {
  auto& ahead = connection_->io.ahead;
  auto limit = ahead.size() == 0 ? first_byte : silence_;
  for (;;) {
    parser_.emplace();
    parser_->header_limit(head_bytes);
    parser_->body_limit(boost::none);
    parser_->eager(false);
    while (!parser_->is_header_done()) {
      if (ahead.size() != 0) {
        error_code ec;
        ahead.consume(parser_->put(ahead.data(), ec));
        if (ec && ec != beast::http::error::need_more) co_return errc::protocol;
        if (parser_->is_header_done()) break;
      }
      if (auto ec = co_await read_ahead(limit)) co_return ec;
      limit = silence_;
    }
    if (code() >= 200) break;  // what comes before is only to say that one is still at it
    limit = first_byte;
  }
  co_return parser_->need_eof() ? make_error_code(errc::protocol) : error_code();
}

awaitable<error_code> client_exchange::begin(const client_request& r) {
  const auto& o = pool_->options;
  silence_ = r.silence.value_or(o.silence);
  std::string head(beast::http::to_string(r.method));
  head += ' ' + r.target + " HTTP/1.1\r\nHost: " + pool_->at.authority() + "\r\n";
  if (!o.api_key.empty()) head += "Authorization: Bearer " + o.api_key + "\r\n";
  if (o.more_fields) head += o.more_fields();
  if (!r.body.empty()) head += "Content-Type: " + r.type + "\r\n";
  if (!r.body.empty() || (r.method != verb::get && r.method != verb::delete_))
    head += "Content-Length: " + std::to_string(r.body.size()) + "\r\n";
  for (const auto& f : r.fields) head += std::string(f.name_string()) + ": " + std::string(f.value()) + "\r\n";
  head += "\r\n";
  std::array<asio::const_buffer, 2> bytes{asio::buffer(head), asio::buffer(r.body)};
  const auto unsent = co_await write(bytes);
  if (unsent == errc::deadline) late_ = true;
  // A server may refuse before it has read everything, and close: its answer says more than the failed write.
  if (unsent && (late_ || unsent == asio::error::operation_aborted)) co_return told(unsent);
  const auto unread = co_await read_head(r.first_byte.value_or(o.first_byte));
  co_return unread&& unsent ? told(unsent) : unread;
}

awaitable<result<std::size_t>> client_exchange::read_some(asio::mutable_buffer into) {
  auto& ahead = connection_->io.ahead;
  while (!parser_->is_done()) {
    shown_ = shown_ || !parser_->chunked() || may_be_parsed(ahead);
    if (shown_ && ahead.size() != 0) {
      auto& body = parser_->get().body();
      body.data = into.data();
      body.size = into.size();
      body.more = true;
      error_code ec;
      ahead.consume(parser_->put(ahead.data(), ec));
      if (ec && ec != beast::http::error::need_more && ec != beast::http::error::need_buffer)
        co_return make_error_code(errc::protocol);
      if (const auto n = into.size() - body.size; n != 0) co_return n;
      if (ec != beast::http::error::need_more && ahead.size() != 0) continue;
    }
    if (parser_->is_done()) break;
    if (auto ec = co_await read_ahead(silence_)) co_return ec;
  }
  co_return std::size_t(0);
}

awaitable<result<std::string>> client_exchange::read_all(std::uint64_t limit) {
  const auto length = parser_->content_length();
  if (length && *length > limit) co_return errc::too_large;
  std::string body;
  std::array<char, 16 << 10> some;
  for (;;) {
    auto n = co_await read_some(asio::buffer(some));
    if (!n) co_return n.error();
    if (*n == 0) co_return body;
    if (*n > limit - body.size()) co_return errc::too_large;
    body.append(some.data(), *n);
  }
}

void client_exchange::keep() {
  if (!parser_->is_done() || !parser_->keep_alive() || connection_->io.ahead.size() != 0) return;
  auto back = std::exchange(connection_, nullptr);
  std::erase(pool_->lent, this);
  pool_->take_back(std::move(back));
}

// ---- the pool

client_pool::client_pool(asio::any_io_executor e, server_url to, client_options o)
    : ex(std::move(e)), at(std::move(to)), options(std::move(o)) {
  if (at.secure && !options.tls) options.tls = tls_context::client();
}

awaitable<result<byte_stream>> client_pool::connect() {
  auto stream = co_await with_deadline(network::of(ex).async_connect(at.at), options.connect);
  if (!stream || !at.secure) co_return stream;
  co_return co_await with_deadline(async_tls_connect(std::move(*stream), options.tls, at.at.host), options.connect);
}

awaitable<result<std::unique_ptr<client_exchange>>> client_pool::lend(bool fresh) {
  const auto self = shared_from_this();
  if (closed) co_return make_error_code(errc::closed);
  if (lent.size() + connecting >= options.max_connections) co_return make_error_code(errc::queue_full);
  if (!fresh && !idle.empty()) {
    auto kept = std::move(idle.back());
    idle.pop_back();
    kept->io.unwatch();
    kept->expiry.relax();
    co_return std::make_unique<client_exchange>(self, std::move(kept));
  }
  const counted one(connecting);
  auto stream = co_await connect();
  if (!stream) co_return closed ? make_error_code(errc::closed) : stream.error();
  if (closed) co_return make_error_code(errc::closed);
  auto made = std::make_shared<client_connection*>(nullptr);
  auto connection = std::make_unique<client_connection>(std::move(*stream), [this, made] { drop(*made); });
  *made = connection.get();
  co_return std::make_unique<client_exchange>(self, std::move(connection));
}

awaitable<result<std::unique_ptr<client_exchange>>> client_pool::start(const client_request& r) {
  const auto self = shared_from_this();
  if (!is_target(r.target)) co_return make_error_code(errc::invalid_argument);
  const bool repeatable = r.repeatable.value_or(r.method != verb::post);
  for (bool fresh = false;; fresh = true) {
    auto exchange = co_await lend(fresh);
    if (!exchange) co_return exchange.error();
    const auto ec = co_await (*exchange)->begin(r);
    if (!ec) co_return exchange;
    if (fresh || closed || !repeatable || !(*exchange)->stale()) co_return ec;
  }
}

void client_pool::take_back(std::unique_ptr<client_connection> connection) {
  if (closed || idle.size() >= options.max_idle) return;
  auto* one = connection.get();
  one->answered = true;
  one->expiry.expect_within(options.keep_alive);
  idle.push_back(std::move(connection));
  // Whatever comes before the next request is the end, or nothing that was asked for.
  one->io.watch([this, one](error_code) { drop(one); });
}

void client_pool::drop(const client_connection* one) {
  std::erase_if(idle, [one](const auto& other) { return other.get() == one; });
}

void client_pool::close() {
  closed = true;
  idle.clear();
  for (auto* one : lent) one->close();
}

}  // namespace cokv::http::detail
