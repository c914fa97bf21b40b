#include "cokv/runtime/detail/run_as_operation.hpp"
#include "store/staged.hpp"

namespace cokv::detail {
namespace {

class staged_writer final : public block_writer {
 public:
  struct chunk {
    std::size_t first;
    std::size_t count;
    std::unique_ptr<block_writer> writer;
  };
  struct body {
    std::shared_ptr<store> behind;
    std::shared_ptr<store_staging_state> through;
    block_layout layout;
    std::size_t keys = 0;
    std::vector<chunk> chunks = {};
    std::vector<bool> written = std::vector<bool>(layout.layers());
    std::vector<bool> kept = {};  // blocks, once they were committed
    bool busy = false;
    bool spent = false;

    void give_up() {
      spent = true;
      chunks.clear();
    }
  };

  staged_writer(asio::any_io_executor ex, std::shared_ptr<body> b) : block_writer(std::move(ex)), body_(std::move(b)) {}
  std::size_t kept() const override {
    return static_cast<std::size_t>(std::ranges::find(body_->kept, false) - body_->kept.begin());
  }
  bool keeps(std::size_t i) const override { return i < body_->kept.size() && body_->kept[i]; }

  static awaitable<result<std::unique_ptr<block_writer>>> open(std::shared_ptr<body> b, namespace_id ns,
                                                               std::vector<block_key> keys, write_options options) {
    if (auto ec = check_request(b->layout, keys)) co_return ec;
    if (auto ec = check_distinct(keys)) co_return ec;
    const auto most = keys_a_chunk(b->layout, b->through->options().buffer_bytes);
    if (most == 0) co_return errc::too_large;
    if (most < keys.size()) {
      // Of what can't be, the first chunks would have others' blocks given up for nothing.
      const auto limit = b->behind->info().limit_bytes;
      if (limit != 0 && b->layout.bytes() > limit / keys.size()) co_return errc::too_large;
    }
    options.stable = false;
    b->keys = keys.size();
    for (std::size_t first = 0; first < keys.size(); first += most) {
      const auto count = std::min(most, keys.size() - first);
      auto opened =
          co_await b->behind->async_open_write(ns, b->layout, part_of(keys, first, count), options, as_result);
      if (!opened) co_return opened.error();
      b->chunks.push_back({first, count, std::move(*opened)});
    }
    const auto ex = b->behind->get_executor();
    co_return std::make_unique<staged_writer>(ex, std::move(b));
  }

 protected:
  void do_write(std::uint32_t layer, std::vector<buffer> segments, done_handler handler) override {
    run_as_operation(get_executor(), write(body_, layer, std::move(segments)), std::move(handler));
  }
  void do_commit(done_handler handler) override { run_as_operation(get_executor(), commit(body_), std::move(handler)); }

 private:
  static awaitable<error_code> write(std::shared_ptr<body> b, std::uint32_t layer, std::vector<buffer> segments) {
    co_await asio::this_coro::throw_if_cancelled(false);
    if (b->spent) co_return errc::closed;
    if (auto ec = check_sizes(b->layout, b->keys, layer, segments)) co_return ec;
    if (b->busy || b->written[layer]) co_return errc::invalid_argument;
    staged_turn turn(*b);
    event copied;
    auto ec = std::ranges::all_of(segments, &buffer::host_accessible)
                  ? co_await write_straight(*b, layer, segments)
                  : co_await write_staged(*b, layer, segments, copied);
    const auto last = co_await ended(copied);
    if (!ec) ec = last;
    if (ec) b->through->look(ec);
    b->written[layer] = turn.over = !ec;
    co_return ec;
  }

  static awaitable<error_code> write_straight(body& b, std::uint32_t layer, const std::vector<buffer>& segments) {
    for (auto& c : b.chunks) {
      if (co_await was_cancelled()) co_return asio::error::operation_aborted;
      auto done = co_await c.writer->async_write(layer, part_of(segments, c.first, c.count), as_result);
      if (!done) co_return done.error();
    }
    co_return error_code();
  }

