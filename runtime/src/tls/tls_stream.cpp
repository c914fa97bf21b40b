#include "cokv/runtime/channel.hpp"
#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/detail/operation.hpp"
#include "cokv/runtime/detail/run_as_operation.hpp"
#include "tls/tls_engine.hpp"

namespace cokv::detail {
namespace {

using step = tls_engine::step;
using transferred = std::tuple<error_code, std::size_t>;

constexpr duration farewell = std::chrono::seconds(5);

auto as_tuple() { return asio::as_tuple(asio::deferred); }

// What outlives the stream: bytes on their way are sent to their end. One read and one write at a time use it, and one
// write of encrypted bytes is under way beside them.
struct connection : std::enable_shared_from_this<connection> {
  connection(byte_stream p, const tls_context& as, const std::string* host)
      : plain(std::move(p)), ex(plain.get_executor()), engine(as, host), drained(ex, 1), closed(ex, 0) {}
  ~connection() { stop_waiting.emit(asio::cancellation_type::terminal); }
  connection(const connection&) = delete;

  byte_stream plain;
  asio::any_io_executor ex;
  tls_engine engine;
  byte_stream::mutable_buffers into;
  byte_stream::const_buffers from;
  std::vector<std::byte> in;   // where encrypted bytes arrive
  std::vector<std::byte> out;  // and whence they are sent: the engine makes more meanwhile
  std::size_t out_done = 0;
  channel<bool> drained;  // `out` was sent, or the connection failed
  channel<bool> closed;
  asio::cancellation_signal stop_waiting;
  error_code failed;  // of sending
  bool sending = false;
  bool open = true;      // its stream is there
  bool last = false;     // nothing is written any more
  bool closing = false;  // what is left is sent, and then it is over

  awaitable<error_code> receive() {
    if (in.empty()) in.resize(17 << 10);
    auto [order, ec, n, closed_ec, none] = co_await asio::experimental::make_parallel_group(
                                               plain.async_read_some(asio::buffer(in)), closed.async_receive())
                                               .async_wait(asio::experimental::wait_for_one(), asio::deferred);
    if (ec == asio::error::eof) co_return tls_error::truncated;
    if (!ec) engine.arrived(std::span(in).first(n));
    co_return ec;
  }

  void send() {
    if (sending || failed || !plain.is_open()) return;
    if (engine.to_send() == 0) {
      if (last) plain.shutdown_send();
      if (closing) end();
      return;
    }
    out = engine.take();
    out_done = 0;
    sending = true;
    send_on();
  }

  void send_on() {
    plain.async_write_some(
        asio::buffer(out.data() + out_done, out.size() - out_done),
        asio::bind_executor(ex, [self = shared_from_this()](error_code ec, std::size_t n) { self->wrote(ec, n); }));
  }

  void wrote(error_code ec, std::size_t n) {
    out_done += n;
    if (!ec && out_done < out.size() && plain.is_open()) return send_on();
    out = {};
    sending = false;
    failed = ec;
    drained.try_send(true);
    if (!ec) return send();
    if (closing) end();
  }

  void end() {
    plain.close();
    stop_waiting.emit(asio::cancellation_type::terminal);
  }

  awaitable<error_code> shake_hands() {
    for (;;) {
      const auto [what, n] = engine.shake_hands();
      // A refusal is told too, as far as the peer listens.
      if (const auto bytes = engine.take(); !bytes.empty()) {
        auto [ec, sent] = co_await asio::async_write(plain, asio::buffer(bytes), as_tuple());
        if (ec && what != step::failed) co_return ec;
      }
      if (what == step::done) co_return error_code();
      if (what == step::failed) co_return engine.error();
      if (what == step::ended) co_return tls_error::truncated;
      if (auto ec = co_await receive()) co_return ec;
    }
  }

