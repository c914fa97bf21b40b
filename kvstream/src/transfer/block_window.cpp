#include "cokv/kvstream/block_window.hpp"

#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/semaphore.hpp"

namespace cokv {
namespace {

// A layer's segments out of pieces that lie together: pieces are cut where segments meet, a segment is never put
// together from two.
result<std::vector<buffer>> segments_of(const block_layout& layout, std::size_t blocks, std::uint64_t offset,
                                        const std::vector<buffer>& pieces, std::uint32_t& layer) {
  std::uint64_t bytes = 0;
  for (const auto& p : pieces) bytes += p.size();
  for (layer = 0; layer < layout.layers(); ++layer)
    if (layer_offset(layout, blocks, layer) == offset && layout.segments[layer] * blocks == bytes) break;
  if (layer == layout.layers()) return errc::invalid_argument;
  const auto segment = layout.segments[layer];
  std::vector<buffer> cut;
  for (const auto& p : pieces) {
    if (p.size() % segment != 0) return errc::invalid_argument;
    for (std::uint64_t at = 0; at < p.size(); at += segment) cut.push_back(p.slice(at, segment));
  }
  return cut;
}

// The store reads the chunk: it may begin when the event is ready.
awaitable<error_code> ready(event begin) {
  if (begin.ready()) co_return begin.status();
  auto r = co_await begin.async_wait(as_result);
  co_return r ? error_code() : r.error();
}

class block_sink final : public detail::sink_backend {
 public:
  block_sink(std::unique_ptr<block_writer> w, block_layout l, std::size_t n)
      : writer_(std::move(w)), layout_(std::move(l)), blocks_(n), turn_(writer_->get_executor(), 1) {}

  asio::any_io_executor get_executor() const override { return writer_->get_executor(); }
  std::uint64_t size() const override { return layout_.bytes() * blocks_; }
  completion_level reach() const override { return completion_level::local; }

  awaitable<error_code> put(std::uint64_t offset, std::vector<buffer> pieces, event begin, completion_level) override {
    std::uint32_t layer = 0;
    auto segments = segments_of(layout_, blocks_, offset, pieces, layer);
    pieces.clear();
    if (!segments) co_return segments.error();
    if (auto ec = co_await ready(std::move(begin))) co_return ec;
    auto turn = co_await turn_.async_acquire(1, as_result);
    if (!turn) co_return turn.error();
    auto written = co_await writer_->async_write(layer, std::move(*segments), as_result);
    co_return written ? error_code() : written.error();
  }

  awaitable<error_code> commit() override {
    auto turn = co_await turn_.async_acquire(1, as_result);
    if (!turn) co_return turn.error();
    auto done = co_await writer_->async_commit(as_result);
    co_return done ? error_code() : done.error();
  }

 private:
  std::unique_ptr<block_writer> writer_;
  block_layout layout_;
  std::size_t blocks_;
  semaphore turn_;
};

class block_origin final : public detail::source_backend {
 public:
  block_origin(std::unique_ptr<block_reader> r, block_layout l, std::size_t n)
      : reader_(std::move(r)), layout_(std::move(l)), blocks_(n), turn_(reader_->get_executor(), 1) {}

  asio::any_io_executor get_executor() const override { return reader_->get_executor(); }
  std::uint64_t size() const override { return layout_.bytes() * blocks_; }

  awaitable<error_code> get(std::uint64_t offset, std::vector<buffer> pieces, event begin) override {
    std::uint32_t layer = 0;
    auto segments = segments_of(layout_, blocks_, offset, pieces, layer);
    pieces.clear();
    if (!segments) co_return segments.error();
    if (auto ec = co_await ready(std::move(begin))) co_return ec;
    auto turn = co_await turn_.async_acquire(1, as_result);
    if (!turn) co_return turn.error();
    auto good = co_await reader_->async_read(layer, std::move(*segments), as_result);
    if (!good) co_return good.error();
    co_return *good == blocks_ ? error_code() : make_error_code(errc::not_found);
  }

 private:
  std::unique_ptr<block_reader> reader_;
  block_layout layout_;
  std::size_t blocks_;
  semaphore turn_;
};

}  // namespace

std::uint64_t layer_offset(const block_layout& layout, std::size_t blocks, std::uint32_t layer) {
  std::uint64_t offset = 0;
  for (std::uint32_t l = 0; l < layer; ++l) offset += layout.segments.at(l) * blocks;
  return offset;
}

sink blocks_to(std::unique_ptr<block_writer> writer, block_layout layout, std::size_t blocks) {
  return sink(std::make_shared<block_sink>(std::move(writer), std::move(layout), blocks));
}

source blocks_from(std::unique_ptr<block_reader> reader, block_layout layout, std::size_t blocks) {
  return source(std::make_shared<block_origin>(std::move(reader), std::move(layout), blocks));
}

}  // namespace cokv
