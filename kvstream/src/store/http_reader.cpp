#include <algorithm>

#include "cokv/kvstream/stream_receiver.hpp"
#include "cokv/runtime/detail/run_as_operation.hpp"
#include "store/http_remote.hpp"
#include "store/stored_id.hpp"

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
    std::uint64_t left = 0;                       // bytes of the answer that are to come
    std::size_t found = 0;                        // blocks of which segments were to come
    std::uint32_t next = 0;                       // layer that may be asked for
    std::uint32_t received = 0;                   // layers
    std::vector<const std::byte*> expected = {};  // where those from `first_expected` on go, `found` each
    std::uint32_t first_expected = 0;
    bool busy = false;
    bool failed = false;

    bool fits(const std::vector<buffer>& into, std::uint32_t layer) const {
      return fit(into, into.size() == found ? found : about.keys.size(), about.layout.segments[layer]);
    }

    void fail() {
      failed = true;
      lease.drop();
      in.abandon();
    }
  };

  http_reader(asio::any_io_executor ex, std::shared_ptr<body> b) : block_reader(std::move(ex)), body_(std::move(b)) {}
  ~http_reader() override { body_->lease.close(); }
  std::size_t found() const noexcept override { return body_->found; }

  void expect(std::uint32_t layer, std::vector<buffer> into) override {
    auto& b = *body_;
    if (!b.lease || b.busy || b.failed || layer != b.in.expected() || layer >= b.about.layout.layers() ||
        !b.fits(into, layer))
      return;
    if (b.expected.size() != (layer - b.first_expected) * b.found) b.expected.clear();  // layers between were read
    if (b.expected.empty()) b.first_expected = layer;
    for (std::size_t i = 0; i < b.found; ++i) b.expected.push_back(into[i].data());
    b.in.expect(std::move(into));
  }

  result<std::size_t> read_now(std::uint32_t layer, const std::vector<buffer>& into) override {
    auto& b = *body_;
    if (auto ec = misuse(b, layer, into)) return ec;
    for (;;) {
      const auto there = advance(b, layer, into);
      if (there && *there != stream_event::more) return give(b, layer);
      const auto ec = there ? received(b, b.lease->read_now(b.in.room())) : there.error();
      if (!ec) continue;
      if (ec != asio::error::would_block) b.fail();
      return ec;
    }
  }

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
    if (auto ec = co_await open_stream(*b)) co_return ec;
    b->found = b->in.coming();
    b->owner->counters.hits += b->found;
    b->owner->counters.misses += b->about.keys.size() - b->found;
    co_return std::make_unique<http_reader>(ex, std::move(b));
  }

 protected:
  void do_read(std::uint32_t layer, std::vector<buffer> into, count_handler handler) override {
    // What a read before has brought along needs no more than looking at.
    const auto there = read_now(layer, into);
    if (there || there.error() != asio::error::would_block)
      return detail::finish(std::move(handler), get_executor(), there);
    body_->busy = true;
    run_as_operation(get_executor(), read(body_, layer, std::move(into)), std::move(handler));
  }

 private:
  // The next event that is none of a segment's, of what was read; `more`: that is all of it.
  static result<stream_event> parse(body& b) {
    for (;;) {
      const auto event = b.in.next();
      if (event == stream_event::failed && b.in.error() == errc::digest_mismatch) ++b.owner->counters.digest_failures;
      if (event == stream_event::failed) return b.in.error();
      if (event == stream_event::damaged) ++b.owner->counters.digest_failures;
      if (event == stream_event::more && b.left == 0) return errc::protocol;
      if (event != stream_event::arrived && event != stream_event::damaged) return event;
    }
  }

  static error_code received(body& b, const result<std::size_t>& n) {
    if (!n) return n.error();
    if (*n > b.left) return errc::protocol;
    b.left -= *n;
    b.in.filled(*n);
    return {};
  }

  static awaitable<error_code> read_more(body& b) {
    co_return received(b, co_await b.lease->read_some(b.in.room(), b.left));
  }

  // The answer begins with the question, and says next from where on it has nothing. Whether it does, its length tells;
  // if that is wrong, the parser finds out.
  static awaitable<error_code> open_stream(body& b) {
    const auto& layout = b.about.layout;
    for (;;) {
      const auto event = parse(b);
      if (!event) co_return event.error();
      if (*event == stream_event::ended) {
        let_go(b);
        co_return error_code();
      }
      if (*event == stream_event::more) {
        if (auto ec = co_await read_more(b)) co_return ec;
        continue;
      }
      if (*event != stream_event::begun && *event != stream_event::missing) co_return errc::protocol;
      const auto of_block = frame_header_bytes + frame_trailer_bytes;
      const auto all = b.in.coming() * (of_block * layout.layers() + layout.bytes()) + of_block + 8;
      if (b.in.coming() != 0 && (*event == stream_event::missing || b.left == all)) co_return error_code();
    }
  }

  static void let_go(body& b) { b.left == 0 && b.keep_alive ? b.lease.keep() : b.lease.drop(); }

  // What is wrong with asking for the layer now.
  static error_code misuse(const body& b, std::uint32_t layer, const std::vector<buffer>& into) {
    if (b.failed) return errc::closed;
    if (layer >= b.about.layout.layers()) return errc::out_of_range;
    if (b.busy || layer < b.next || !b.fits(into, layer)) return errc::invalid_argument;
    const auto at = (layer - b.first_expected) * b.found;
    if (layer < b.first_expected || at >= b.expected.size()) return {};
    const bool same = std::equal(b.expected.begin() + static_cast<std::ptrdiff_t>(at),
                                 b.expected.begin() + static_cast<std::ptrdiff_t>(at + b.found), into.begin(),
                                 [](const std::byte* one, const buffer& other) { return one == other.data(); });
    return same ? error_code() : errc::invalid_argument;
  }

  // The layer has been received.
  static std::size_t give(body& b, std::uint32_t layer) {
    b.next = layer + 1;
    const std::size_t good = b.in.good();
    b.owner->counters.read_segments += good;
    b.owner->counters.read_bytes += good * b.about.layout.segments[layer];
    return good;
  }

  static awaitable<result<std::size_t>> read(std::shared_ptr<body> b, std::uint32_t layer, std::vector<buffer> into) {
    co_await asio::this_coro::reset_cancellation_state(asio::enable_total_cancellation());
    operation_guard guard(*b);
    for (;;) {
      if (auto ec = co_await read_more(*b)) co_return ec;
      const auto there = advance(*b, layer, into);
      if (!there) co_return there.error();
      if (*there == stream_event::more) continue;
      guard.done();
      co_return give(*b, layer);
    }
  }

  // As far as the layer (`layer`: it is there), with what was read (`more`: that is not enough).
  static result<stream_event> advance(body& b, std::uint32_t layer, const std::vector<buffer>& into) {
    const auto last = b.about.layout.layers() - 1;
    while (b.lease && b.received <= layer) {
      if (b.in.expected() == b.received) b.in.expect(b.received == layer ? into : aside(b));
      const auto event = parse(b);
      if (!event || *event == stream_event::more) return event;
      if (*event == stream_event::missing) continue;
      if (*event == stream_event::ended) let_go(b);
      if (*event != stream_event::ended && *event != stream_event::layer) return errc::protocol;
      if (*event == stream_event::ended || b.received != last) ++b.received;  // after the last one, the end
    }
    return stream_event::layer;
  }

  // A layer that nobody asked for passes before the one that was.
  static std::vector<buffer> aside(const body& b) {
    std::vector<buffer> out(b.in.coming());
    for (auto& segment : out) segment = buffer::host(b.about.layout.segments[b.received], 64);
    return out;
  }

  std::shared_ptr<body> body_;
};

}  // namespace

awaitable<result<std::unique_ptr<block_reader>>> open_http_reader(std::shared_ptr<http_remote> remote,
                                                                  stream_begin about) {
  return http_reader::open(std::move(remote), std::move(about));
}

}  // namespace cokv::detail
