#include "cache/transfer.hpp"

#include <algorithm>
#include <array>

#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"

namespace cokv::cache {
namespace {

constexpr std::uint64_t frame = frame_header_bytes + frame_trailer_bytes;
constexpr std::size_t soon = 64 << 10;  // goes out by itself: its receiver is woken while the rest is listed
constexpr std::size_t ahead = 64;  // segments that have a place before their turn: one read goes over a layer's border

asio::const_buffer as_buffer(std::span<const std::byte> bytes) { return {bytes.data(), bytes.size()}; }

}  // namespace

std::uint64_t layer_memory::needed(const block_layout& layout, std::size_t blocks) {
  return *std::max_element(layout.segments.begin(), layout.segments.end()) * blocks;
}

buffer layer_memory::one(const block_layout& layout, std::size_t blocks, std::uint32_t layer, std::size_t block) {
  if (memory_.empty()) memory_ = buffer::host(needed(layout, blocks));
  const auto bytes = layout.segments[layer];
  return memory_.slice(block * bytes, bytes);
}

std::vector<buffer> layer_memory::of(const block_layout& layout, std::size_t blocks, std::uint32_t layer) {
  std::vector<buffer> out;
  out.reserve(blocks);
  for (std::size_t i = 0; i < blocks; ++i) out.push_back(one(layout, blocks, layer, i));
  return out;
}

upload_memory::upload_memory(const stream_begin& about, std::unique_ptr<block_writer> writer)
    : about_(about), writer_(std::move(writer)), digests_(about.keys.size()) {}

void upload_memory::expect(stream_receiver& in) {
  const auto blocks = about_.keys.size();
  const auto next = in.expected() == 0 ? 0 : in.layer() + 1;
  while (in.expected() < about_.layout.layers()) {
    const auto layer = in.expected();
    // What is not in place lies where the layer before did.
    if (layer != next && (!all_in_place_ || (layer - next) * blocks >= ahead)) return;
    layer_ = writer_->place(layer);
    in_place_ = all_in_place_ = !layer_.empty();
    if (!in_place_) layer_.resize(blocks);
    for (std::size_t i = 0; i < blocks; ++i) {
      if (!layer_[i].empty()) continue;
      layer_[i] = memory_.one(about_.layout, blocks, layer, i);
      all_in_place_ = false;
    }
    in.expect(layer_);
  }
}

awaitable<error_code> upload_memory::store_layer(std::uint32_t layer) {
  const bool sealed = about_.digest != digest_algorithm::none;
  auto stored = in_place_ ? co_await writer_->async_placed(layer, sealed ? digests_ : decltype(digests_)(), as_result)
                          : co_await writer_->async_write(layer, layer_, as_result);
  co_return stored ? error_code() : stored.error();
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

// What a store doesn't show at once.
awaitable<result<std::vector<segment_view>>> block_sender::fetch(block_reader& reader, std::uint32_t layer) {
  if (!copies_) {
    auto views = co_await reader.async_view(layer, as_result);
    copies_ = !views && views.error() == errc::unsupported;
    if (!copies_) co_return views;
  }
  auto into = memory_.of(out_.about().layout, blocks_, layer);
  auto good = co_await reader.async_read(layer, into, as_result);
  if (!good) co_return good.error();
  std::vector<segment_view> views;
  views.reserve(*good);
  for (std::size_t i = 0; i < *good; ++i) views.push_back({into[i], {}});
  co_return views;
}

awaitable<void> block_sender::run(http::exchange& x, block_reader& reader) {
  error_code failed;
  if (out_.good() != 0 &&
      !reader.views_at_once()) {  // the reader makes ready for what comes while the first of it is looked for
    const auto begin = std::exchange(pending_, {});
    const std::array first{as_buffer(begin)};
    if (co_await x.write(first)) co_return;
  }
  for (std::uint32_t layer = 0; layer < out_.about().layout.layers() && out_.good() != 0; ++layer) {
    auto views = copies_ ? error_code(asio::error::would_block) : reader.view_now(layer);
    if (!views && (views.error() == asio::error::would_block || views.error() == errc::unsupported))
      views = co_await fetch(reader, layer);
    if (!views) {
      failed = views.error();
      break;
    }
    if (views->size() < out_.good()) {
      if (co_await flush(x)) co_return;
      take_back(static_cast<std::uint32_t>(views->size()));
    }
    // The store may still give what was taken back in an earlier layer.
    views->resize(std::min<std::size_t>(views->size(), out_.good()));
    x.next_turn(out_.about().layout.segments[layer] * views->size());
    for (std::uint32_t i = 0; i < views->size(); ++i) {
      add(layer, i, std::move((*views)[i]));
      const bool first = x.sent() == 0 && batch_.size() * out_.about().layout.segments[layer] >= soon;
      if ((first || batch_.full()) && co_await flush(x)) co_return;
    }
    // What is there is sent; where the next layer is there too, it goes along.
    if (!reader.views_at_once() && co_await flush(x)) co_return;
  }
  if (!failed && out_.good() == blocks_ && !batch_.empty()) {
    const auto end = out_.end();
    if (!co_await flush(x, end)) co_await x.finish();
    co_return;
  }
  if (co_await flush(x)) co_return;
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
void block_sender::add(std::uint32_t layer, std::uint32_t block, segment_view view) {
  if (batch_.empty()) before_ = std::exchange(pending_, {});
  const auto head = out_.segment(layer, block);
  const auto trailer =
      view.digest ? seal(head, *view.digest) : seal(head, std::span<const std::byte>(view.bytes.bytes()));
  batch_.add(head, std::move(view.bytes), trailer);
}

awaitable<error_code> block_sender::flush(http::exchange& x, std::span<const std::byte> after) {
  if (batch_.empty()) co_return error_code();
  const auto ec = co_await x.write(batch_.buffers(before_, after));
  batch_.clear();
  before_.clear();
  co_return ec;
}

}  // namespace cokv::cache
