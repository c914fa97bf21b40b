#include "fuzz/mend.hpp"

#include <algorithm>

#include "cokv/kvstream/frame.hpp"
#include "detail/bytes.hpp"
#include "link/link_frame.hpp"

namespace cokv::fuzz {
namespace {

using detail::get;
using detail::put;

std::byte in_range(std::byte value, int first, int count) {
  const auto v = std::to_integer<int>(value);
  return v >= first && v < first + count ? value : static_cast<std::byte>(first + v % count);
}

// What a begin frame says, as far as the frames after it depend on it.
struct outline {
  std::vector<std::uint64_t> segments;
  std::vector<std::byte> keys;
  std::uint32_t layer = 0, block = 0;  // of the next segment in its turn
  std::uint32_t blocks() const { return static_cast<std::uint32_t>(keys.size() / 32); }
};

// Small enough that a stream of a few hundred bytes has all its parts.
void shape_begin(std::byte* head, std::byte* payload, std::size_t room, outline& out) {
  if (room < 16 + 8 + 32) return;
  auto layers = 1 + (get<std::uint32_t>(payload) + 2) % 3, blocks = 1 + (get<std::uint32_t>(payload + 4) + 3) % 4;
  while (16 + 8 * layers + 32 * blocks > room) (blocks > 1 ? blocks : layers) -= 1;
  put(payload, layers);
  put(payload + 4, blocks);
  put(payload + 8, get<std::uint32_t>(payload + 8) % 2);
  put(payload + 12, 0u);
  out.segments.clear();
  for (std::size_t i = 0; i < layers; ++i) {
    auto* at = payload + 16 + 8 * i;
    put(at, 1 + (get<std::uint64_t>(at) + 63) % 64);
    out.segments.push_back(get<std::uint64_t>(at));
  }
  const auto* keys = payload + 16 + 8 * layers;
  out.keys.assign(keys, keys + 32 * blocks);
  put(head + 104, std::uint64_t{16} + 8 * layers + 32 * blocks);
}

void shape_follower(std::byte* head, std::byte* payload, std::size_t room, outline& out, bool turn) {
  if (out.keys.empty()) return;
  const auto type = std::to_integer<int>(head[6]);
  auto layer = get<std::uint32_t>(head + 72) % out.segments.size();
  auto block = get<std::uint32_t>(head + 76) % out.blocks();
  if (turn && type == 2) {
    layer = std::min<std::size_t>(out.layer, out.segments.size() - 1);
    block = out.block;
    if (++out.block >= out.blocks()) {
      out.block = 0;
      ++out.layer;
    }
  }
  put(head + 72, static_cast<std::uint32_t>(layer));
  put(head + 76, block);
  std::copy_n(out.keys.data() + 32 * block, 32, head + 40);
  if (type == 2) {
    put(head + 96, std::uint64_t{0});
    if (out.segments[layer] <= room) put(head + 104, out.segments[layer]);
  } else if (type == 3 && room >= 4) {
    put(head + 104, std::uint64_t{4});
    if (block <= out.block && out.block > 0) {  // fewer blocks from here on
      out.block = 0;
      ++out.layer;
    }
    if (turn && block > 0) out.keys.resize(32 * block);
  } else if (type == 4 && room >= 8) {
    put(head + 104, std::uint64_t{8});
    if (turn) put(payload, std::uint64_t{out.blocks()});
  }
}

}  // namespace

std::vector<std::byte> mend_frames(const input& in) {
  std::vector<std::byte> wire(in.wire.begin(), in.wire.end());
  outline about;
  std::uint64_t sequence = 0;
  constexpr auto around = frame_header_bytes + frame_trailer_bytes;
  for (std::size_t at = 0; wire.size() - at >= frame_header_bytes;) {
    auto* head = wire.data() + at;
    auto* payload = head + frame_header_bytes;
    const auto left = wire.size() - at;
    const auto room = left > around ? left - around : 0;
    if (in.mend & fields) {
      std::copy_n(reinterpret_cast<const std::byte*>("cokv\1\0"), 6, head);
      head[6] = in_range(head[6], 1, 6);
      head[7] = in_range(head[7], 0, 2);
      put(head + 112, std::uint64_t{0});
      const auto length = get<std::uint64_t>(head + 104);
      if (length > room) put(head + 104, room == 0 ? 0 : length % std::min<std::uint64_t>(room, 200));
    }
    if (in.mend & order) {
      head[7] = std::byte{1};
      if (sequence == 0) head[6] = in_range(head[6], 1, 1);
      std::copy_n(wire.data() + 8, 32, head + 8);   // one namespace
      std::copy_n(wire.data() + 80, 8, head + 80);  // one generation
      put(head + 88, sequence);
      if (head[6] == std::byte{1})
        shape_begin(head, payload, room, about);
      else
        shape_follower(head, payload, room, about, in.mend & turn);
    }
    if (in.mend & digests) put(head + 120, digest_of({head, 120}));
    const auto length = get<std::uint64_t>(head + 104);
    if (length > left - frame_header_bytes || left - frame_header_bytes - length < frame_trailer_bytes) break;
    if (in.mend & trailers) {
      frame_head copy;
      std::copy_n(head, copy.size(), copy.begin());
      const auto trailer = seal(copy, std::span(payload, length));
      std::copy(trailer.begin(), trailer.end(), payload + length);
    }
    at += around + length;
    ++sequence;
  }
  return wire;
}

std::vector<std::byte> mend_link(const input& in) {
  using namespace detail;
  std::vector<std::byte> wire(in.wire.begin(), in.wire.end());
  for (std::size_t at = 0; wire.size() - at >= link_header_bytes;) {
    auto* head = wire.data() + at;
    auto* payload = head + link_header_bytes;
    const auto left = wire.size() - at - link_header_bytes;
    if (in.mend & fields) {
      std::copy_n(reinterpret_cast<const std::byte*>("ckvL\1"), 5, head);
      head[5] = in_range(head[5], 1, 15);
      head[6] = in_range(head[6], 0, 2);
      const auto type = std::to_integer<int>(head[5]);
      const bool listed = type == 2 && head[7] == std::byte{3};
      if (!listed) head[7] &= std::byte{type >= 2 && type <= 4};  // in place: put, get, data
      if (type >= 14) head[6] = std::byte{1};                     // places and answers are sealed
      put(head + 12, std::uint32_t{0});
      const auto length = get<std::uint64_t>(head + 48);
      if (type == 5 || type == 7 || (type >= 9 && type < 14 && type != 12))  // done, ping, fence, commit, open, recall
        put(head + 48, std::uint64_t{0});
      else if (type != 3 && head[7] != std::byte{1} && length + link_trailer_bytes > left)
        put(head + 48,
            left <= link_trailer_bytes ? 0 : length % std::min<std::uint64_t>(left - link_trailer_bytes, 400));
    }
    if (in.mend & digests) put(head + 56, digest_of({head, 56}));
    const auto header = decode_link(std::span<const std::byte, link_header_bytes>(head, link_header_bytes));
    if (!header) break;
    const auto length = header->has_payload() ? header->length : 0;
    const auto trailer = header->has_trailer() ? link_trailer_bytes : 0;
    if (length > left || left - length < trailer) break;
    if (trailer && in.mend & trailers) put(payload + length, digest_of({head, link_header_bytes + length}));
    at += link_header_bytes + length + trailer;
  }
  return wire;
}

}  // namespace cokv::fuzz
