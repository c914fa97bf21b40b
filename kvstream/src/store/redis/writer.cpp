#include "cokv/kvstream/digest.hpp"
#include "cokv/runtime/detail/run_as_operation.hpp"
#include "store/redis/state.hpp"
#include "store/stored_id.hpp"

namespace cokv::detail {
namespace {

class redis_writer final : public block_writer {
 public:
  struct block {
    redis_head head;
    bool there = false;    // before we came: nothing is sent
    bool replace = false;  // what is there
    bool begun = false;    // some of its pieces may be there
    bool kept = false;
    error_code failed = {};
  };
  struct body {
    std::shared_ptr<redis_state> state;
    write_options options;
    block_layout layout;
    std::vector<block> blocks;
    std::vector<bool> written;  // layers
    bool busy = false;
    bool spent = false;

    bool going() const {
      return std::ranges::any_of(blocks, [](const block& b) { return !b.failed; });
    }
    // What is left behind by those that do not become visible would go by itself, later.
    void abandon() {
      if (!std::exchange(spent, true))
        state->counters.failed_writes += static_cast<std::uint64_t>(std::ranges::count(blocks, false, &block::kept));
      for (auto& b : blocks)
        if (std::exchange(b.begun, false))
          asio::co_spawn(state->cluster->get_executor(), drop_pieces(state, b.head), asio::detached);
    }
    error_code verdict() const {
      error_code why;
      for (const auto& b : blocks)
        if (b.failed && (!why || why == redis_errc::out_of_memory)) why = b.failed;
      if (!why) return {};
      if (going()) return why == redis_errc::out_of_memory ? errc::store_full : errc::partial;
      return state->failure(why);
    }
  };

  redis_writer(asio::any_io_executor ex, std::shared_ptr<body> b) : block_writer(std::move(ex)), body_(std::move(b)) {}
  ~redis_writer() override {
    if (!body_->busy) body_->abandon();
  }

  static awaitable<result<std::unique_ptr<block_writer>>> open(std::shared_ptr<body> b) {
    co_await asio::this_coro::reset_cancellation_state(asio::enable_total_cancellation());
    const auto& s = *b->state;
    if (auto ec = co_await spread(b->blocks.size(), s.options.in_flight, [b](std::size_t i) { return open_one(b, i); }))
      co_return ec;
    for (const auto& block : b->blocks)
      if (block.failed == errc::namespace_mismatch) co_return block.failed;
    if (!b->going()) co_return b->verdict();
    const auto ex = s.cluster->get_executor();
    co_return std::make_unique<redis_writer>(ex, std::move(b));
  }

  std::size_t kept() const override {
    return static_cast<std::size_t>(std::ranges::find(body_->blocks, false, &block::kept) - body_->blocks.begin());
  }
  bool keeps(std::size_t i) const override { return i < body_->blocks.size() && body_->blocks[i].kept; }

 protected:
  void do_write(std::uint32_t layer, std::vector<buffer> segments, done_handler handler) override {
    run_as_operation(get_executor(), write(body_, layer, std::move(segments)), std::move(handler));
  }
  void do_commit(done_handler handler) override { run_as_operation(get_executor(), commit(body_), std::move(handler)); }

 private:
  // An operation that ends without being over has left pieces behind.
  struct in_use {
    std::shared_ptr<body> b;
    bool over = false;
    explicit in_use(std::shared_ptr<body> of) : b(std::move(of)) { b->busy = true; }
    in_use(const in_use&) = delete;
    ~in_use() {
      b->busy = false;
      if (!over) b->abandon();
    }
  };

  static awaitable<bool> open_one(std::shared_ptr<body> b, std::size_t i) {
    auto& block = b->blocks[i];
    auto head = co_await read_head(b->state, block.head.ns, block.head.key);
    if (head.error() == errc::digest_mismatch) {
      block.replace = true;
    } else if (!head) {
      block.failed = head.error();
    } else if (*head && !b->options.force) {
      block.there = (*head)->layout == b->layout;
      if (!block.there) block.failed = errc::namespace_mismatch;
    }
    co_return true;
  }

  static awaitable<error_code> write(std::shared_ptr<body> b, std::uint32_t layer, std::vector<buffer> segments) {
    co_await asio::this_coro::reset_cancellation_state(asio::enable_total_cancellation());
    if (b->spent) co_return errc::closed;
    if (auto ec = check_buffers(b->layout, b->blocks.size(), layer, segments)) co_return ec;
    if (b->busy || b->written[layer]) co_return errc::invalid_argument;
    in_use use(b);
    auto from = std::make_shared<std::vector<buffer>>(std::move(segments));
    auto ask = [b, from, layer](std::size_t i) { return write_one(b, from, layer, i); };
    if (auto ec = co_await spread(b->blocks.size(), b->state->options.in_flight, std::move(ask))) co_return ec;
    if (!b->going()) co_return b->verdict();
    b->written[layer] = true;
    use.over = true;
    co_return error_code();
  }

