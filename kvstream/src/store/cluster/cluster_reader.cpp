#include "cokv/runtime/detail/run_as_operation.hpp"
#include "store/cluster/state.hpp"
#include "store/stored_id.hpp"

namespace cokv::detail {
namespace {

class cluster_reader final : public block_reader {
 public:
  // A node's part of the prefix.
  struct part {
    cluster_share share;
    std::shared_ptr<cluster_member> member;
    tier_try attempt = {};
    std::unique_ptr<block_reader> reader = nullptr;
    std::size_t opened = 0;  // blocks that the reader found
  };
  struct body {
    std::shared_ptr<cluster_state> state;
    namespace_id ns;
    block_layout layout;
    std::vector<block_key> keys;
    std::vector<part> parts;
    std::size_t end = 0;    // of the prefix, as far as is known
    std::size_t found = 0;  // the same when it was opened
    std::uint32_t next = 0;
    error_code last = {};
    bool busy = false;
    bool failed = false;

    // How many of the part's blocks lie in the prefix.
    std::size_t wanted(const part& p) const { return p.share.before(end); }
  };

  cluster_reader(asio::any_io_executor ex, std::shared_ptr<body> b)
      : block_reader(std::move(ex)), body_(std::move(b)) {}
  std::size_t found() const noexcept override { return body_->found; }
  void expect(std::uint32_t layer, std::vector<buffer> into) override {
    if (check_buffers(body_->layout, body_->keys.size(), body_->found, layer, into)) return;
    for (auto& p : body_->parts)
      if (p.reader) p.reader->expect(layer, p.share.pick(into, p.opened));
  }

  static awaitable<result<std::unique_ptr<block_reader>>> open(std::shared_ptr<body> b) {
    co_await asio::this_coro::reset_cancellation_state(asio::enable_total_cancellation());
    if (auto ec = check_request(b->layout, b->keys)) co_return ec;
    const auto view = b->state->view;
    auto shares = shares_of(view->where, b->keys);
    b->end = b->keys.size();
    auto tries = try_all(*b->state, *view, shares, b->end);
    for (std::size_t i = 0; i < shares.size(); ++i) {
      auto member = view->members[shares[i].node];
      b->parts.push_back({std::move(shares[i]), std::move(member), std::move(tries[i])});
    }
    // Who has a block behind the end of the prefix would send it for nothing: it is asked once more, for what is left.
    do {
      if (auto ec = co_await at_once(b->parts.size(), [&b](std::size_t i) { return open_part(b, i); })) co_return ec;
    } while (std::ranges::any_of(b->parts, [&](const part& p) { return p.opened != b->wanted(p); }));
    if (b->end == 0 && view->all_bad()) co_return b->state->failure(*view, b->last);
    std::erase_if(b->parts, [](const part& p) { return p.opened == 0; });
    b->found = b->end;
    const auto ex = b->state->ex;
    co_return std::make_unique<cluster_reader>(ex, std::move(b));
  }

 protected:
  void do_read(std::uint32_t layer, std::vector<buffer> into, count_handler handler) override {
    run_as_operation(get_executor(), read(body_, layer, std::move(into)), std::move(handler));
  }

 private:
  static awaitable<void> open_part(std::shared_ptr<body> b, std::size_t i) {
    auto& p = b->parts[i];
    const auto wanted = b->wanted(p);
    if (p.opened == wanted && p.reader) co_return;
    p.reader.reset();
    p.opened = 0;
    if (wanted == 0) co_return p.attempt.end();
    auto opened =
        co_await with_deadline(p.member->blocks->async_open_read(b->ns, b->layout, p.share.pick(b->keys, wanted)),
                               b->state->options.lookup_budget);
    b->state->settle(*p.member, p.attempt, opened ? error_code() : opened.error());
    if (opened) {
      p.reader = std::move(*opened);
      p.opened = std::min(p.reader->found(), wanted);
      p.member->count.hit_blocks += p.opened;
      p.member->count.missed_blocks += wanted - p.opened;
    } else {
      b->last = opened.error();
    }
    b->end = p.share.end_of(p.opened, b->end);
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
    const auto ask = [&b, &segments, layer](std::size_t i) { return read_part(b, segments, layer, i); };
    if (auto ec = co_await at_once(b->parts.size(), ask)) co_return ec;
    use.over = true;
    // What the prefix has lost is not asked for any more.
    for (auto& p : b->parts)
      if (b->wanted(p) == 0) p.reader.reset();
    co_return b->end;
  }

  static awaitable<void> read_part(std::shared_ptr<body> b, std::shared_ptr<std::vector<buffer>> into,
                                   std::uint32_t layer, std::size_t i) {
    auto& p = b->parts[i];
    if (!p.reader || b->wanted(p) == 0) co_return;
    auto n = co_await with_deadline(p.reader->async_read(layer, p.share.pick(*into, p.opened)),
                                    b->state->options.read_budget);
    b->state->settle(*p.member, n ? error_code() : n.error());
    if (!n) p.reader.reset();
    const auto good = n ? std::min(*n, p.opened) : 0;
    if (layer + 1 == b->layout.layers()) p.member->count.read_blocks += good;
    b->end = p.share.end_of(good, b->end);
  }

  std::shared_ptr<body> body_;
};

}  // namespace

awaitable<result<std::unique_ptr<block_reader>>> open_cluster_reader(std::shared_ptr<cluster_state> s, namespace_id ns,
                                                                     block_layout layout, std::vector<block_key> keys) {
  auto b = std::make_shared<cluster_reader::body>();
  b->state = std::move(s);
  b->ns = ns;
  b->layout = std::move(layout);
  b->keys = std::move(keys);
  return cluster_reader::open(std::move(b));
}

}  // namespace cokv::detail
