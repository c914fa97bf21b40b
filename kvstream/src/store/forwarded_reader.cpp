#include <algorithm>

#include "cokv/kvstream/digest.hpp"
#include "cokv/runtime/detail/run_as_operation.hpp"
#include "cokv/runtime/result.hpp"
#include "store/forwarded.hpp"
#include "store/stored_id.hpp"

namespace cokv::detail {
namespace {

constexpr std::size_t views_a_message = 1024;

class forwarded_reader final : public block_reader {
 public:
  struct body {
    shard_ref home;
    opened_reader of;
    block_layout layout;
    std::size_t keys;
    std::size_t good = 0;
    std::uint32_t next = 0;     // the layer that may be asked for
    std::uint32_t fetched = 0;  // layers of which views came, the last ones still in of.first
  };

  forwarded_reader(asio::any_io_executor here, std::shared_ptr<body> b)
      : block_reader(std::move(here)), body_(std::move(b)) {}
  std::size_t found() const noexcept override { return body_->of.found; }
  bool views_at_once() const noexcept override { return body_->of.at_once; }
  result<std::vector<segment_view>> view_now(std::uint32_t layer) override {
    auto& b = *body_;
    if (layer < b.next || layer >= b.fetched) return error_code(asio::error::would_block);
    return take(b, layer);
  }

 private:
  void do_read(std::uint32_t layer, std::vector<buffer> into, count_handler handler) override {
    run_as_operation(get_executor(), read(body_, layer, std::move(into)), std::move(handler));
  }
  void do_view(std::uint32_t layer, view_handler handler) override {
    if (auto there = view_now(layer)) return finish(std::move(handler), get_executor(), std::move(there));
    run_as_operation(get_executor(), view(body_, layer), std::move(handler));
  }

  // Of a layer that was fetched.
  static std::vector<segment_view> take(body& b, std::uint32_t layer) {
    auto& ahead = b.of.first;
    ahead.erase(ahead.begin(), ahead.end() - (b.fetched - layer));
    auto out = std::move(ahead.front());
    ahead.erase(ahead.begin());
    b.next = layer + 1;
    b.good = std::min(b.good, out.size());
    out.resize(b.good);
    return out;
  }

  static awaitable<result<std::vector<segment_view>>> view(std::shared_ptr<body> b, std::uint32_t layer) {
    co_await total();
    if (layer >= b->layout.layers()) co_return errc::out_of_range;
    if (layer < b->next) co_return errc::invalid_argument;
    if (layer >= b->fetched) {
      b->of.first.clear();
      b->fetched = layer;
      auto views = co_await on(b->home, [b, layer]() -> awaitable<result<layers_of_views>> {
        co_return co_await view_ahead(*b->of.reader.get(), layer, b->layout.layers());
      });
      if (!views) co_return views.error();
      b->fetched = layer + static_cast<std::uint32_t>(views->size());
      b->of.first = std::move(*views);
    }
    co_return take(*b, layer);
  }

  // From memory that is shown it is copied here, where the bytes are wanted.
  static awaitable<result<std::size_t>> read(std::shared_ptr<body> b, std::uint32_t layer, std::vector<buffer> into) {
    co_await total();
    if (auto ec = check_buffers(b->layout, b->keys, b->of.found, layer, into)) co_return ec;
    if (layer < b->next) co_return errc::invalid_argument;
    if (!b->of.at_once) {
      b->next = layer + 1;
      auto good = co_await on(b->home, [b, layer, into = std::move(into)]() mutable -> awaitable<result<std::size_t>> {
        co_return co_await b->of.reader->async_read(layer, std::move(into), as_result);
      });
      co_return good;
    }
    auto views = co_await view(b, layer);
    if (!views) co_return views.error();
    for (std::size_t i = 0; i < views->size(); ++i) {
      const auto& [bytes, digest, life] = (*views)[i];
      const bool whole = digest ? copy_digest(into[i].bytes(), bytes.bytes()) == *digest
                                : (copy_bytes(into[i].bytes(), bytes.bytes()), true);
      if (whole) continue;
      b->good = i;
      break;
    }
    co_return b->good;
  }

  std::shared_ptr<body> body_;
};

}  // namespace

awaitable<result<layers_of_views>> view_ahead(block_reader& reader, std::uint32_t layer, std::uint32_t layers) {
  layers_of_views out;
  std::size_t views = 0;
  do {
    auto one = reader.view_now(layer);
    if (!one && one.error() == asio::error::would_block) one = co_await reader.async_view(layer, as_result);
    if (!one && out.empty()) co_return one.error();
    if (!one) break;
    views += one->size();
    out.push_back(std::move(*one));
  } while (reader.views_at_once() && ++layer < layers && views < views_a_message);
  co_return out;
}

std::unique_ptr<block_reader> forward_reader(asio::any_io_executor here, shard_ref home, opened_reader opened,
                                             block_layout layout, std::size_t keys) {
  auto b = std::make_shared<forwarded_reader::body>(
      forwarded_reader::body{home, std::move(opened), std::move(layout), keys});
  b->good = b->of.found;
  b->fetched = static_cast<std::uint32_t>(b->of.first.size());
  return std::make_unique<forwarded_reader>(std::move(here), std::move(b));
}

}  // namespace cokv::detail
