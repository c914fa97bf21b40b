#include "cokv/kvstream/frame.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <utility>

#include "cokv/runtime/error.hpp"
#include "detail/bytes.hpp"

namespace cokv {
namespace {

using detail::get;
using detail::put;

constexpr std::array<std::byte, 4> magic{std::byte{'c'}, std::byte{'o'}, std::byte{'k'}, std::byte{'v'}};
constexpr std::uint16_t version = 1;
constexpr std::size_t digest_at = 120;

constexpr std::pair<std::uint32_t, errc> codes[] = {
    {1, errc::not_found},     {2, errc::digest_mismatch}, {3, errc::namespace_mismatch},
    {4, errc::store_full},    {5, errc::too_large},       {6, errc::invalid_argument},
    {7, errc::protocol},      {8, errc::unavailable},     {9, errc::permission_denied},
    {10, errc::unsupported},  {11, errc::out_of_range},   {12, errc::stale_reference},
    {13, errc::closed},       {14, errc::already_exists}, {15, errc::deadline},
    {16, errc::wrong_device},
};
constexpr std::uint32_t internal = 255;

}  // namespace

frame_head encode(const frame_header& h) {
  frame_head out{};
  auto* at = out.data();
  std::copy(magic.begin(), magic.end(), at);
  put(at + 4, version);
  put(at + 6, static_cast<std::uint8_t>(h.type));
  put(at + 7, static_cast<std::uint8_t>(h.algorithm));
  std::copy(h.ns.bytes.begin(), h.ns.bytes.end(), at + 8);
  std::copy(h.key.bytes.begin(), h.key.bytes.end(), at + 40);
  put(at + 72, h.layer);
  put(at + 76, h.block);
  put(at + 80, h.generation);
  put(at + 88, h.sequence);
  put(at + 96, h.offset);
  put(at + 104, h.length);
  put(at + digest_at, digest_of(std::span(out).first(digest_at)));
  return out;
}

result<frame_header> decode(std::span<const std::byte, frame_header_bytes> bytes) {
  auto* at = bytes.data();
  if (get<std::uint64_t>(at + digest_at) != digest_of(bytes.first(digest_at))) return errc::digest_mismatch;
  if (!std::equal(magic.begin(), magic.end(), at)) return errc::protocol;
  if (get<std::uint16_t>(at + 4) != version) return errc::unsupported;
  auto type = get<std::uint8_t>(at + 6), algorithm = get<std::uint8_t>(at + 7);
  if (type < static_cast<std::uint8_t>(frame_type::begin) || type > static_cast<std::uint8_t>(frame_type::ack))
    return errc::protocol;
  if (algorithm > static_cast<std::uint8_t>(digest_algorithm::xxh3_64)) return errc::unsupported;
  if (get<std::uint64_t>(at + 112) != 0) return errc::protocol;
  frame_header h;
  h.type = static_cast<frame_type>(type);
  h.algorithm = static_cast<digest_algorithm>(algorithm);
  std::copy_n(at + 8, 32, h.ns.bytes.begin());
  std::copy_n(at + 40, 32, h.key.bytes.begin());
  h.layer = get<std::uint32_t>(at + 72);
  h.block = get<std::uint32_t>(at + 76);
  h.generation = get<std::uint64_t>(at + 80);
  h.sequence = get<std::uint64_t>(at + 88);
  h.offset = get<std::uint64_t>(at + 96);
  h.length = get<std::uint64_t>(at + 104);
  return h;
}

static bool sealed(const frame_head& head) {
  return head[7] != std::byte{static_cast<std::uint8_t>(digest_algorithm::none)};
}

frame_trailer seal(const frame_head& head, std::uint64_t payload_digest) {
  frame_trailer out{};
  if (!sealed(head)) return out;
  std::array<std::byte, frame_header_bytes + sizeof payload_digest> both;
  std::copy(head.begin(), head.end(), both.begin());
  put(both.data() + frame_header_bytes, payload_digest);
  put(out.data(), digest_of(both));
  return out;
}

frame_trailer seal(const frame_head& head, std::span<const std::byte> payload) {
  return seal(head, sealed(head) ? digest_of(payload) : 0);
}

frame_trailer seal_copy(const frame_head& head, std::span<std::byte> into, std::span<const std::byte> payload) {
  return seal(head, copy_digest(into, payload));
}

std::uint64_t frame_limits::payload(frame_type type) const noexcept {
  switch (type) {
    case frame_type::begin:
      return 16 + 8 * std::uint64_t{max_layers} + 32 * std::uint64_t{max_blocks};
    case frame_type::segment:
      return max_segment;
    case frame_type::missing:
    case frame_type::end:
    case frame_type::error:
    case frame_type::ack:
      return max_text;
  }
  return 0;
}

std::uint32_t to_wire(error_code ec) noexcept {
  if (!ec) return 0;
  for (auto& [number, code] : codes)
    if (ec == code) return number;
  return internal;
}

error_code from_wire(std::uint32_t number) noexcept {
  if (number == 0) return {};
  for (auto& [n, code] : codes)
    if (n == number) return code;
  return errc::unavailable;
}

std::size_t frame_parser::feed(std::span<const std::byte> in) {
  std::size_t taken = 0;
  while (taken < in.size()) {
    std::size_t n = 0;
    if (state_ == state::header)
      n = feed_header(in.subspan(taken));
    else if (state_ == state::payload)
      n = feed_payload(in.subspan(taken));
    if (n == 0) break;
    taken += n;
  }
  return taken;
}

std::size_t frame_parser::feed_header(std::span<const std::byte> in) {
  auto n = std::min(in.size(), head_.size() - head_size_);
  std::copy_n(in.begin(), n, head_.begin() + static_cast<std::ptrdiff_t>(head_size_));
  head_size_ += n;
  if (head_size_ < head_.size()) return n;
  auto header = decode(head_);
  if (!header) {
    fail(header.error());
  } else if (header->length > limits_.payload(header->type)) {
    fail(errc::too_large);
  } else {
    header_ = *header;
    state_ = state::place;
  }
  return n;
}

void frame_parser::start_payload(bool discarded) {
  discarded_ = discarded;
  got_ = 0;
  trailer_size_ = 0;
  if (digests()) digest_.reset();
  state_ = state::payload;
}

void frame_parser::into(std::span<std::byte> target) {
  if (state_ != state::place) throw std::logic_error("frame_parser: a payload is placed when its header is there");
  if (target.size() != header_.length) throw std::logic_error("frame_parser: a payload goes into exactly its length");
  target_ = target;
  start_payload(false);
}

void frame_parser::keep() {
  if (state_ != state::place) throw std::logic_error("frame_parser: a payload is placed when its header is there");
  kept_.resize(header_.length);
  into(kept_);
}

void frame_parser::discard() {
  if (state_ != state::place) throw std::logic_error("frame_parser: a payload is placed when its header is there");
  target_ = {};
  start_payload(true);
}

std::span<std::byte> frame_parser::room() const noexcept {
  if (state_ != state::payload || discarded_) return {};
  return target_.subspan(got_);
}

void frame_parser::filled(std::size_t n) {
  auto there = room();
  if (n > there.size()) throw std::logic_error("frame_parser: filled more than there was room for");
  if (digests()) digest_.update(there.first(n));
  got_ += n;
}

std::uint64_t frame_parser::wanted() const noexcept {
  if (state_ == state::header) return head_.size() - head_size_;
  return state_ == state::payload ? owed() + trailer_.size() - trailer_size_ : 0;
}

// A reader that read ahead into the targets themselves shows bytes that lie in them, elsewhere than they belong.
static bool overlap(std::span<const std::byte> a, std::span<const std::byte> b) noexcept {
  const std::less<> before;
  return before(a.data(), b.data() + b.size()) && before(b.data(), a.data() + a.size());
}

std::size_t frame_parser::feed_payload(std::span<const std::byte> in) {
  if (got_ < header_.length) {
    auto n = static_cast<std::size_t>(std::min<std::uint64_t>(in.size(), header_.length - got_));
    const auto from = in.first(n);
    if (!digests()) {
      if (!discarded_) std::memmove(target_.data() + got_, from.data(), n);
    } else if (discarded_) {
      digest_.update(from);
    } else if (const auto to = target_.subspan(got_, n); overlap(to, from)) {
      digest_.update(from);
      std::memmove(to.data(), from.data(), n);
    } else {
      digest_.copy(to, from, copy_path::memcpy);  // it is read again soon
    }
    got_ += n;
    return n;
  }
  auto n = std::min(in.size(), trailer_.size() - trailer_size_);
  std::copy_n(in.begin(), n, trailer_.begin() + static_cast<std::ptrdiff_t>(trailer_size_));
  trailer_size_ += n;
  if (trailer_size_ < trailer_.size()) return n;
  payload_digest_ = digests() ? digest_.value() : 0;
  intact_ = trailer_ == seal(head_, payload_digest_);
  state_ = state::frame;
  return n;
}

void frame_parser::next() {
  if (state_ != state::frame) throw std::logic_error("frame_parser: next() follows a whole frame");
  head_size_ = 0;
  target_ = {};
  kept_.clear();
  state_ = state::header;
}

void frame_parser::fail(error_code ec) {
  error_ = ec;
  state_ = state::failed;
}

}  // namespace cokv
