#include "cokv/runtime/detail/run_as_operation.hpp"
#include "store/staged.hpp"

namespace cokv::detail {
namespace {

class staged_reader final : public block_reader {
 public:
  struct chunk {
    std::size_t first;
    std::size_t count;  // of its keys that were found
    std::unique_ptr<block_reader> reader;
    std::size_t good = count;
  };
  struct body {
    std::shared_ptr<store> behind;
    std::shared_ptr<store_staging_state> through;
    block_layout layout;
    std::size_t keys = 0;
    std::size_t found = 0;
    std::vector<chunk> chunks = {};  // of the prefix, as far as it is good
    std::uint32_t next = 0;
    bool busy = false;
    bool failed = false;

    void give_up() {
      failed = true;
      chunks.clear();
    }
  };

  staged_reader(asio::any_io_executor ex, std::shared_ptr<body> b) : block_reader(std::move(ex)), body_(std::move(b)) {}
  std::size_t found() const noexcept override { return body_->found; }

  static awaitable<result<std::unique_ptr<block_reader>>> open(std::shared_ptr<body> b, namespace_id ns,
                                                               std::vector<block_key> keys) {
    if (auto ec = check_request(b->layout, keys)) co_return ec;
    const auto most = keys_a_chunk(b->layout, b->through->options().buffer_bytes);
    if (most == 0) co_return errc::too_large;
    b->keys = keys.size();
    for (std::size_t first = 0; first < keys.size(); first += most) {
      const auto count = std::min(most, keys.size() - first);
      auto opened = co_await b->behind->async_open_read(ns, b->layout, part_of(keys, first, count), as_result);
      if (!opened) co_return opened.error();
      const auto found = std::min((*opened)->found(), count);
      b->found += found;
      if (found != 0) b->chunks.push_back({first, found, std::move(*opened)});
      if (found < count) break;
    }
    const auto ex = b->behind->get_executor();
    co_return std::make_unique<staged_reader>(ex, std::move(b));
  }

 protected:
  void do_read(std::uint32_t layer, std::vector<buffer> into, count_handler handler) override {
    run_as_operation(get_executor(), read(body_, layer, std::move(into)), std::move(handler));
  }

 private:
  static awaitable<result<std::size_t>> read(std::shared_ptr<body> b, std::uint32_t layer, std::vector<buffer> into) {
    co_await asio::this_coro::throw_if_cancelled(false);
    if (b->failed) co_return errc::closed;
    if (auto ec = check_sizes(b->layout, into.size() == b->found ? b->found : b->keys, layer, into)) co_return ec;
    if (b->busy || layer < b->next) co_return errc::invalid_argument;
    b->next = layer + 1;
    staged_turn turn(*b);
    event copied;
    auto good = co_await read_chunks(*b, layer, into, copied);
    if (auto ec = co_await ended(copied); ec && good) good = ec;
    if (!good) b->through->look(good.error());
    turn.over = good.has_value();
    co_return good;
  }

  // `copied`: behind all copies into the caller's memory that have been enqueued.
  static awaitable<result<std::size_t>> read_chunks(body& b, std::uint32_t layer, const std::vector<buffer>& into,
                                                    event& copied) {
    const bool straight = std::ranges::all_of(into, &buffer::host_accessible);
    stream copies;
    if (!straight) {
      auto usable = b.through->loads();
      if (!usable) co_return usable.error();
      copies = *usable;
    }
    std::size_t good = 0;
    for (std::size_t i = 0; i < b.chunks.size(); ++i) {
      if (co_await was_cancelled()) co_return error_code(asio::error::operation_aborted);
      auto& c = b.chunks[i];
      auto part = part_of(into, c.first, c.count);
      auto n = straight ? co_await c.reader->async_read(layer, std::move(part), as_result)
                        : co_await read_staged(b, c, layer, std::move(part), copies, copied);
      if (!n) co_return n.error();
      c.good = std::min(c.good, *n);
      good += c.good;
      if (c.good == c.count) continue;
      // The prefix ends here, for all layers to come.
      b.chunks.erase(b.chunks.begin() + static_cast<std::ptrdiff_t>(c.good == 0 ? i : i + 1), b.chunks.end());
      break;
    }
    co_return good;
  }

  static awaitable<result<std::size_t>> read_staged(body& b, chunk& c, std::uint32_t layer, std::vector<buffer> into,
                                                    stream copies, event& copied) {
    auto staging = b.through->try_acquire();
    if (!staging) {
      // Those of its own come back first: then it holds none while it waits, and knows of a failure that may keep them.
      if (auto done = co_await copied.async_wait(as_result); !done) co_return done.error();
      auto waited = co_await store_staging_state::acquire(b.through);
      if (!waited) co_return waited.error();
      staging = std::move(*waited);
    }
    auto places = places_in(*staging, c.count, b.layout.segments[layer]);
    auto n = co_await c.reader->async_read(layer, places, as_result);
    if (!n) co_return n.error();
    std::vector<copy_op> batch;
    const auto good = std::min(*n, c.good);
    for (std::size_t i = 0; i < good; ++i) batch.push_back({std::move(into[i]), std::move(places[i])});
    if (batch.empty()) co_return good;
    if (auto ec = copies.copy_batch(batch, "load")) co_return ec;
    copied = copies.record();
    co_return good;
  }

  std::shared_ptr<body> body_;
};

}  // namespace

awaitable<result<std::unique_ptr<block_reader>>> open_staged_reader(std::shared_ptr<store> behind,
                                                                    std::shared_ptr<store_staging_state> through,
                                                                    namespace_id ns, block_layout layout,
                                                                    std::vector<block_key> keys) {
  auto b = std::make_shared<staged_reader::body>(
      staged_reader::body{std::move(behind), std::move(through), std::move(layout)});
  return staged_reader::open(std::move(b), ns, std::move(keys));
}

}  // namespace cokv::detail
