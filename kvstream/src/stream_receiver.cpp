#include "cokv/kvstream/stream_receiver.hpp"

#include <algorithm>
#include <stdexcept>

namespace cokv {
namespace {

constexpr std::size_t frame_bytes = frame_header_bytes + frame_trailer_bytes;
constexpr std::size_t end_bytes = frame_bytes + 8;
constexpr std::size_t planned_at_once = 128;  // segments
// What is read at once is digested next, and should still be in the second-level cache.
constexpr std::size_t read_at_once = 512 << 10;

}  // namespace

void stream_receiver::expect(std::vector<buffer> segments) {
  const auto& layout = about().layout;
  if (expected_ >= layout.layers()) throw std::logic_error("stream_receiver: no such layer is coming");
  if (segments.size() < coming()) throw std::logic_error("stream_receiver: every block that is coming has a place");
  for (const auto& s : segments)
    if (s.size() != layout.segments[expected_])
      throw std::logic_error("stream_receiver: a segment goes into exactly its length");
  memory_.push_back({expected_++, std::move(segments)});
}

std::span<std::byte> stream_receiver::place_of(std::uint32_t layer, std::uint32_t block) const {
  return memory_[layer - memory_.front().layer].segments[block].bytes();
}

stream_event stream_receiver::next() {
  for (;;) {
    const bool in_a_row = row_at_ < row_.size();
    std::span<const std::byte> in;
    if (in_a_row) {
      in = std::span(row_).subspan(row_at_);
    } else if (got_ != 0) {
      const auto& place = plan_[plan_at_];
      in = {static_cast<const std::byte*>(place.data()), std::min(place.size(), got_)};
      if (const auto room = parser_.room(); room.data() == in.data() && room.size() >= in.size()) {
        parser_.filled(in.size());
        take(in.size());
        continue;
      }
    }
    const auto before = in.size();
    const auto event = parser_.next(in);
    in_a_row ? void(row_at_ += before - in.size()) : take(before - in.size());
    if (event == stream_event::layer && !memory_.empty()) memory_.pop_front();
    if (event == stream_event::segment && parser_.layer() < expected_)
      parser_.into(place_of(parser_.layer(), parser_.block()));
    if (got_ != 0 && !as_planned()) put_in_a_row();
    if (event == stream_event::segment && parser_.layer() < expected_) continue;
    if (event == stream_event::more && unread() != 0) continue;
    return event;
  }
}

// Whether what is read next lies where the parser will have it.
bool stream_receiver::as_planned() const {
  const bool payload = (plan_at_ % 2 == 0) == payload_first_;
  const auto& f = parser_.frame();
  if (f.owed() == 0) return !payload;
  return payload && (f.dropping() || parser_.room().data() == plan_[plan_at_].data());
}

// Before anything is written to where some of it may lie.
void stream_receiver::put_in_a_row() {
  row_.clear();
  row_at_ = 0;
  for (; got_ != 0; ++plan_at_) {
    const auto& place = plan_[plan_at_];
    const auto* from = static_cast<const std::byte*>(place.data());
    const auto n = std::min(place.size(), got_);
    row_.insert(row_.end(), from, from + n);
    got_ -= n;
  }
  plan_at_ = plan_.size();
}

void stream_receiver::take(std::size_t n) {
  if (n == 0) return;
  got_ -= n;
  plan_[plan_at_] += n;
  if (plan_[plan_at_].size() == 0) ++plan_at_;
}

std::span<const asio::mutable_buffer> stream_receiver::room() {
  if (plan_at_ == plan_.size() || !as_planned()) plan();
  std::size_t count = 0, bytes = 0;
  for (auto at = plan_at_; at < plan_.size() && count < places && bytes < read_at_once; ++at) {
    room_[count] = asio::buffer(plan_[at], read_at_once - bytes);
    bytes += room_[count++].size();
  }
  return {room_.data(), count};
}

// From where the parser stands: the rest of the frame, and the segments behind it that have a place.
void stream_receiver::plan() {
  plan_.clear();
  plan_at_ = 0;
  const auto& f = parser_.frame();
  const auto& layout = about().layout;
  const bool inside = f.at() == frame_parser::state::payload;
  const auto owed = static_cast<std::size_t>(f.owed());
  const auto rest = static_cast<std::size_t>(f.wanted()) - owed;  // of the trailer, or of a header

  if (aside_.empty() && good() < coming())
    aside_.resize(*std::max_element(layout.segments.begin(), layout.segments.end()));
  payload_first_ = owed != 0;
  if (payload_first_) add(f.dropping() ? aside_.data() : parser_.room().data(), owed);
  ends_.resize(planned_at_once * frame_bytes + frame_bytes + end_bytes);
  if (inside && f.header().type != frame_type::segment) return add(ends_.data(), rest);  // it may change what comes

  auto layer = parser_.layers_done(), block = parser_.next_block() + inside;
  std::size_t at = 0, until = inside ? rest : 0;
  std::size_t head = inside ? frame_header_bytes : rest;
  bool dropped = payload_first_ && f.dropping();
  for (std::size_t i = 0; i < planned_at_once && !dropped; ++i, ++block) {
    if (block >= coming()) {
      block = 0;
      ++layer;
    }
    if (coming() == 0 || layer >= expected_) break;
    until += std::exchange(head, frame_header_bytes);
    add(ends_.data() + at, until - at);
    const auto place = place_of(layer, block);
    dropped = block >= good();  // there is one such place: what is there may turn out to be something else
    add(dropped ? aside_.data() : place.data(), place.size());
    at = until;
    until += frame_trailer_bytes;
  }
  if (until == 0)
    until = rest;  // a header that may be anything's
  else if (!dropped && coming() != 0 && layer == layout.layers())
    until += end_bytes;
  add(ends_.data() + at, until - at);
}

}  // namespace cokv
