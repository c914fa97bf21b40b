#include <algorithm>
#include <map>

#include "cokv/kvstream/digest.hpp"
#include "cokv/kvstream/frame_batch.hpp"
#include "cokv/runtime/detail/run_as_operation.hpp"
#include "store/http_remote.hpp"
#include "store/places_sender.hpp"
#include "store/stored_id.hpp"

namespace cokv::detail {
namespace {

std::string write_target(bool deferred, bool force, bool by_reference) {
  std::string out = ":write";
  if (by_reference) out += "?by=reference";
  if (deferred) out.append(by_reference ? "&" : "?").append("deferred=1");
  if (force) out.append(by_reference || deferred ? "&" : "?").append("force=1");
  return out;
}

class http_writer final : public block_writer {
 public:
  struct body {
    body(std::shared_ptr<http_remote> s, stream_begin about) : owner(std::move(s)), out(std::move(about)) {}

    std::shared_ptr<http_remote> owner;
    stream_writer out;
    std::optional<places_sender> places;  // says where the segments lie, instead of sending them
    http_lease lease;
    std::vector<bool> written = std::vector<bool>(out.about().layout.layers());
    frame_batch batch;
    std::uint32_t next = 0;                              // the layer that the stream wants
    std::map<std::uint32_t, std::vector<buffer>> early;  // copies of layers that came before their turn
    bool busy = false;

    void fail() {
      if (lease) owner->counters.failed_writes += out.about().keys.size();
      lease.drop();
    }
  };

  http_writer(asio::any_io_executor ex, std::shared_ptr<body> b) : block_writer(std::move(ex)), body_(std::move(b)) {}
  ~http_writer() override { body_->busy ? body_->lease.close() : body_->fail(); }

  static awaitable<result<std::unique_ptr<block_writer>>> open(std::shared_ptr<http_remote> owner, stream_begin about,
                                                               const write_options& how, bool by_reference) {
    co_await asio::this_coro::reset_cancellation_state(asio::enable_total_cancellation());
    if (auto ec = refused(about, owner->max_blocks)) co_return ec;
    if (auto ec = check_distinct(about.keys)) co_return ec;
    const auto client = by_reference ? owner->lent->client() : owner->client;  // another may take its place meanwhile
    const auto ex = client->get_executor();
    std::string fields = stream_type;
    if (by_reference && owner->lent->expected())
      fields += "Cokv-Memory: " + std::to_string(owner->lent->expected()) + "\r\n";
    auto exchange = co_await client->start(
        {.method = "POST",
         .target = kv_target(about.ns, write_target(about.deferred, how.force, by_reference)),
         .fields = std::move(fields),
         .follows = by_reference ? http_request::in_chunks : stream_bytes(about.layout, about.keys.size()),
         .shows = by_reference});
    if (!exchange) co_return exchange.error();
    if (exchange->head.status != 100) co_return error_of(exchange->head.status);
    auto b = std::make_shared<body>(std::move(owner), std::move(about));
    b->lease = std::move(exchange->lease);
    if (by_reference) b->places.emplace(b->out.about(), how.stable);
    const auto begin = b->out.begin();
    if (auto ec = co_await put(*b, begin)) co_return ec;
    co_return std::make_unique<http_writer>(ex, std::move(b));
  }

 protected:
  void do_write(std::uint32_t layer, std::vector<buffer> segments, done_handler handler) override {
    run_as_operation(get_executor(), write(body_, layer, std::move(segments)), std::move(handler));
  }
  void do_commit(done_handler handler) override { run_as_operation(get_executor(), commit(body_), std::move(handler)); }

 private:
  // What fails by reference need not fail when it is sent: the next ones are.
  static error_code note(body& b, error_code ec) {
    const bool elsewhere_too =
        ec == asio::error::operation_aborted || ec == errc::store_full || ec == errc::digest_mismatch;
    if (b.places && !elsewhere_too) b.owner->lent->refuse_writes(std::chrono::minutes(1));
    return ec;
  }

  static awaitable<error_code> put(body& b, std::span<const std::byte> bytes) {
    const auto chunk = b.places ? in_chunk(bytes) : std::string();
    asio::const_buffer all = b.places ? asio::buffer(chunk) : asio::const_buffer(bytes.data(), bytes.size());
    co_return co_await b.lease->write({&all, 1});
  }

