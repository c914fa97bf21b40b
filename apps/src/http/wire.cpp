#include "http/wire.hpp"

#include <algorithm>
#include <array>

#include "cokv/runtime/detail/initiate.hpp"
#include "cokv/runtime/detail/lazy_deadline.hpp"

namespace cokv::http {
namespace {

struct side;
using transfer = cokv::detail::operation<void(error_code, std::size_t), side*>;

template <class Buffer>
struct sequence {  // a span is not a buffer sequence; a copy of it would allocate
  using value_type = Buffer;
  using const_iterator = const Buffer*;
  std::span<const Buffer> of;
  const Buffer* begin() const { return of.data(); }
  const Buffer* end() const { return of.data() + of.size(); }
};

// What one direction waits for.
struct side {
  explicit side(const asio::any_io_executor& ex) : deadline(ex, [this] { expire(); }) {}

  cokv::detail::operation_list<transfer> waiting;  // one at most
  asio::cancellation_signal stop;                  // the stream's operation, where that ends with the wait
  cokv::detail::lazy_deadline deadline;
  bool goes_on = false;  // the stream's operation outlives the wait
  bool late = false;

  void expire() {
    late = true;
    goes_on ? complete(errc::deadline, 0) : stop.emit(asio::cancellation_type::terminal);
  }

  void complete(error_code ec, std::size_t n) {
    deadline.relax();
    if (waiting.empty()) return;
    if (late && ec == asio::error::operation_aborted) ec = errc::deadline;
    waiting.front().complete(ec, n);
  }
};

}  // namespace

struct wire::state : std::enable_shared_from_this<state> {
  state(byte_stream s, std::size_t most)
      : stream(std::move(s)), ex(stream.get_executor()), ahead(most), in(ex.get()), out(ex.get()) {}

  byte_stream stream;
  cokv::detail::prepared_executor ex;
  boost::beast::flat_buffer ahead;
  side in, out;
  bool reading_ahead = false;
  error_code ended;  // why nothing more is read
  std::function<void(error_code)> came;
  std::deque<byte_stream::descriptor> attached;
  bool keeps = true;
  std::array<std::byte, 16 << 10> arriving;  // what lies in `ahead` may be consumed meanwhile, and so move

  std::size_t room() const { return std::min(ahead.max_size() - ahead.size(), arriving.size()); }

  // A handler of the stream's operation that keeps all this alive, and leaves the operation to `stop`.
  template <class F>
  auto handler(side& s, F f) {
    return asio::bind_executor(
        ex.get(), asio::bind_allocator(asio::recycling_allocator<void>(),
                                       asio::bind_cancellation_slot(
                                           s.stop.slot(), [self = shared_from_this(), f](error_code ec, std::size_t n) {
                                             f(*self, ec, n);
                                           })));
  }

  // `begin` starts the stream's operation, unless one is under way that will do.
  template <class Begin>
  awaitable<result<std::size_t>> wait(side& s, duration limit, bool goes_on, Begin begin) {
    co_return co_await cokv::detail::initiate<void(error_code, std::size_t), side*>(
        as_result, ex, [&s, limit, goes_on, &begin](transfer& op) {
          op.state() = &s;
          if (!goes_on) op.on_cancel([](transfer& o, asio::cancellation_type_t how) { o.state()->stop.emit(how); });
          s.goes_on = goes_on;
          s.late = false;
          s.waiting.push_back(op);
          s.deadline.expect_within(limit);
          begin();
        });
  }

  void read_ahead() {
    if (std::exchange(reading_ahead, true)) return;
    stream.async_read_some(asio::buffer(arriving.data(), room()),
                           handler(in, [](state& self, error_code ec, std::size_t n) { self.read(ec, n); }));
  }

  void read(error_code ec, std::size_t n) {
    reading_ahead = false;
    if (!collect()) ec = asio::error::connection_aborted;
    if (ec) ended = ec;
    if (!ec) ahead.commit(asio::buffer_copy(ahead.prepare(n), asio::buffer(arriving.data(), n)));
    in.complete(ec, n);
    if (const auto tell = came) tell(ec);
    if (came && !ec && room() != 0) read_ahead();
  }

  bool collect() {
    if (!stream.carries_descriptors()) return true;
    while (auto d = stream.take_attached())
      if (keeps) attached.push_back(std::move(d));
    if (attached.size() <= most_attached) return true;
    stream.close();
    return false;
  }
};

wire::wire(byte_stream s, std::size_t read_ahead)
    : state_(std::make_shared<state>(std::move(s), read_ahead)), stream(state_->stream), ahead(state_->ahead) {}

wire::~wire() {
  unwatch();
  stream.close();
  state_->in.deadline.end();
  state_->out.deadline.end();
}

awaitable<result<std::size_t>> wire::read_ahead(duration limit) {
  auto& s = *state_;
  if (s.ended) co_return s.ended;
  if (s.room() == 0) co_return make_error_code(errc::too_large);
  co_return co_await s.wait(s.in, limit, true, [&s] { s.read_ahead(); });
}

awaitable<result<std::size_t>> wire::read_some(std::span<const asio::mutable_buffer> into, duration limit) {
  auto& s = *state_;
  if (s.ended && ahead.size() == 0) co_return s.ended;
  if (s.reading_ahead && ahead.size() == 0)
    if (auto n = co_await read_ahead(limit); !n) co_return n;
  if (ahead.size() != 0) {
    const auto n = asio::buffer_copy(sequence<asio::mutable_buffer>{into}, ahead.data());
    ahead.consume(n);
    co_return n;
  }
  auto n = s.stream.read_now(sequence<asio::mutable_buffer>{into});
  if (!n && n.error() == asio::error::would_block)
    n = co_await s.wait(s.in, limit, false, [&s, into] {
      s.stream.async_read_some(
          sequence<asio::mutable_buffer>{into},
          s.handler(s.in, [](state& self, error_code ec, std::size_t n) { self.in.complete(ec, n); }));
    });
  if (s.collect()) co_return n;
  co_return make_error_code(asio::error::connection_aborted);
}

awaitable<result<std::size_t>> wire::write_some(std::span<const asio::const_buffer> from, duration limit) {
  auto& s = *state_;
  co_return co_await s.wait(s.out, limit, false, [&s, from] {
    s.stream.async_write_some(
        sequence<asio::const_buffer>{from},
        s.handler(s.out, [](state& self, error_code ec, std::size_t n) { self.out.complete(ec, n); }));
  });
}

result<std::size_t> wire::write_now(std::span<const asio::const_buffer> from) {
  return stream.write_now(sequence<asio::const_buffer>{from});
}

void wire::watch(std::function<void(error_code)> came) {
  state_->came = std::move(came);
  if (state_->ended) return state_->came(state_->ended);
  if (state_->room() != 0) state_->read_ahead();
}

void wire::unwatch() { state_->came = nullptr; }

void wire::keep_descriptors(bool yes) { state_->keeps = yes; }

void wire::drop_descriptors() { state_->attached.clear(); }

byte_stream::descriptor wire::take_attached() {
  if (state_->attached.empty()) return {};
  auto d = std::move(state_->attached.front());
  state_->attached.pop_front();
  return d;
}

}  // namespace cokv::http
