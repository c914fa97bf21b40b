#include "cokv/runtime/detail/run_as_operation.hpp"
#include "store/cluster/state.hpp"
#include "store/stored_id.hpp"

namespace cokv::detail {
namespace {

class cluster_writer final : public block_writer {
 public:
  // A node's part of the blocks. One that failed has no writer any more, or one that says what it kept.
  struct part {
    cluster_share share;
    std::shared_ptr<cluster_member> member;
    tier_try attempt = {};
    std::unique_ptr<block_writer> writer = nullptr;
    error_code failed = {};
  };
  struct body {
    std::shared_ptr<cluster_state> state;
    std::shared_ptr<const cluster_view> view;
    namespace_id ns;
    block_layout layout;
    std::vector<block_key> keys;
    write_options options;
    std::vector<part> parts;
    std::vector<bool> written;  // layers
    std::vector<bool> kept;     // blocks
    bool busy = false;
    bool spent = false;

    bool going() const {
      return std::ranges::any_of(parts, [](const part& p) { return !p.failed; });
    }
    void fail(part& p, error_code ec) {
      p.failed = ec;
      p.member->count.lost_blocks += p.share.at.size();
    }
    // What it comes to that nothing goes on, or that this is all there will be.
    error_code verdict() const {
      error_code why;
      for (const auto& p : parts) {
        if (!p.failed) continue;
        if (!why) why = p.failed;
        if (why != p.failed && !(no_room(why) && no_room(p.failed))) why = errc::partial;
      }
      if (going()) return !why ? error_code() : make_error_code(no_room(why) ? errc::store_full : errc::partial);
      return state->failure(*view, why);
    }
  };

  cluster_writer(asio::any_io_executor ex, std::shared_ptr<body> b)
      : block_writer(std::move(ex)), body_(std::move(b)) {}
  ~cluster_writer() override {
    if (!body_->spent) abandon(*body_);
  }

  static awaitable<result<std::unique_ptr<block_writer>>> open(std::shared_ptr<body> b) {
    co_await asio::this_coro::reset_cancellation_state(asio::enable_total_cancellation());
    if (auto ec = check_request(b->layout, b->keys)) co_return ec;
    if (auto ec = check_distinct(b->keys)) co_return ec;
    b->view = b->state->view;
    for (auto& share : shares_of(b->view->where, b->keys)) {
      auto member = b->view->members[share.node];
      auto attempt = b->state->try_node(*member);
      b->parts.push_back({std::move(share), std::move(member), std::move(attempt)});
    }
    b->written.resize(b->layout.layers());
    b->kept.resize(b->keys.size());
    if (auto ec = co_await at_once(b->parts.size(), [&b](std::size_t i) { return open_part(b, i); })) co_return ec;
    if (!b->going()) co_return b->verdict();
    const auto ex = b->state->ex;
    co_return std::make_unique<cluster_writer>(ex, std::move(b));
  }

  std::size_t kept() const override {
    return static_cast<std::size_t>(std::ranges::find(body_->kept, false) - body_->kept.begin());
  }
  bool keeps(std::size_t i) const override { return i < body_->kept.size() && body_->kept[i]; }

 protected:
  void do_write(std::uint32_t layer, std::vector<buffer> segments, done_handler handler) override {
    run_as_operation(get_executor(), write(body_, layer, std::move(segments)), std::move(handler));
  }
  void do_commit(done_handler handler) override { run_as_operation(get_executor(), commit(body_), std::move(handler)); }

 private:
  // An operation that was cancelled has left the nodes' writers in the middle of something: all of it is given up.
  struct in_use {
    body& b;
    bool over = false;
    explicit in_use(body& of) : b(of) { b.busy = true; }
    in_use(const in_use&) = delete;
    ~in_use() {
      b.busy = false;
      if (!over) abandon(b);
    }
  };
  static void abandon(body& b) {
    b.spent = true;
    for (auto& p : b.parts) {
      p.writer.reset();
      if (!p.failed) b.fail(p, errc::closed);
    }
  }

