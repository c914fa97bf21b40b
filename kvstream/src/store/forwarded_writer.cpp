#include "cokv/runtime/detail/run_as_operation.hpp"
#include "cokv/runtime/result.hpp"
#include "store/forwarded.hpp"
#include "store/stored_id.hpp"

namespace cokv::detail {
namespace {

constexpr std::uint64_t told_at_once = 8 << 20;  // bytes that are in their place before the other context hears of it

class forwarded_writer final : public block_writer {
 public:
  struct placed_layer {
    std::uint32_t layer;
    std::vector<std::uint64_t> digests;
  };
  struct body {
    shard_ref home;
    held_there<block_writer> writer;
    block_layout layout;
    std::size_t keys;
    std::vector<bool> known = std::vector<bool>(layout.layers());  // layers that are placed and not told of yet
    std::vector<placed_layer> placed = {};
    std::uint64_t placed_bytes = 0;
    std::size_t kept = 0;
  };

  forwarded_writer(asio::any_io_executor here, std::shared_ptr<body> b)
      : block_writer(std::move(here)), body_(std::move(b)) {}

  std::vector<buffer> place(std::uint32_t layer) override { return body_->writer->place(layer); }
  std::size_t kept() const override { return body_->kept; }

 private:
  void do_write(std::uint32_t layer, std::vector<buffer> segments, done_handler handler) override {
    run_as_operation(get_executor(), write(body_, layer, std::move(segments)), std::move(handler));
  }
  void do_commit(done_handler handler) override { run_as_operation(get_executor(), commit(body_), std::move(handler)); }

  // Most layers are only noted: what the other context hears of them can wait for the next message.
  void do_placed(std::uint32_t layer, std::vector<std::uint64_t> digests, done_handler handler) override {
    auto& b = *body_;
    const bool right = layer < b.layout.layers() && !b.known[layer] && (digests.empty() || digests.size() == b.keys);
    if (right) {
      b.known[layer] = true;
      b.placed.push_back({layer, std::move(digests)});
      b.placed_bytes += b.layout.segments[layer] * b.keys;
      if (b.placed_bytes < told_at_once) return finish(std::move(handler), get_executor(), {});
      return run_as_operation(get_executor(), tell(body_), std::move(handler));
    }
    finish(std::move(handler), get_executor(),
           layer < b.layout.layers() ? make_error_code(errc::invalid_argument) : make_error_code(errc::out_of_range));
  }

  // There, and from then on it is known there what is wrong with a layer.
  static awaitable<result<void>> tell_there(body& b) {
    auto placed = std::exchange(b.placed, {});
    b.placed_bytes = 0;
    for (auto& p : placed)
      if (auto done = co_await b.writer->async_placed(p.layer, std::move(p.digests), as_result); !done) co_return done;
    co_return result<void>();
  }

  static awaitable<error_code> tell(std::shared_ptr<body> b) {
    co_await total();
    auto done = co_await on(b->home, [b]() -> awaitable<result<void>> { co_return co_await tell_there(*b); });
    co_return done ? error_code() : done.error();
  }

  static awaitable<error_code> write(std::shared_ptr<body> b, std::uint32_t layer, std::vector<buffer> segments) {
    co_await total();
    auto done = co_await on(b->home, [b, layer, segments = std::move(segments)]() mutable -> awaitable<result<void>> {
      if (auto told = co_await tell_there(*b); !told) co_return told;
      co_return co_await b->writer->async_write(layer, std::move(segments), as_result);
    });
    co_return done ? error_code() : done.error();
  }

  static awaitable<error_code> commit(std::shared_ptr<body> b) {
    co_await total();
    auto done = co_await on(b->home, [b]() -> awaitable<result<void>> {
      if (auto told = co_await tell_there(*b); !told) co_return told;
      auto visible = co_await b->writer->async_commit(as_result);
      b->kept = b->writer->kept();
      co_return visible;
    });
    co_return done ? error_code() : done.error();
  }

  std::shared_ptr<body> body_;
};

}  // namespace

std::unique_ptr<block_writer> forward_writer(asio::any_io_executor here, shard_ref home,
                                             held_there<block_writer> writer, block_layout layout, std::size_t keys) {
  auto b = std::make_shared<forwarded_writer::body>(
      forwarded_writer::body{home, std::move(writer), std::move(layout), keys});
  return std::make_unique<forwarded_writer>(std::move(here), std::move(b));
}

}  // namespace cokv::detail
