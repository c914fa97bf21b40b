#include "cokv/kvstream/tiered_store.hpp"

#include <algorithm>

#include "cokv/runtime/detail/run_as_operation.hpp"
#include "cokv/runtime/result.hpp"
#include "store/stored_id.hpp"

namespace cokv {
namespace {

auto total() { return asio::this_coro::reset_cancellation_state(asio::enable_total_cancellation()); }

}  // namespace

// Neighbouring keys that one of the stores has.
struct tiered_store::run {
  store* from;
  std::size_t first;
  std::size_t count;
  std::unique_ptr<block_reader> reader = nullptr;
  std::size_t opened = 0;  // blocks that the reader found
};

tiered_store::tiered_store(std::unique_ptr<store> fast, std::unique_ptr<store> lasting)
    : store(lasting->get_executor()), tiers_(std::make_shared<tiers>()) {
  tiers_->fast = std::move(fast);
  tiers_->lasting = std::move(lasting);
}

store_info tiered_store::info() const {
  auto out = lasting().info();
  const auto quick = fast().info();
  out.kind = "tiered";
  out.read_segments += quick.read_segments;
  out.read_bytes += quick.read_bytes;
  out.digest_failures += quick.digest_failures;
  return out;
}

// Which store the prefix is read from, piece by piece; it ends where neither has the next block.
awaitable<result<std::vector<tiered_store::run>>> tiered_store::plan(std::shared_ptr<tiers> t, namespace_id ns,
                                                                     std::vector<block_key> keys) {
  std::vector<run> out;
  for (std::size_t at = 0; at < keys.size();) {
    const auto rest = [&] { return std::vector(keys.begin() + static_cast<std::ptrdiff_t>(at), keys.end()); };
    const auto quick = co_await t->fast->async_match(ns, rest(), as_result);
    const std::size_t near = quick ? *quick : 0;
    if (near) out.push_back({t->fast.get(), at, near});
    at += near;
    if (at == keys.size()) break;
    const auto far = co_await t->lasting->async_match(ns, rest(), as_result);
    if (!far) co_return far.error();
    if (*far) out.push_back({t->lasting.get(), at, *far});
    at += *far;
    if (near == 0 && *far == 0) break;
  }
  co_return out;
}

class tiered_store::writer final : public block_writer {
 public:
  writer(asio::any_io_executor ex, std::shared_ptr<tiers> t, std::unique_ptr<block_writer> fast,
         std::unique_ptr<block_writer> lasting, namespace_id ns, std::vector<block_key> replaced)
      : block_writer(std::move(ex)), both_(std::make_shared<pair>()) {
    both_->keep = std::move(t);
    both_->fast = std::move(fast);
    both_->lasting = std::move(lasting);
    both_->ns = ns;
    both_->replaced = std::move(replaced);
    both_->copies = both_->fast != nullptr;
  }

 protected:
  void do_write(std::uint32_t layer, std::vector<buffer> segments, done_handler handler) override {
    detail::run_as_operation(get_executor(), write(both_, layer, std::move(segments)), std::move(handler));
  }
  void do_placed(std::uint32_t layer, std::vector<std::uint64_t> digests, done_handler handler) override {
    detail::run_as_operation(get_executor(), placed(both_, layer, std::move(digests)), std::move(handler));
  }
  void do_commit(done_handler handler) override {
    detail::run_as_operation(get_executor(), commit(both_), std::move(handler));
  }
  // The fast store's memory, from which the lasting one is written too; where that has none for some key, as it is stored
  // there already, the lasting one may still want the bytes.
  std::vector<buffer> place(std::uint32_t layer) override {
    if (!both_->fast) return {};
    auto out = both_->fast->place(layer);
    const bool all = std::none_of(out.begin(), out.end(), [](const buffer& b) { return b.empty(); });
    return all ? std::move(out) : std::vector<buffer>();
  }
  std::size_t kept() const override { return both_->lasting->kept(); }

 private:
  struct pair {
    std::shared_ptr<tiers> keep;
    std::unique_ptr<block_writer> fast, lasting;
    bool copies = false;  // into the fast one, until it fails
    namespace_id ns;
    std::vector<block_key> replaced;  // what the fast one has under these is not to be read any more
  };

  static awaitable<error_code> write(std::shared_ptr<pair> both, std::uint32_t layer, std::vector<buffer> segments) {
    co_await total();
    auto written = co_await both->lasting->async_write(layer, segments, as_result);
    if (!written) co_return written.error();
    if (!both->copies) co_return error_code();
    const auto copied = co_await both->fast->async_write(layer, std::move(segments), as_result);
    both->copies = copied.has_value();
    co_return error_code();
  }

  static awaitable<error_code> placed(std::shared_ptr<pair> both, std::uint32_t layer,
                                      std::vector<std::uint64_t> digests) {
    co_await total();
    auto segments = both->fast ? both->fast->place(layer) : std::vector<buffer>();
    if (segments.empty()) co_return errc::invalid_argument;
    auto written = co_await both->lasting->async_write(layer, std::move(segments), as_result);
    if (!written) co_return written.error();
    if (!both->copies) co_return error_code();
    const auto copied = co_await both->fast->async_placed(layer, std::move(digests), as_result);
    both->copies = copied.has_value();
    co_return error_code();
  }