  static awaitable<void> open_part(std::shared_ptr<body> b, std::size_t i) {
    auto& p = b->parts[i];
    if (!p.attempt) co_return b->fail(p, errc::unavailable);
    auto opened = co_await with_deadline(
        p.member->blocks->async_open_write(b->ns, b->layout, p.share.pick(b->keys, p.share.at.size()), b->options),
        b->state->options.write_budget);
    b->state->settle(*p.member, p.attempt, opened ? error_code() : opened.error());
    if (opened)
      p.writer = std::move(*opened);
    else
      b->fail(p, opened.error());
  }

  static awaitable<error_code> write(std::shared_ptr<body> b, std::uint32_t layer, std::vector<buffer> segments) {
    co_await asio::this_coro::reset_cancellation_state(asio::enable_total_cancellation());
    if (b->spent) co_return errc::closed;
    if (auto ec = check_buffers(b->layout, b->keys.size(), layer, segments)) co_return ec;
    if (b->busy || b->written[layer]) co_return errc::invalid_argument;
    in_use use(*b);
    auto from = std::make_shared<std::vector<buffer>>(std::move(segments));
    const auto ask = [&b, &from, layer](std::size_t i) { return write_part(b, from, layer, i); };
    if (auto ec = co_await at_once(b->parts.size(), ask)) co_return ec;
    if (!b->going()) co_return b->verdict();
    b->written[layer] = true;
    use.over = true;
    co_return error_code();
  }

  static awaitable<void> write_part(std::shared_ptr<body> b, std::shared_ptr<std::vector<buffer>> from,
                                    std::uint32_t layer, std::size_t i) {
    auto& p = b->parts[i];
    if (p.failed) co_return;
    auto done = co_await with_deadline(p.writer->async_write(layer, p.share.pick(*from, p.share.at.size())),
                                       b->state->options.write_budget);
    b->state->settle(*p.member, done ? error_code() : done.error());
    if (done) co_return;
    p.writer.reset();
    b->fail(p, done.error());
  }

  static awaitable<error_code> commit(std::shared_ptr<body> b) {
    co_await asio::this_coro::reset_cancellation_state(asio::enable_partial_cancellation());
    if (b->spent) co_return errc::closed;
    if (b->busy || std::ranges::find(b->written, false) != b->written.end()) co_return errc::invalid_argument;
    in_use use(*b);
    if (auto ec = co_await at_once(b->parts.size(), [&b](std::size_t i) { return commit_part(b, i); })) co_return ec;
    use.over = b->spent = true;
    co_return b->verdict();
  }

  static awaitable<void> commit_part(std::shared_ptr<body> b, std::size_t i) {
    auto& p = b->parts[i];
    if (p.failed) co_return;
    auto done = co_await with_deadline(p.writer->async_commit(), b->state->options.write_budget);
    b->state->settle(*p.member, done ? error_code() : done.error());
    if (!done) p.failed = done.error();
    std::size_t kept = 0;
    for (std::size_t k = 0; k < p.share.at.size(); ++k) {
      if (!done && !p.writer->keeps(k)) continue;
      b->kept[p.share.at[k]] = true;
      ++kept;
    }
    p.member->count.written_blocks += kept;
    p.member->count.lost_blocks += p.share.at.size() - kept;
  }

  std::shared_ptr<body> body_;
};

}  // namespace

awaitable<result<std::unique_ptr<block_writer>>> open_cluster_writer(std::shared_ptr<cluster_state> s, namespace_id ns,
                                                                     block_layout layout, std::vector<block_key> keys,
                                                                     write_options options) {
  auto b = std::make_shared<cluster_writer::body>();
  b->state = std::move(s);
  b->ns = ns;
  b->layout = std::move(layout);
  b->keys = std::move(keys);
  b->options = std::move(options);
  return cluster_writer::open(std::move(b));
}

}  // namespace cokv::detail