  // A chunk on its way to the host, and there when `copied` is ready.
  struct copied_chunk {
    saving_buffer staging;
    std::vector<buffer> segments;
    event copied;
  };

  static result<copied_chunk> begin_copy(stream& copies, saving_buffer staging, const chunk& c,
                                         const std::vector<buffer>& segments) {
    auto places = places_in(staging.memory, c.count, segments.front().size());
    std::vector<copy_op> batch;
    for (std::size_t i = 0; i < c.count; ++i) batch.push_back({places[i], segments[c.first + i]});
    if (auto ec = copies.copy_batch(batch, "save")) return ec;
    return copied_chunk{std::move(staging), std::move(places), copies.record()};
  }

  // `copied`: behind all copies from the caller's memory that have been enqueued.
  static awaitable<error_code> write_staged(body& b, std::uint32_t layer, const std::vector<buffer>& segments,
                                            event& copied) {
    auto copies = b.through->saves();
    if (!copies) co_return copies.error();
    std::optional<copied_chunk> next;
    for (std::size_t i = 0; i < b.chunks.size(); ++i) {
      if (co_await was_cancelled()) co_return asio::error::operation_aborted;
      if (!next) {
        auto staging = co_await store_staging_state::acquire_saving(b.through);
        if (!staging) co_return staging.error();
        auto begun = begin_copy(*copies, std::move(*staging), b.chunks[i], segments);
        if (!begun) co_return begun.error();
        copied = begun->copied;
        next = std::move(*begun);
      }
      auto now = *std::exchange(next, std::nullopt);
      if (i + 1 < b.chunks.size()) {
        if (auto staging = b.through->try_acquire_saving()) {
          auto begun = begin_copy(*copies, std::move(*staging), b.chunks[i + 1], segments);
          if (!begun) co_return begun.error();
          copied = begun->copied;
          next = std::move(*begun);
        }
      }
      if (auto there = co_await now.copied.async_wait(as_result); !there) co_return there.error();
      auto done = co_await b.chunks[i].writer->async_write(layer, std::move(now.segments), as_result);
      if (!done) co_return done.error();
    }
    co_return error_code();
  }

  static awaitable<error_code> commit(std::shared_ptr<body> b) {
    co_await asio::this_coro::throw_if_cancelled(false);
    if (b->spent) co_return errc::closed;
    if (b->busy || std::ranges::find(b->written, false) != b->written.end()) co_return errc::invalid_argument;
    staged_turn turn(*b);  // it is spent, whatever comes of it
    b->kept.resize(b->keys);
    error_code why;
    bool no_room = true;
    for (auto& c : b->chunks) {
      if (co_await was_cancelled()) co_return asio::error::operation_aborted;
      auto done = co_await c.writer->async_commit(as_result);
      for (std::size_t i = 0; i < c.count; ++i) b->kept[c.first + i] = done || c.writer->keeps(i);
      if (done) continue;
      if (done.error() == asio::error::operation_aborted) co_return done.error();
      if (!why) why = done.error();
      no_room = no_room && done.error() == errc::store_full;
      if (done.error() != errc::store_full && done.error() != errc::partial) break;
    }
    const bool some = std::ranges::find(b->kept, true) != b->kept.end();
    if (!why || !some) co_return why;
    co_return no_room ? errc::store_full : errc::partial;
  }

  std::shared_ptr<body> body_;
};

}  // namespace

awaitable<result<std::unique_ptr<block_writer>>> open_staged_writer(std::shared_ptr<store> behind,
                                                                    std::shared_ptr<store_staging_state> through,
                                                                    namespace_id ns, block_layout layout,
                                                                    std::vector<block_key> keys,
                                                                    write_options options) {
  auto b = std::make_shared<staged_writer::body>(
      staged_writer::body{std::move(behind), std::move(through), std::move(layout)});
  return staged_writer::open(std::move(b), ns, std::move(keys), std::move(options));
}

}  // namespace cokv::detail