  static awaitable<bool> write_one(std::shared_ptr<body> b, std::shared_ptr<std::vector<buffer>> from,
                                   std::uint32_t layer, std::size_t i) {
    auto& block = b->blocks[i];
    if (block.there || block.failed) co_return true;
    const auto segment = (*from)[i].bytes();
    const std::string_view text(reinterpret_cast<const char*>(segment.data()), segment.size());
    block.begun = true;
    block.head.digests[layer] = digest_of(segment);
    const auto life = std::to_string(b->state->options.unfinished.count());
    for (std::uint32_t p = 0; p < block.head.pieces_of(layer); ++p) {
      const auto name = piece_name(block.head, layer, p);
      const auto piece = text.substr(p * block.head.piece, block.head.piece);
      auto reply = co_await b->state->cluster->execute(slot_of(name), {"SET", name, piece, "EX", life}, 0,
                                                       one_of(redis_value::kind::status));
      if (reply) continue;
      block.failed = reply.error();
      break;
    }
    co_return true;
  }

  static awaitable<error_code> commit(std::shared_ptr<body> b) {
    co_await asio::this_coro::reset_cancellation_state(asio::enable_partial_cancellation());
    if (b->spent) co_return errc::closed;
    if (b->busy || std::ranges::find(b->written, false) != b->written.end()) co_return errc::invalid_argument;
    in_use use(b);
    if (auto ec = co_await spread(b->blocks.size(), b->state->options.in_flight,
                                  [b](std::size_t i) { return commit_one(b, i); }))
      co_return ec;
    b->abandon();
    use.over = true;
    co_return b->verdict();
  }

  static awaitable<bool> commit_one(std::shared_ptr<body> b, std::size_t i) {
    auto& block = b->blocks[i];
    if (block.there) block.kept = true;
    if (block.there || block.failed) co_return true;
    auto done = co_await commit_block(b->state, block.head, b->options.force || block.replace);
    if (!done) {
      block.failed = done.error() == errc::not_found ? make_error_code(errc::deadline) : done.error();
      // Whether it took effect is not known: its pieces may be those of a block that is visible now.
      if (done.error() != errc::not_found && done.error() != errc::in_use) block.begun = false;
      co_return true;
    }
    block.begun = false;  // or another's stay, and the script has removed ours
    if (*done == told::no) {
      auto other = co_await read_head(b->state, block.head.ns, block.head.key);
      if (!other)
        block.failed = other.error();
      else if (!*other)
        block.failed = errc::in_use;  // it went meanwhile
      else if ((*other)->layout != b->layout)
        block.failed = errc::namespace_mismatch;
    }
    block.kept = !block.failed;
    if (*done == told::yes) {
      ++b->state->counters.written_blocks;
      b->state->counters.written_bytes += b->layout.bytes();
    }
    co_return true;
  }

  std::shared_ptr<body> body_;
};

}  // namespace

awaitable<result<std::unique_ptr<block_writer>>> open_redis_writer(std::shared_ptr<redis_state> s, namespace_id ns,
                                                                   block_layout layout, std::vector<block_key> keys,
                                                                   write_options options) {
  static constexpr auto refuse = [](error_code ec) -> awaitable<result<std::unique_ptr<block_writer>>> {
    co_return ec;
  };
  if (auto ec = check_request(layout, keys)) return refuse(ec);
  if (auto ec = check_distinct(keys)) return refuse(ec);
  if (keys.size() > s->options.max_blocks) return refuse(errc::too_large);
  redis_head head{.ns = ns, .piece = s->options.piece_bytes, .layout = layout};
  head.digests.resize(layout.layers());
  std::uint64_t pieces = 0;
  for (std::uint32_t layer = 0; layer < layout.layers(); ++layer) pieces += head.pieces_of(layer);
  if (pieces > max_redis_pieces) return refuse(errc::too_large);
  auto b = std::make_shared<redis_writer::body>();
  for (const auto& key : keys) {
    head.key = key;
    head.nonce = s->next_nonce();
    b->blocks.push_back({head});
  }
  b->state = std::move(s);
  b->options = std::move(options);
  b->written.resize(layout.layers());
  b->layout = std::move(layout);
  return redis_writer::open(std::move(b));
}

}  // namespace cokv::detail
