#include "cokv/kvstream/digest.hpp"
#include "cokv/runtime/detail/run_as_operation.hpp"
#include "store/redis/state.hpp"
#include "store/stored_id.hpp"

namespace cokv::detail {
namespace {

class redis_reader final : public block_reader {
 public:
  struct body {
    std::shared_ptr<redis_state> state;
    namespace_id ns;
    block_layout layout;
    std::vector<block_key> keys;
    std::vector<redis_head> heads;
    std::size_t end = 0;  // of the prefix
    std::size_t found = 0;
    std::uint32_t next = 0;
    error_code last = {};
    bool busy = false;
    bool failed = false;

    void ends_at(std::size_t i) { end = std::min(end, i); }
  };

  redis_reader(asio::any_io_executor ex, std::shared_ptr<body> b) : block_reader(std::move(ex)), body_(std::move(b)) {}
  std::size_t found() const noexcept override { return body_->found; }

  static awaitable<result<std::unique_ptr<block_reader>>> open(std::shared_ptr<body> b) {
    co_await asio::this_coro::reset_cancellation_state(asio::enable_total_cancellation());
    if (auto ec = check_request(b->layout, b->keys)) co_return ec;
    const auto& s = *b->state;
    if (b->keys.size() > s.options.max_blocks) co_return errc::too_large;
    b->end = b->keys.size();
    b->heads.resize(b->keys.size());
    const auto begun = s.now();
    auto all = with_deadline(spread(b->keys.size(), s.options.in_flight, [b](std::size_t i) { return open_one(b, i); }),
                             s.options.lookup);
    if (auto done = co_await std::move(all); !done) {
      if (done.error() != errc::deadline) co_return done.error();
      b->last = errc::deadline;
      b->state->cluster->give_up_silent(begun);
      for (std::size_t i = 0; i < b->heads.size(); ++i)
        if (b->heads[i].piece == 0) b->ends_at(i);
    }
    if (b->end == 0 && s.is_failure(b->last)) co_return s.failure(b->last);
    b->found = b->end;
    b->state->counters.hits += b->found;
    b->state->counters.misses += b->keys.size() - b->found;
    const auto ex = s.cluster->get_executor();
    co_return std::make_unique<redis_reader>(ex, std::move(b));
  }

 protected:
  void do_read(std::uint32_t layer, std::vector<buffer> into, count_handler handler) override {
    run_as_operation(get_executor(), read(body_, layer, std::move(into)), std::move(handler));
  }

 private:
  static awaitable<bool> open_one(std::shared_ptr<body> b, std::size_t i) {
    if (i >= b->end) co_return false;
    auto head = co_await read_head(b->state, b->ns, b->keys[i]);
    if (!head && head.error() != errc::digest_mismatch) b->last = head.error();
    if (head && *head && (*head)->layout == b->layout)
      b->heads[i] = std::move(**head);
    else
      b->ends_at(i);
    co_return true;
  }

  static awaitable<result<std::size_t>> read(std::shared_ptr<body> b, std::uint32_t layer, std::vector<buffer> into) {
    co_await asio::this_coro::reset_cancellation_state(asio::enable_total_cancellation());
    if (auto ec = check_buffers(b->layout, b->keys.size(), b->found, layer, into)) co_return ec;
    if (b->busy || layer < b->next) co_return errc::invalid_argument;
    if (b->failed) co_return errc::closed;
    b->next = layer + 1;
    struct in_use {
      body& b;
      bool over = false;
      explicit in_use(body& of) : b(of) { b.busy = true; }
      ~in_use() {
        b.busy = false;
        b.failed = !over;
      }
    } use(*b);
    auto segments = std::make_shared<std::vector<buffer>>(std::move(into));
    const auto& s = *b->state;
    b->last = {};
    auto ask = [b, segments, layer](std::size_t i) { return read_one(b, segments, layer, i); };
    if (auto ec = co_await spread(b->end, s.options.in_flight, std::move(ask))) co_return ec;
    if (b->end == 0 && s.is_failure(b->last)) co_return s.failure(b->last);
    use.over = true;
    b->state->counters.read_segments += b->end;
    b->state->counters.read_bytes += b->end * b->layout.segments[layer];
    co_return b->end;
  }

  static awaitable<bool> read_one(std::shared_ptr<body> b, std::shared_ptr<std::vector<buffer>> into,
                                  std::uint32_t layer, std::size_t i) {
    if (i >= b->end) co_return false;
    const auto& head = b->heads[i];
    const auto segment = (*into)[i].bytes();
    digest_state digest;
    for (std::uint32_t p = 0; p < head.pieces_of(layer); ++p) {
      const auto name = piece_name(head, layer, p);
      const auto bytes = head.piece_bytes(layer, p);
      auto reply = co_await b->state->cluster->execute(slot_of(name), {"GET", name}, bytes,
                                                       one_of(redis_value::kind::string, redis_value::kind::nil));
      if (!reply) {
        b->last = reply.error();
        b->ends_at(i);
        co_return true;
      }
      if (!reply->is(redis_value::kind::string) || reply->text.size() != bytes) co_return broken(*b, i);
      digest.copy(segment.subspan(p * head.piece, bytes), std::as_bytes(std::span(reply->text)));
    }
    if (digest.value() != head.digests[layer]) {
      ++b->state->counters.digest_failures;
      co_return broken(*b, i);
    }
    co_return true;
  }

  // A block that is not whole any more would be in the way of the one that is computed in its place.
  static bool broken(body& b, std::size_t i) {
    static constexpr auto drop = [](std::shared_ptr<redis_state> s, redis_head head) -> awaitable<void> {
      (void)co_await drop_block(std::move(s), std::move(head));
    };
    b.ends_at(i);
    asio::co_spawn(b.state->cluster->get_executor(), drop(b.state, b.heads[i]), asio::detached);
    return true;
  }

  std::shared_ptr<body> body_;
};

}  // namespace

awaitable<result<std::unique_ptr<block_reader>>> open_redis_reader(std::shared_ptr<redis_state> s, namespace_id ns,
                                                                   block_layout layout, std::vector<block_key> keys) {
  auto b = std::make_shared<redis_reader::body>();
  b->state = std::move(s);
  b->ns = ns;
  b->layout = std::move(layout);
  b->keys = std::move(keys);
  return redis_reader::open(std::move(b));
}

}  // namespace cokv::detail
