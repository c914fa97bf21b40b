#include "cokv/kvstream/stream_receiver.hpp"
#include "cokv/runtime/detail/run_as_operation.hpp"
#include "store/http_remote.hpp"

namespace cokv::detail {
namespace {

class http_reader final : public block_reader {
 public:
  struct body {
    body(std::shared_ptr<http_remote> s, stream_begin a)
        : owner(std::move(s)),
          about(std::move(a)),
          in({.max_blocks = static_cast<std::uint32_t>(about.keys.size()),
              .max_layers = about.layout.layers(),
              .unsealed = about.digest == digest_algorithm::none},
             about) {}

    std::shared_ptr<http_remote> owner;
    stream_begin about;
    stream_receiver in;
    http_lease lease;
    bool keep_alive = false;
    std::uint64_t left = 0;  // bytes of the answer that are to come
    std::size_t found = 0;   // blocks of which segments were to come
    std::uint32_t next = 0;
    bool busy = false;
    bool failed = false;

    void fail() {
      failed = true;
      lease.drop();
      in.abandon();
    }
  };

  http_reader(asio::any_io_executor ex, std::shared_ptr<body> b) : block_reader(std::move(ex)), body_(std::move(b)) {}
  ~http_reader() override { body_->lease.close(); }
  std::size_t found() const noexcept override { return body_->found; }

  static awaitable<result<std::unique_ptr<block_reader>>> open(std::shared_ptr<http_remote> owner, stream_begin about) {
    co_await asio::this_coro::reset_cancellation_state(asio::enable_total_cancellation());
    if (auto ec = refused(about, owner->max_blocks)) co_return ec;
    const auto ex = owner->client->get_executor();
    const auto ask = stream_writer(about).begin();
    auto exchange = co_await owner->client->start({.method = "POST",
                                                   .target = kv_target(about.ns, ":read"),
                                                   .fields = stream_type,
                                                   .body = {reinterpret_cast<const char*>(ask.data()), ask.size()}});
    if (!exchange) co_return exchange.error();
    if (exchange->head.status != 200) co_return error_of(exchange->head.status);
    if (!exchange->head.content_length) co_return errc::protocol;
    owner->look_at(exchange->head);
    auto b = std::make_shared<body>(std::move(owner), std::move(about));
    b->keep_alive = exchange->head.keep_alive;
    b->left = *exchange->head.content_length;
    b->lease = std::move(exchange->lease);
    if (auto ec = co_await open_stream(*b)) {
      if (ec == errc::digest_mismatch) ++b->owner->counters.digest_failures;
      co_return ec;
    }
    b->found = b->in.coming();
    b->owner->counters.hits += b->found;
    b->owner->counters.misses += b->about.keys.size() - b->found;
    co_return std::make_unique<http_reader>(ex, std::move(b));
  }

 protected:
  void do_read(std::uint32_t layer, std::vector<buffer> into, count_handler handler) override {
    run_as_operation(get_executor(), read(body_, layer, std::move(into)), std::move(handler));
  }

 private:
  // The next event that is none of a segment's, reading as long as there is none.
  static awaitable<result<stream_event>> next(body& b) {
    for (;;) {
      const auto event = b.in.next();
      switch (event) {
        case stream_event::more: {
          if (b.left == 0) co_return errc::protocol;
          auto n = co_await b.lease->read_some(b.in.room());
          if (!n) co_return n.error();
          if (*n > b.left) co_return errc::protocol;
          b.left -= *n;
          b.in.filled(*n);
          break;
        }
        case stream_event::arrived:
          break;
        case stream_event::damaged:
          ++b.owner->counters.digest_failures;
          break;
        case stream_event::failed:
          co_return b.in.error();
        default:
          co_return event;
      }
    }
  }

  // The answer begins with the question, and says next from where on it has nothing. Whether it does, its length tells;
  // if that is wrong, the parser finds out.
  static awaitable<error_code> open_stream(body& b) {
    const auto& layout = b.about.layout;
    for (;;) {
      const auto event = co_await next(b);
      if (!event) co_return event.error();
      if (*event == stream_event::ended) {
        finish(b);
        co_return error_code();
      }
      if (*event != stream_event::begun && *event != stream_event::missing) co_return errc::protocol;
      const auto of_block = frame_header_bytes + frame_trailer_bytes;
      const auto all = b.in.coming() * (of_block * layout.layers() + layout.bytes()) + of_block + 8;
      if (b.in.coming() != 0 && (*event == stream_event::missing || b.left == all)) co_return error_code();
    }
  }

  static void finish(body& b) { b.left == 0 && b.keep_alive ? b.lease.keep() : b.lease.drop(); }

  static awaitable<result<std::size_t>> read(std::shared_ptr<body> b, std::uint32_t layer, std::vector<buffer> into) {
    co_await asio::this_coro::reset_cancellation_state(asio::enable_total_cancellation());
    if (b->failed) co_return errc::closed;
    if (layer >= b->about.layout.layers()) co_return errc::out_of_range;
    const auto bytes = b->about.layout.segments[layer];
    if (b->busy || layer < b->next || !fit(into, into.size() == b->found ? b->found : b->about.keys.size(), bytes))
      co_return errc::invalid_argument;
    operation_guard guard(*b);
    while (b->lease && b->next <= layer) {
      auto ec = co_await receive(*b, b->next == layer ? into : aside(*b));
      if (!ec) continue;
      if (ec == errc::digest_mismatch) ++b->owner->counters.digest_failures;
      co_return ec;
    }
    b->next = layer + 1;
    const std::size_t good = b->in.good();
    b->owner->counters.read_segments += good;
    b->owner->counters.read_bytes += good * bytes;
    guard.done();
    co_return good;
  }

  // A layer that nobody asked for passes before the one that was.
  static std::vector<buffer> aside(const body& b) {
    std::vector<buffer> out(b.in.coming());
    for (auto& segment : out) segment = buffer::host(b.about.layout.segments[b.next], 64);
    return out;
  }

  static awaitable<error_code> receive(body& b, std::vector<buffer> into) {
    b.in.expect(std::move(into));
    const bool last = b.next + 1 == b.about.layout.layers();
    for (;;) {
      const auto event = co_await next(b);
      if (!event) co_return event.error();
      if (*event == stream_event::missing) continue;
      if (*event == stream_event::ended) finish(b);
      if (*event != stream_event::ended && *event != stream_event::layer) co_return errc::protocol;
      if (*event == stream_event::layer && last) continue;  // and now the end
      ++b.next;
      co_return error_code();
    }
  }

  std::shared_ptr<body> body_;
};

}  // namespace

awaitable<result<std::unique_ptr<block_reader>>> open_http_reader(std::shared_ptr<http_remote> remote,
                                                                  stream_begin about) {
  return http_reader::open(std::move(remote), std::move(about));
}

}  // namespace cokv::detail
