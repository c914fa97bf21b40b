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
          parser({.max_blocks = static_cast<std::uint32_t>(about.keys.size()), .max_layers = about.layout.layers()},
                 about) {}

    std::shared_ptr<http_remote> owner;
    stream_begin about;
    stream_parser parser;
    http_lease lease;
    bool keep_alive = false;
    std::uint64_t left = 0;           // bytes of the answer that are to come
    std::size_t found = 0;            // blocks of which segments were to come
    std::size_t coming = 0;           // and of which they still do
    bool foreseen = true;             // frames come where they are expected
    std::vector<std::byte> unparsed;  // once they do not: what was read ahead
    std::uint32_t next = 0;
    bool busy = false;
    bool failed = false;

    void fail() {
      failed = true;
      lease.drop();
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
    auto b = std::make_shared<body>(std::move(owner), std::move(about));
    b->keep_alive = exchange->head.keep_alive;
    b->left = *exchange->head.content_length;
    b->lease = std::move(exchange->lease);
    b->coming = b->about.keys.size();
    // The answer begins with the question, and says next from where on it has nothing.
    if (auto ec = co_await open_stream(*b, ask.size())) {
      if (ec == errc::digest_mismatch) ++b->owner->counters.digest_failures;
      co_return ec;
    }
    b->found = b->coming;
    b->owner->counters.hits += b->coming;
    b->owner->counters.misses += b->about.keys.size() - b->coming;
    co_return std::make_unique<http_reader>(ex, std::move(b));
  }

 protected:
  void do_read(std::uint32_t layer, std::vector<buffer> into, count_handler handler) override {
    run_as_operation(get_executor(), read(body_, layer, std::move(into)), std::move(handler));
  }

 private:
  enum class progress { more, over };

  static constexpr std::uint64_t frame = frame_header_bytes + frame_trailer_bytes;

  static awaitable<error_code> open_stream(body& b, std::size_t begin_size) {
    const auto& layout = b.about.layout;
    const auto blocks = b.about.keys.size();
    const auto of_block = frame * layout.layers() + layout.bytes();
    // The length tells how many blocks come; if that is wrong, the parser finds out.
    const auto fixed = begin_size + frame + 8;
    if (b.left < fixed) co_return errc::protocol;
    std::uint64_t opening = begin_size;
    if (b.left != fixed + blocks * of_block) {
      opening += frame + 4;
      if (b.left < fixed + frame + 4) co_return errc::protocol;
    }
    if (b.left == fixed + frame + 4) opening = b.left;  // and the end with it
    std::vector<std::byte> bytes(opening);
    asio::mutable_buffer into = asio::buffer(bytes);
    if (auto ec = co_await b.lease->read({&into, 1})) co_return ec;
    b.left -= opening;
    std::span<const std::byte> in = bytes;
    for (;;) switch (b.parser.next(in)) {
        case stream_event::begun:
          break;
        case stream_event::missing:
          b.coming = b.parser.block();
          break;
        case stream_event::ended:
          finish(b);
          co_return error_code();
        case stream_event::more:
          co_return error_code();
        case stream_event::failed:
          co_return b.parser.error();
        default:
          co_return errc::protocol;
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
      auto ec = b->next == layer ? co_await receive(*b, into) : co_await skip(*b);
      if (!ec) continue;
      if (ec == errc::digest_mismatch) ++b->owner->counters.digest_failures;
      co_return ec;
    }
    b->next = layer + 1;
    const std::size_t good = b->parser.good();
    b->owner->counters.read_segments += good;
    b->owner->counters.read_bytes += good * bytes;
    guard.done();
    co_return good;
  }

  static awaitable<error_code> receive(body& b, std::vector<buffer>& into) {
    auto done = b.foreseen ? co_await scatter(b, b.next, into) : result<progress>(progress::more);
    if (done && *done == progress::more) done = co_await parse_on(b, b.next, into);
    if (!done) co_return done.error();
    ++b.next;
    co_return error_code();
  }

  // A layer that nobody asked for passes before the one that was.
  static awaitable<error_code> skip(body& b) {
    std::vector<buffer> aside(b.about.keys.size());
    for (auto& segment : aside) segment = buffer::host(b.about.layout.segments[b.next], 64);
    co_return co_await receive(b, aside);
  }

  // What the parser makes of `in`, which it takes all of unless the layer (and, after the last, the stream) is over.
  static result<progress> parse(body& b, std::uint32_t layer, std::vector<buffer>& into,
                                std::span<const std::byte>& in) {
    for (;;) switch (b.parser.next(in)) {
        case stream_event::segment:
          b.parser.into(into[b.parser.block()].bytes());
          break;
        case stream_event::damaged:
          ++b.owner->counters.digest_failures;
          break;
        case stream_event::missing:
          b.coming = b.parser.block();
          b.foreseen = false;
          break;
        case stream_event::layer:
          if (layer + 1 < b.about.layout.layers()) return progress::over;
          break;
        case stream_event::ended:
          finish(b);
          return progress::over;
        case stream_event::failed:
          return b.parser.error();
        case stream_event::more:
          return progress::more;
        case stream_event::arrived:
          break;
        default:
          return errc::protocol;
      }
  }

  // Reads the layer to where it belongs: its frames come in known order and sizes, so their payloads are read straight
  // into the caller's buffers, and the parser is shown what lies where. As soon as something else comes, what was read
  // is put in a row, and from there on everything is parsed as it comes.
  static awaitable<result<progress>> scatter(body& b, std::uint32_t layer, std::vector<buffer>& into) {
    const bool last = layer + 1 == b.about.layout.layers();
    const std::size_t good = b.parser.good();
    std::vector<std::byte> ends(b.coming * frame + (last ? frame + 8 : 0));
    std::vector<std::byte> aside(good < b.coming ? b.about.layout.segments[layer] : 0);
    std::vector<asio::mutable_buffer> places;
    places.reserve(2 * b.coming + 1);
    std::size_t at = 0, until = frame_header_bytes;
    for (std::size_t i = 0; i < b.coming; ++i, at = until, until += frame) {
      places.push_back(asio::buffer(ends.data() + at, until - at));
      places.push_back(i < good ? asio::buffer(into[i].data(), into[i].size()) : asio::buffer(aside));
    }
    places.push_back(asio::buffer(ends.data() + at, ends.size() - at));

    auto left = buffer_cursor<asio::mutable_buffer>(places);
    left.consume(0);  // a place for nothing, which is all there is when no block comes, would be read into for ever
    while (!left.done()) {
      auto n = co_await b.lease->read_some(left.next());
      if (!n) co_return n.error();
      if (*n > b.left) co_return errc::protocol;
      b.left -= *n;
      while (*n != 0) {
        const auto piece = asio::buffer(left.next().front(), *n);
        left.consume(piece.size());
        *n -= piece.size();
        std::span<const std::byte> in(static_cast<const std::byte*>(piece.data()), piece.size());
        if (const auto room = b.parser.room(); room.data() == in.data() && room.size() >= in.size()) {
          b.parser.filled(in.size());
          continue;
        }
        auto done = parse(b, layer, into, in);
        if (!done) co_return done.error();
        if (*done == progress::over && left.done() && in.empty()) co_return progress::over;
        if (*done == progress::more && b.foreseen) continue;
        b.foreseen = false;
        b.unparsed.assign(in.begin(), in.end());
        while (*n != 0) {
          const auto rest = asio::buffer(left.next().front(), *n);
          const auto* from = static_cast<const std::byte*>(rest.data());
          b.unparsed.insert(b.unparsed.end(), from, from + rest.size());
          left.consume(rest.size());
          *n -= rest.size();
        }
        co_return *done;
      }
    }
    b.foreseen = false;
    co_return progress::more;
  }

  static awaitable<result<progress>> parse_on(body& b, std::uint32_t layer, std::vector<buffer>& into) {
    for (;;) {
      std::span<const std::byte> in = b.unparsed;
      auto done = parse(b, layer, into, in);
      if (!done) co_return done.error();
      b.unparsed.erase(b.unparsed.begin(), b.unparsed.end() - static_cast<std::ptrdiff_t>(in.size()));
      if (*done == progress::over) co_return progress::over;
      if (b.left == 0) co_return errc::protocol;
      b.unparsed.resize(static_cast<std::size_t>(std::min<std::uint64_t>(b.left, 64 << 10)));
      const asio::mutable_buffer place = asio::buffer(b.unparsed);
      auto n = co_await b.lease->read_some({&place, 1});
      if (!n) co_return n.error();
      b.unparsed.resize(*n);
      b.left -= *n;
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