  static awaitable<error_code> write(std::shared_ptr<body> b, std::uint32_t layer, std::vector<buffer> segments) {
    co_await asio::this_coro::reset_cancellation_state(asio::enable_total_cancellation());
    const auto& about = b->out.about();
    if (!b->lease) co_return errc::closed;
    if (layer >= about.layout.layers()) co_return errc::out_of_range;
    if (b->busy || b->written[layer] || !fit(segments, about.keys.size(), about.layout.segments[layer]))
      co_return errc::invalid_argument;
    if (layer != b->next) {
      for (auto& segment : segments) {
        auto copy = buffer::host(segment.size(), 64);
        copy_bytes(copy.bytes(), segment.bytes());
        segment = std::move(copy);
      }
      b->early[layer] = std::move(segments);
      b->written[layer] = true;
      co_return error_code();
    }
    operation_guard guard(*b);
    for (;;) {
      const auto ec = b->places ? co_await b->places->send(*b->lease, segments) : co_await send(*b, b->next, segments);
      if (ec) co_return note(*b, ec);
      b->written[b->next++] = true;
      auto turn = b->early.find(b->next);
      if (turn == b->early.end()) break;
      segments = std::move(turn->second);
      b->early.erase(turn);
    }
    guard.done();
    co_return error_code();
  }

  // The payloads are sent from where the caller has them, the first while the next are digested, and what was digested
  // should still be in the second-level cache when it is sent.
  static awaitable<error_code> send(body& b, std::uint32_t layer, const std::vector<buffer>& segments) {
    const auto size = segments.front().size();
    const auto most = std::clamp<std::size_t>(digested_at_once / size, 1, frame_batch::limit);
    const auto batches = (segments.size() + most - 1) / most;
    for (std::size_t i = 0, at = 0; i < batches; ++i) {
      for (const auto until = segments.size() * (i + 1) / batches; at < until; ++at) {
        const auto head = b.out.segment(layer, static_cast<std::uint32_t>(at));
        b.batch.add(head, segments[at], seal(head, segments[at].bytes()));
      }
      const auto ec = co_await b.lease->write(b.batch.buffers());
      b.batch.clear();
      if (ec) co_return ec;
    }
    co_return error_code();
  }

  static awaitable<error_code> commit(std::shared_ptr<body> b) {
    co_await asio::this_coro::reset_cancellation_state(asio::enable_partial_cancellation());
    const auto& about = b->out.about();
    if (!b->lease) co_return errc::closed;
    if (b->busy || b->next != about.layout.layers()) co_return errc::invalid_argument;
    operation_guard guard(*b);
    if (auto ec = b->places ? co_await b->places->finish(*b->lease) : co_await put(*b, b->out.end()))
      co_return note(*b, ec);
    auto head = co_await b->lease->read_head();
    if (!head) co_return head.error();
    if (head->status != 200 && head->status != 202) co_return note(*b, error_of(head->status));
    auto answer = co_await b->lease->read_body(*head, 1 << 12);
    if (!answer) co_return answer.error();
    // A status alone is three bytes on a wire: what counts is the sealed answer.
    stream_parser parser({}, stream_begin{.ns = about.ns, .generation = about.generation});
    auto in = std::as_bytes(std::span(*answer));
    if (parser.next(in) != stream_event::acked || !in.empty()) co_return errc::protocol;
    if (parser.ack().what) co_return parser.ack().what;
    if (parser.ack().blocks != about.keys.size()) co_return errc::protocol;
    b->owner->counters.written_blocks += about.keys.size();
    b->owner->counters.written_bytes += about.keys.size() * about.layout.bytes();
    guard.done();
    b->owner->look_at(*head);
    head->keep_alive ? b->lease.keep() : b->lease.drop();
    co_return error_code();
  }

  static constexpr std::size_t digested_at_once = 384 << 10;  // as many as a reader waits for

  std::shared_ptr<body> body_;
};

}  // namespace

awaitable<result<std::unique_ptr<block_writer>>> open_http_writer(std::shared_ptr<http_remote> remote,
                                                                  stream_begin about, write_options how) {
  co_await asio::this_coro::reset_cancellation_state(asio::enable_total_cancellation());
  const auto lent = remote->lent;
  if (lent && lent->takes() && places_sender::fits(about) && !refused(about, remote->max_blocks) &&
      !check_distinct(about.keys)) {
    const auto asked = lent->client();
    const auto meant = lent->expected();
    auto writer = co_await http_writer::open(remote, about, how, true);
    if (writer || writer.error() == asio::error::operation_aborted) co_return writer;
    // Not for us, or no such thing there: it isn't asked again.
    const auto ec = writer.error();
    const bool still = lent->client() == asked && lent->expected() == meant;  // else another was offered meanwhile
    if (still && (ec == errc::permission_denied || ec == errc::not_found || ec == errc::invalid_argument ||
                  ec == errc::protocol))
      lent->refuse_writes();
  }
  co_return co_await http_writer::open(std::move(remote), std::move(about), how, false);
}

}  // namespace cokv::detail
