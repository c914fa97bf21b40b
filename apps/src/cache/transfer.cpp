#include "cache/transfer.hpp"

#include <algorithm>
#include <array>

#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"

namespace cokv::cache {
namespace {

constexpr std::uint64_t frame = frame_header_bytes + frame_trailer_bytes;
constexpr std::size_t batch = 21;  // frames of three buffers each, and what stands before: what one system call takes

asio::const_buffer as_buffer(std::span<const std::byte> bytes) { return {bytes.data(), bytes.size()}; }

}  // namespace

std::uint64_t layer_memory::needed(const block_layout& layout, std::size_t blocks) {
  return *std::max_element(layout.segments.begin(), layout.segments.end()) * blocks;
}

std::vector<buffer> layer_memory::of(const block_layout& layout, std::size_t blocks, std::uint32_t layer) {
  if (memory_.empty()) memory_ = buffer::host(needed(layout, blocks));
  std::vector<buffer> out;
  out.reserve(blocks);
  const auto bytes = layout.segments[layer];
  for (std::size_t i = 0; i < blocks; ++i) out.push_back(memory_.slice(i * bytes, bytes));
  return out;
}

block_sender::block_sender(stream_begin about, std::uint32_t blocks) : out_(std::move(about)), blocks_(blocks) {
  const auto& a = out_.about();
  pending_ = out_.begin();
  if (blocks_ < a.keys.size()) {
    const auto missing = out_.missing(blocks_, errc::not_found);
    pending_.insert(pending_.end(), missing.begin(), missing.end());
  }
  length_ = pending_.size() + blocks_ * (frame * a.layout.layers() + a.layout.bytes()) + frame + 8;
}

awaitable<block_sender::segments> block_sender::next_layer(block_reader& reader, std::uint32_t layer) {
  segments out;
  if (!copies_) {
    auto views = co_await reader.async_view(layer, as_result);
    if (views) {
      out.views = std::move(*views);
      co_return out;
    }
    copies_ = views.error() == errc::unsupported;
    out.error = views.error();
    if (!copies_) co_return out;
  }
  auto into = memory_.of(out_.about().layout, blocks_, layer);
  auto good = co_await reader.async_read(layer, into, as_result);
  out.error = good ? error_code() : good.error();
  if (good)
    for (std::size_t i = 0; i < *good; ++i) out.views.push_back({into[i], digest_of(into[i].bytes())});
  co_return out;
}

awaitable<void> block_sender::run(http::exchange& x, block_reader& reader) {
  error_code failed;
  if (out_.good() != 0) {  // the reader makes ready for what comes while the first of it is looked for
    const auto begin = std::exchange(pending_, {});
    const std::array first{as_buffer(begin)};
    if (co_await x.write(first)) co_return;
  }
  for (std::uint32_t layer = 0; layer < out_.about().layout.layers() && out_.good() != 0; ++layer) {
    auto [views, error] = co_await next_layer(reader, layer);
    failed = error;
    if (failed) break;
    if (views.size() < out_.good()) take_back(static_cast<std::uint32_t>(views.size()));
    if (co_await send_layer(x, layer, views)) co_return;
  }
  const auto end = failed ? out_.error(failed, failed.message()) : out_.end();
  pending_.insert(pending_.end(), end.begin(), end.end());
  if (x.sent() + pending_.size() > length_) co_return;  // no room for saying so: the cut says it
  const std::array last{as_buffer(pending_)};
  if (co_await x.write(last)) co_return;
  if (x.sent() == length_) co_await x.finish();
}

void block_sender::take_back(std::uint32_t block) {
  const auto missing = out_.missing(block, errc::digest_mismatch);  // what a store finds when it reads
  pending_.insert(pending_.end(), missing.begin(), missing.end());
}

// Segments go out as they lie there, with the digests that were made when they came in: the receiver compares them, and
// to do it here as well would cost as much as sending them.
awaitable<error_code> block_sender::send_layer(http::exchange& x, std::uint32_t layer,
                                               const std::vector<segment_view>& views) {
  if (views.empty()) co_return error_code();
  x.next_turn(out_.about().layout.segments[layer] * views.size());
  const auto begin = std::move(pending_);
  pending_.clear();
  std::array<frame_head, batch> heads;
  std::array<frame_trailer, batch> trailers;
  std::vector<asio::const_buffer> bytes;
  bytes.reserve(3 * batch + 1);
  if (!begin.empty()) bytes.push_back(as_buffer(begin));
  // The store may still give what was taken back in an earlier layer.
  const auto sent = std::min<std::size_t>(views.size(), out_.good());
  for (std::size_t first = 0; first < sent; first += batch) {
    const auto last = std::min(first + batch, sent);
    for (std::size_t i = first; i < last; ++i) {
      const auto& view = views[i];
      auto& head = heads[i - first] = out_.segment(layer, static_cast<std::uint32_t>(i));
      auto& trailer = trailers[i - first] = seal(head, view.digest);
      bytes.push_back(as_buffer(head));
      bytes.push_back(as_buffer(view.bytes.bytes()));
      bytes.push_back(as_buffer(trailer));
    }
    if (auto ec = co_await x.write(bytes)) co_return ec;
    bytes.clear();
  }
  co_return error_code();
}

}  // namespace cokv::cache
