#include "store/http_client.hpp"

#include <boost/beast/core/string.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>

#include "cokv/runtime/detail/lazy_deadline.hpp"
#include "cokv/runtime/error.hpp"

namespace cokv::detail {
namespace http = boost::beast::http;
namespace {

constexpr std::size_t head_limit = 16 << 10;
constexpr std::size_t head_bytes = 1 << 10;  // what most heads fit in: what comes along of a body is copied once more

auto as_tuple() { return asio::as_tuple(asio::deferred); }

}  // namespace

// What the deadline's handler shares with the connection.
struct http_connection::state : std::enable_shared_from_this<state> {
  state(byte_stream s) : stream(std::move(s)), deadline(stream.get_executor(), [this] { expire(); }) {}

  byte_stream stream;
  lazy_deadline deadline;
  std::function<void()> on_expiry;
  bool open = true;
  bool expired = false;

  void expire() {
    const auto held = shared_from_this();
    expired = true;
    close();
    if (on_expiry) std::exchange(on_expiry, nullptr)();
  }

  void close() {
    if (!std::exchange(open, false)) return;
    stream.close();
    deadline.end();
  }
};

http_connection::http_connection(byte_stream stream, const http_client_options& options)
    : state_(std::make_shared<state>(std::move(stream))), options_(options), in_(head_limit) {}

http_connection::~http_connection() { close(); }

void http_connection::begin_exchange() noexcept {
  state_->on_expiry = nullptr;
  state_->deadline.relax();
  heard_ = false;
}

bool http_connection::open() const noexcept { return state_->open; }

bool http_connection::quiet() { return stream().quiet(); }

void http_connection::close() {
  state_->on_expiry = nullptr;
  state_->close();
}

byte_stream& http_connection::stream() { return state_->stream; }

byte_stream::descriptor http_connection::detach() {
  auto connection = state_->stream.detach();
  if (connection) close();
  return connection;
}

void http_connection::park(duration limit, std::function<void()> on_expiry) {
  state_->on_expiry = std::move(on_expiry);
  state_->deadline.expect_within(limit);
}

error_code http_connection::translate(error_code ec) const {
  if (state_->expired) return errc::deadline;
  if (ec == asio::error::eof) return errc::unavailable;
  return ec;
}

awaitable<error_code> http_connection::write(std::span<asio::const_buffer> bytes) {
  const auto held = state_;
  buffer_cursor<asio::const_buffer> left(bytes);
  left.consume(0);
  while (!left.done()) {
    if (!held->open) co_return translate(errc::closed);
    if (const auto now = held->stream.write_now(left.next())) {
      left.consume(*now);
      continue;
    }
    held->deadline.expect_within(options_.idle);
    auto [ec, n] = co_await held->stream.async_write_some(left.next(), as_tuple());
    if (ec) co_return translate(ec);
    left.consume(n);
  }
  held->deadline.relax();
  co_return error_code();
}

result<std::size_t> http_connection::read_now(std::span<const asio::mutable_buffer> into) {
  if (in_.size() != 0) {  // what came along with the head
    const auto n = asio::buffer_copy(into, in_.data());
    in_.consume(n);
    return n;
  }
  if (!open()) return translate(errc::closed);
  const auto n = state_->stream.read_now(into);
  if (n) heard_ = true;
  return n || n.error() == asio::error::would_block ? n : translate(n.error());
}

awaitable<result<std::size_t>> http_connection::read_some(std::span<const asio::mutable_buffer> into,
                                                          std::uint64_t owed) {
  if (auto now = read_now(into); now || now.error() != asio::error::would_block) co_return now;
  const auto held = state_;
  held->deadline.expect_within(options_.idle);
  held->stream.expect(static_cast<std::size_t>(owed));
  auto [ec, n] = co_await held->stream.async_read_some(into, as_tuple());
  if (ec) co_return translate(ec);
  heard_ = true;
  held->deadline.relax();
  co_return n;
}

awaitable<error_code> http_connection::read(std::span<asio::mutable_buffer> into) {
  buffer_cursor<asio::mutable_buffer> left(into);
  left.consume(0);
  while (!left.done()) {
    auto n = co_await read_some(left.next(), asio::buffer_size(left.next()));
    if (!n) co_return n.error();
    left.consume(*n);
  }
  co_return error_code();
}

awaitable<result<http_head>> http_connection::read_head() {
  const auto held = state_;
  http::response_parser<http::empty_body> parser;
  parser.header_limit(head_limit);
  parser.body_limit(boost::none);
  parser.eager(false);
  bool first = in_.size() == 0;
  for (;;) {
    if (in_.size() != 0) {
      error_code ec;
      in_.consume(parser.put(in_.data(), ec));
      if (parser.is_header_done()) break;
      if (ec && ec != http::error::need_more) co_return errc::protocol;
    }
    if (!held->open) co_return translate(errc::closed);
    if (in_.size() >= head_limit) co_return errc::protocol;
    held->deadline.expect_within(first ? options_.first_byte : options_.idle);
    first = false;
    auto [ec, n] =
        co_await held->stream.async_read_some(in_.prepare(std::min(head_bytes, head_limit - in_.size())), as_tuple());
    if (ec) co_return translate(ec);
    in_.commit(n);
    heard_ = true;
  }
  held->deadline.relax();
  http_head head;
  head.status = parser.get().result_int();
  head.keep_alive = parser.keep_alive();
  if (auto length = parser.content_length()) head.content_length = *length;
  // Neither our server nor any other has a reason to answer these requests in chunks.
  if (parser.chunked()) co_return errc::protocol;
  head.fields = std::move(parser.get().base());
  co_return head;
}

awaitable<result<std::string>> http_connection::read_body(const http_head& head, std::size_t limit) {
  if (head.status == 204 || head.status == 304) co_return std::string();
  if (!head.content_length) co_return errc::protocol;
  if (*head.content_length > limit) co_return errc::too_large;
  std::string body(*head.content_length, '\0');
  asio::mutable_buffer into = asio::buffer(body);
  if (auto ec = co_await read({&into, 1})) co_return ec;
  co_return body;
}

http_lease::http_lease(std::shared_ptr<http_client> client, permit slot, std::unique_ptr<http_connection> connection)
    : client_(std::move(client)), slot_(std::move(slot)), connection_(std::move(connection)) {
  client_->lent_.push_back(connection_.get());
}

http_lease& http_lease::operator=(http_lease&& other) noexcept {
  if (this != &other) {
    drop();
    client_ = std::move(other.client_);
    slot_ = std::move(other.slot_);
    connection_ = std::move(other.connection_);
  }
  return *this;
}

void http_lease::end(bool reusable) {
  if (!connection_) return;
  client_->take_back(std::move(connection_), reusable);
  slot_.release();  // after it lies among the unused: who waits for a slot finds it there
  client_.reset();
}

http_client::http_client(asio::any_io_executor ex, http_url at, std::string api_key, http_client_options options,
                         tls_context tls)
    : ex_(std::move(ex)),
      at_(std::move(at)),
      api_key_(std::move(api_key)),
      tls_(std::move(tls)),
      options_(options),
      slots_(ex_, options_.max_connections) {}

http_client::~http_client() { close(); }

void http_client::close() {
  closed_ = true;
  idle_.clear();
  for (auto* connection : lent_) connection->close();
}

std::unique_ptr<http_connection> http_client::take_idle(bool shows) {
  std::erase_if(idle_, [](const auto& c) { return !c->clean() || !c->shown().may_go_on(); });
  while (!idle_.empty()) {
    auto chosen = std::find_if(idle_.rbegin(), idle_.rend(), [shows](const auto& c) { return c->shows() == shows; });
    if (chosen == idle_.rend() && shows) chosen = idle_.rbegin();
    if (chosen == idle_.rend()) return nullptr;
    auto out = std::move(*chosen);
    idle_.erase(std::next(chosen).base());
    if (out->quiet()) return out;
  }
  return nullptr;
}

awaitable<result<http_lease>> http_client::acquire(bool fresh, bool shows) {
  const auto self = shared_from_this();
  auto slot = slots_.try_acquire();
  if (!slot) {
    if (waiting_ >= options_.max_waiting) co_return errc::queue_full;
    struct place {
      std::size_t& n;
      explicit place(std::size_t& count) : n(count) { ++n; }
      ~place() { --n; }
    } in_line(waiting_);
    auto turn = co_await with_deadline(slots_.async_acquire(), options_.connect);
    if (!turn) co_return turn.error();
    slot = std::move(*turn);
  }
  if (closed_) co_return errc::closed;
  if (fresh) idle_.clear();  // what ended the peer of one of them ended the others'
  if (auto connection = take_idle(shows)) co_return http_lease(self, std::move(*slot), std::move(connection));
  auto& time = clock::of(ex_);
  if (time.now() < down_until_) co_return errc::unavailable;
  auto stream = co_await with_deadline(network::of(ex_).async_connect({at_.host, at_.port}), options_.connect);
  if (stream && tls_)
    stream = co_await with_deadline(async_tls_connect(std::move(*stream), tls_, at_.host), options_.connect);
  if (!stream) {
    if (stream.error() != asio::error::operation_aborted) {
      back_off_ = std::clamp(back_off_ * 2, options_.back_off_min, options_.back_off_max);
      down_until_ = time.now() + back_off_;
    }
    co_return stream.error();
  }
  back_off_ = {};
  if (closed_) co_return errc::closed;
  co_return http_lease(self, std::move(*slot), std::make_unique<http_connection>(std::move(*stream), options_));
}

void http_client::take_back(std::unique_ptr<http_connection> connection, bool reusable) {
  std::erase(lent_, connection.get());
  if (!reusable || closed_ || !connection->clean() || !connection->shown().may_go_on()) return;
  auto* one = connection.get();
  connection->end_exchange();
  connection->park(options_.keep_alive,
                   [this, one] { std::erase_if(idle_, [one](const auto& other) { return other.get() == one; }); });
  idle_.push_back(std::move(connection));
}

awaitable<result<http_exchange>> http_client::attempt(const http_request& request, bool fresh, bool& stale) {
  auto lease = co_await acquire(fresh, request.shows);
  if (!lease) co_return lease.error();
  auto& connection = **lease;
  connection.begin_exchange();
  std::string head = request.method + ' ' + request.target + " HTTP/1.1\r\nHost: " + at_.authority() + "\r\n";
  if (!api_key_.empty()) head += "Authorization: Bearer " + api_key_ + "\r\n";
  if (request.follows)
    head += (*request.follows == http_request::in_chunks ? std::string("Transfer-Encoding: chunked")
                                                         : "Content-Length: " + std::to_string(*request.follows)) +
            "\r\nExpect: 100-continue\r\n";
  else if (!request.body.empty() || request.method != "GET")
    head += "Content-Length: " + std::to_string(request.body.size()) + "\r\n";
  head += request.fields + "\r\n";
  std::array<asio::const_buffer, 2> bytes{asio::buffer(head), asio::buffer(request.body)};
  error_code ec = co_await connection.write(bytes);
  // A server may refuse before it has read everything, and close: its answer says more than the failed write.
  result<http_head> answer = ec;
  do {
    answer = co_await connection.read_head();
  } while (answer && answer->status == 100 && !request.follows);
  if (!answer) {
    stale = !connection.fresh() && connection.silent() && answer.error() != errc::deadline;
    co_return ec ? ec : answer.error();
  }
  co_return http_exchange{std::move(*lease), std::move(*answer)};
}

awaitable<result<http_exchange>> http_client::start(http_request request) {
  bool stale = false;
  auto exchange = co_await attempt(request, false, stale);
  if (!exchange && stale) exchange = co_await attempt(request, true, stale);
  co_return exchange;
}

awaitable<result<http_reply>> http_client::exchange(http_request request, std::size_t limit) {
  auto started = co_await start(std::move(request));
  if (!started) co_return started.error();
  auto body = co_await started->lease->read_body(started->head, limit);
  if (!body) co_return body.error();
  if (started->head.keep_alive) started->lease.keep();
  co_return http_reply{std::move(started->head), std::move(*body)};
}
}  // namespace cokv::detail