  static awaitable<error_code> commit(std::shared_ptr<pair> both) {
    co_await asio::this_coro::reset_cancellation_state(asio::enable_partial_cancellation());
    for (const auto& key : both->replaced) (void)co_await both->keep->fast->async_remove(both->ns, key, as_result);
    auto visible = co_await both->lasting->async_commit(as_result);
    if (visible && both->copies && co_await both->fast->async_commit(as_result)) co_return error_code();
    // What another writer has copied there meanwhile is the old one.
    for (const auto& key : both->replaced) (void)co_await both->keep->fast->async_remove(both->ns, key, as_result);
    co_return visible ? error_code() : visible.error();
  }

  std::shared_ptr<pair> both_;
};

class tiered_store::reader final : public block_reader {
 public:
  struct body {
    std::shared_ptr<tiers> keep;
    block_layout layout;
    std::size_t keys = 0;
    std::size_t found = 0;
    std::vector<run> runs;
    std::uint32_t next = 0;
  };

  reader(asio::any_io_executor ex, std::shared_ptr<body> b) : block_reader(std::move(ex)), body_(std::move(b)) {}
  std::size_t found() const noexcept override { return body_->found; }
  bool views_at_once() const noexcept override {
    return std::all_of(body_->runs.begin(), body_->runs.end(), [](const run& r) { return r.reader->views_at_once(); });
  }

  result<std::vector<segment_view>> view_now(std::uint32_t layer) override {
    auto& b = *body_;
    if (b.runs.size() != 1 || b.runs[0].count == 0 || layer < b.next) return error_code(asio::error::would_block);
    auto views = b.runs[0].reader->view_now(layer);
    if (!views) return views;
    b.next = layer + 1;
    views->resize(std::min(views->size(), b.runs[0].count));
    ends(b, 0, views->size());
    return views;
  }

  // What a run gave less than it was asked for ends the prefix, for all layers to come.
  static bool ends(body& b, std::size_t i, std::size_t good) {
    if (good == b.runs[i].count) return false;
    b.runs[i].count = good;
    b.runs.resize(i + 1);
    return true;
  }

 protected:
  void do_read(std::uint32_t layer, std::vector<buffer> into, count_handler handler) override {
    detail::run_as_operation(get_executor(), read(body_, layer, std::move(into)), std::move(handler));
  }
  void do_view(std::uint32_t layer, view_handler handler) override {
    detail::run_as_operation(get_executor(), view(body_, layer), std::move(handler));
  }

 private:
  static awaitable<result<std::size_t>> read(std::shared_ptr<body> b, std::uint32_t layer, std::vector<buffer> into) {
    co_await total();
    if (auto ec = detail::check_buffers(b->layout, b->keys, b->found, layer, into)) co_return ec;
    if (layer < b->next) co_return errc::invalid_argument;
    b->next = layer + 1;
    std::size_t good = 0;
    for (std::size_t i = 0; i < b->runs.size(); ++i) {
      auto& r = b->runs[i];
      if (r.count == 0) break;
      const auto first = into.begin() + static_cast<std::ptrdiff_t>(r.first);
      auto part = std::vector(first, first + static_cast<std::ptrdiff_t>(r.opened));
      auto n = co_await r.reader->async_read(layer, std::move(part), as_result);
      if (!n) co_return n.error();
      good += std::min(*n, r.count);
      if (ends(*b, i, std::min(*n, r.count))) break;
    }
    co_return good;
  }

  static awaitable<result<std::vector<segment_view>>> view(std::shared_ptr<body> b, std::uint32_t layer) {
    co_await total();
    if (layer >= b->layout.layers()) co_return errc::out_of_range;
    if (layer < b->next) co_return errc::invalid_argument;
    b->next = layer + 1;
    const auto bytes = b->layout.segments[layer];
    std::vector<segment_view> out;
    for (std::size_t i = 0; i < b->runs.size(); ++i) {
      auto& r = b->runs[i];
      if (r.count == 0) break;
      auto views = co_await r.reader->async_view(layer, as_result);
      if (!views && views.error() != errc::unsupported) co_return views.error();
      if (!views) {
        std::vector<buffer> into;
        const auto memory = buffer::host(r.opened * bytes);
        for (std::size_t k = 0; k < r.opened; ++k) into.push_back(memory.slice(k * bytes, bytes));
        auto n = co_await r.reader->async_read(layer, into, as_result);
        if (!n) co_return n.error();
        views = std::vector<segment_view>();
        for (std::size_t k = 0; k < *n; ++k) views->push_back({into[k], {}});
      }
      views->resize(std::min(views->size(), r.count));
      const auto good = views->size();
      std::move(views->begin(), views->end(), std::back_inserter(out));
      if (ends(*b, i, good)) break;
    }
    co_return out;
  }