  static awaitable<transferred> read(std::shared_ptr<connection> self) {
    for (;;) {
      if (!self->open) co_return transferred(asio::error::operation_aborted, 0);
      const auto [what, n] = self->engine.read(self->into);
      self->send();  // an answer that TLS itself owes
      switch (what) {
        case step::done:
          co_return transferred(error_code(), n);
        case step::ended:
          co_return transferred(asio::error::eof, 0);
        case step::failed:
          co_return transferred(self->engine.error(), 0);
        case step::wants_bytes:
          break;
      }
      if (auto ec = co_await self->receive()) co_return transferred(ec, 0);
    }
  }

  static awaitable<transferred> write(std::shared_ptr<connection> self) {
    for (;;) {
      if (!self->open) co_return transferred(asio::error::operation_aborted, 0);
      if (self->failed) co_return transferred(self->failed, 0);
      if (!self->sending || self->engine.to_send() == 0) break;
      if (auto [ec, one] = co_await self->drained.async_receive(as_tuple()); ec) co_return transferred(ec, 0);
    }
    const auto [what, n] = self->engine.write(self->from);
    if (what != step::done)
      co_return transferred(what == step::failed ? self->engine.error() : make_error_code(tls_error::truncated), 0);
    self->send();
    co_return transferred(error_code(), n);
  }

  void shutdown_send() {
    engine.say_farewell();
    last = true;
    send();
  }

  void close() {
    if (!std::exchange(open, false)) return;
    closed.close();
    drained.try_send(true);
    // While a context goes down nothing more is begun.
    if (failed || !plain.is_open() || operation_registry::of(ex).closing()) return plain.close();
    if (!last) engine.say_farewell();
    closing = true;
    send();
    if (!plain.is_open()) return;
    auto too_late = [weak = weak_from_this()](error_code ec) {
      if (auto self = weak.lock(); self && !ec) self->plain.close();
    };
    clock::of(ex).async_wait_for(
        farewell, asio::bind_cancellation_slot(stop_waiting.slot(), asio::bind_executor(ex, std::move(too_late))));
  }
};

class tls_stream final : public byte_stream::impl {
 public:
  explicit tls_stream(std::shared_ptr<connection> c) : connection_(std::move(c)) {}
  ~tls_stream() override { connection_->close(); }

  asio::any_io_executor get_executor() const noexcept override { return connection_->ex; }
  void read_some(const byte_stream::mutable_buffers& into, byte_stream::handler done) override {
    connection_->into = into;
    run_as_operation(connection_->ex, connection::read(connection_), std::move(done));
  }
  void write_some(const byte_stream::const_buffers& from, byte_stream::handler done) override {
    connection_->from = from;
    run_as_operation(connection_->ex, connection::write(connection_), std::move(done));
  }
  void shutdown_send() override { connection_->shutdown_send(); }
  void close() override { connection_->close(); }
  bool is_open() const override { return connection_->open && connection_->plain.is_open(); }
  bool quiet() override { return connection_->open && !connection_->engine.holds_more() && connection_->plain.quiet(); }
  std::string peer() const override { return connection_->plain.peer(); }

 private:
  std::shared_ptr<connection> connection_;
};

awaitable<std::tuple<error_code, byte_stream>> secure(std::shared_ptr<connection> c) {
  if (auto ec = co_await c->shake_hands()) {
    c->plain.close();
    co_return std::tuple(ec, byte_stream());
  }
  co_return std::tuple(error_code(), byte_stream(std::make_unique<tls_stream>(std::move(c))));
}

}  // namespace

void tls_connect(byte_stream plain, tls_context as, std::string host, tls_handler handler) {
  const auto ex = plain.get_executor();
  run_as_operation(ex, secure(std::make_shared<connection>(std::move(plain), as, &host)), std::move(handler));
}

void tls_accept(byte_stream plain, tls_context as, tls_handler handler) {
  const auto ex = plain.get_executor();
  run_as_operation(ex, secure(std::make_shared<connection>(std::move(plain), as, nullptr)), std::move(handler));
}

}  // namespace cokv::detail