  std::shared_ptr<body> body_;
};

void tiered_store::do_match(namespace_id ns, std::vector<block_key> keys, match_options options,
                            count_handler handler) {
  static constexpr auto match = [](std::shared_ptr<tiers> t, namespace_id ns, std::vector<block_key> keys,
                                   match_options options) -> awaitable<result<std::size_t>> {
    co_await total();
    auto runs = co_await plan(t, ns, keys);
    if (!runs) co_return runs.error();
    const auto found = runs->empty() ? 0 : runs->back().first + runs->back().count;
    if (options.refresh && found != 0) {  // a copy that is used keeps the original too
      keys.resize(found);
      (void)co_await t->fast->async_match(ns, keys, options, as_result);
      (void)co_await t->lasting->async_match(ns, std::move(keys), options, as_result);
    }
    co_return found;
  };
  detail::run_as_operation(get_executor(), match(tiers_, ns, std::move(keys), options), std::move(handler));
}

void tiered_store::do_open_write(namespace_id ns, block_layout layout, std::vector<block_key> keys,
                                 write_options options, writer_handler handler) {
  static constexpr auto open = [](std::shared_ptr<tiers> t, namespace_id ns, block_layout layout,
                                  std::vector<block_key> keys,
                                  write_options options) -> awaitable<result<std::unique_ptr<block_writer>>> {
    co_await total();
    auto lasting = co_await t->lasting->async_open_write(ns, layout, keys, options, as_result);
    if (!lasting) co_return lasting.error();
    auto fast = co_await t->fast->async_open_write(ns, std::move(layout), keys, options, as_result);
    const auto ex = t->lasting->get_executor();
    if (!options.force) keys.clear();
    co_return std::make_unique<writer>(ex, std::move(t), fast ? std::move(*fast) : nullptr, std::move(*lasting), ns,
                                       std::move(keys));
  };
  detail::run_as_operation(get_executor(), open(tiers_, ns, std::move(layout), std::move(keys), std::move(options)),
                           std::move(handler));
}

void tiered_store::do_open_read(namespace_id ns, block_layout layout, std::vector<block_key> keys,
                                reader_handler handler) {
  static constexpr auto open = [](std::shared_ptr<tiers> t, namespace_id ns, block_layout layout,
                                  std::vector<block_key> keys) -> awaitable<result<std::unique_ptr<block_reader>>> {
    co_await total();
    if (auto ec = detail::check_request(layout, keys)) co_return ec;
    auto runs = co_await plan(t, ns, keys);
    if (!runs) co_return runs.error();
    auto b = std::make_shared<reader::body>();
    b->runs = std::move(*runs);
    for (std::size_t i = 0; i < b->runs.size(); ++i) {
      auto& r = b->runs[i];
      const auto first = keys.begin() + static_cast<std::ptrdiff_t>(r.first);
      auto opened = co_await r.from->async_open_read(
          ns, layout, std::vector(first, first + static_cast<std::ptrdiff_t>(r.count)), as_result);
      if (!opened) co_return opened.error();
      r.reader = std::move(*opened);
      r.opened = r.reader->found();
      b->found += r.opened;
      if (reader::ends(*b, i, r.opened)) break;
    }
    b->layout = std::move(layout);
    b->keys = keys.size();
    const auto ex = t->lasting->get_executor();
    b->keep = std::move(t);
    co_return std::make_unique<reader>(ex, std::move(b));
  };
  detail::run_as_operation(get_executor(), open(tiers_, ns, std::move(layout), std::move(keys)), std::move(handler));
}

void tiered_store::do_remove(namespace_id ns, block_key key, done_handler handler) {
  static constexpr auto remove = [](std::shared_ptr<tiers> t, namespace_id ns, block_key key) -> awaitable<error_code> {
    co_await asio::this_coro::reset_cancellation_state(asio::enable_partial_cancellation());
    const auto quick = co_await t->fast->async_remove(ns, key, as_result);
    const auto gone = co_await t->lasting->async_remove(ns, key, as_result);
    if (gone || (quick && gone.error() == errc::not_found)) co_return error_code();
    co_return gone.error();
  };
  detail::run_as_operation(get_executor(), remove(tiers_, ns, key), std::move(handler));
}

void tiered_store::do_settle(done_handler handler) {
  tiers_->lasting->async_settle(std::move(handler));  // the fast one is gone with the process
}

void tiered_store::do_layout(namespace_id ns, block_key key, layout_handler handler) {
  static constexpr auto layout = [](std::shared_ptr<tiers> t, namespace_id ns,
                                    block_key key) -> awaitable<result<block_layout>> {
    co_await total();
    auto quick = co_await t->fast->async_layout(ns, key, as_result);
    if (quick) co_return quick;
    co_return co_await t->lasting->async_layout(ns, key, as_result);
  };
  detail::run_as_operation(get_executor(), layout(tiers_, ns, key), std::move(handler));
}

}  // namespace cokv
