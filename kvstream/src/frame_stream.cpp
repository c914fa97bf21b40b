#include "cokv/kvstream/frame_stream.hpp"

#include <algorithm>
#include <stdexcept>

#include "cokv/runtime/error.hpp"
#include "detail/bytes.hpp"

namespace cokv {
namespace {

using detail::append;
using detail::get;

constexpr std::uint32_t flag_deferred = 1, flag_unsealed = 2;

void rule(bool holds, const char* text) {
  if (!holds) throw std::logic_error(std::string("stream_writer: ") + text);
}

std::vector<std::byte> whole_frame(const frame_header& header, std::span<const std::byte> payload) {
  auto head = encode(header);
  auto trailer = seal(head, payload);
  std::vector<std::byte> out;
  out.reserve(head.size() + payload.size() + trailer.size());
  append(out, head);
  append(out, payload);
  append(out, trailer);
  return out;
}

std::string text_of(std::span<const std::byte> bytes) {
  std::string out(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  for (auto& c : out)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';  // it will be shown in logs
  return out;
}

}  // namespace

std::uint64_t stream_bytes(const block_layout& layout, std::size_t blocks) noexcept {
  constexpr auto frame = frame_header_bytes + frame_trailer_bytes;
  return frame + 16 + 8 * layout.segments.size() + 32 * blocks +                  // begin
         (frame * layout.segments.size() + layout.bytes()) * blocks + frame + 8;  // segments, end
}

stream_writer::stream_writer(stream_begin about) : about_(std::move(about)) {
  rule(!about_.keys.empty() && about_.layout.layers() > 0, "a stream has blocks, and blocks have layers");
  good_ = static_cast<std::uint32_t>(about_.keys.size());
}

std::vector<std::byte> stream_writer::whole(frame_type type, std::uint32_t block, std::span<const std::byte> payload) {
  frame_header h;
  h.type = type;
  h.ns = about_.ns;
  if (type == frame_type::missing) h.key = about_.keys[block];
  h.block = block;
  h.layer = type == frame_type::missing ? layer_ : 0;
  h.generation = about_.generation;
  h.sequence = sequence_++;
  h.length = payload.size();
  return whole_frame(h, payload);
}

std::vector<std::byte> stream_writer::begin() {
  rule(sequence_ == 0, "begin comes first, once");
  std::vector<std::byte> body;
  body.reserve(16 + 8 * about_.layout.segments.size() + 32 * about_.keys.size());
  append(body, about_.layout.layers());
  append(body, static_cast<std::uint32_t>(about_.keys.size()));
  append(body, (about_.deferred ? flag_deferred : 0u) | (about_.digest == digest_algorithm::none ? flag_unsealed : 0u));
  append(body, 0u);
  for (auto s : about_.layout.segments) append(body, s);
  for (auto& k : about_.keys) append(body, k.bytes);
  return whole(frame_type::begin, 0, body);
}

frame_head stream_writer::segment(std::uint32_t layer, std::uint32_t block) {
  rule(sequence_ > 0, "begin comes first, once");
  if (block_ >= good_) {
    ++layer_;
    block_ = 0;
  }
  rule(block < good_, "a block that was taken back does not come");
  rule(layer == layer_ && block == block_ && layer < about_.layout.layers(), "segments come layer by layer");
  frame_header h;
  h.type = frame_type::segment;
  h.ns = about_.ns;
  h.algorithm = about_.digest;
  h.key = about_.keys[block];
  h.layer = layer;
  h.block = block_++;
  h.generation = about_.generation;
  h.sequence = sequence_++;
  h.length = about_.layout.segments[layer];
  return encode(h);
}

std::vector<std::byte> stream_writer::missing(std::uint32_t block, error_code why) {
  rule(sequence_ > 0, "begin comes first, once");
  rule(block < good_, "a block is taken back once");
  if (block_ >= good_) {
    ++layer_;
    block_ = 0;
  }
  good_ = block;
  std::vector<std::byte> body;
  append(body, to_wire(why ? why : error_code(errc::not_found)));
  return whole(frame_type::missing, block, body);
}

std::vector<std::byte> stream_writer::end() {
  rule(sequence_ > 0, "begin comes first, once");
  auto done = layer_ + (block_ >= good_ ? 1 : 0);
  rule(good_ == 0 || done == about_.layout.layers(), "all segments come before the end");
  std::vector<std::byte> body;
  append(body, good_);
  append(body, 0u);
  return whole(frame_type::end, 0, body);
}

std::vector<std::byte> stream_writer::error(error_code why, std::string_view text) {
  std::vector<std::byte> body;
  append(body, to_wire(why ? why : error_code(errc::unavailable)));
  append(body, std::as_bytes(std::span(text.substr(0, 1024))));
  return whole(frame_type::error, 0, body);
}

std::vector<std::byte> ack_frame(const namespace_id& ns, std::uint64_t generation, error_code what,
                                 std::uint32_t blocks) {
  std::vector<std::byte> body;
  append(body, to_wire(what));
  append(body, blocks);
  frame_header h;
  h.type = frame_type::ack;
  h.ns = ns;
  h.generation = generation;
  h.length = body.size();
  return whole_frame(h, body);
}

stream_parser::stream_parser(frame_limits limits, std::optional<stream_begin> expected)
    : limits_(limits), expected_(std::move(expected)), frames_(limits) {}

stream_event stream_parser::fail(error_code ec) {
  phase_ = phase::failed;
  error_ = ec;
  return stream_event::failed;
}

stream_event stream_parser::next(std::span<const std::byte>& in) {
  for (;;) {
    if (phase_ == phase::failed) return stream_event::failed;
    if (layer_over()) {
      event_layer_ = layer_++;
      block_ = 0;
      return stream_event::layer;
    }
    // A segment stays an event until it has a place; the others find theirs without the caller.
    if (frames_.at() == frame_parser::state::place) {
      if (auto event = on_header(); event != stream_event::more) return event;
    }
    if (frames_.at() == frame_parser::state::frame) {
      if (auto event = on_frame(); event != stream_event::more) return event;
      continue;
    }
    if (in.empty()) return stream_event::more;
    if (phase_ == phase::done) return fail(errc::protocol);  // bytes after the end
    in = in.subspan(frames_.feed(in));
    if (frames_.at() == frame_parser::state::failed) return fail(frames_.error());
  }
}

stream_event stream_parser::on_header() {
  auto& h = frames_.header();
  const bool segment = h.type == frame_type::segment && phase_ == phase::blocks;
  if (h.algorithm != (segment ? about_.digest : digest_algorithm::xxh3_64)) return fail(errc::unsupported);
  if (h.sequence != sequence_) return fail(errc::protocol);
  bool first = phase_ == phase::start;
  bool may_start = h.type == frame_type::begin || h.type == frame_type::error || h.type == frame_type::ack;
  if (first != may_start && h.type != frame_type::error) return fail(errc::protocol);
  if (first && expected_) {
    if (h.ns != expected_->ns) return fail(errc::namespace_mismatch);
    if (h.generation != expected_->generation) return fail(errc::protocol);
  }
  if (!first && (h.ns != about_.ns || h.generation != about_.generation)) return fail(errc::protocol);
  if (h.type != frame_type::segment) {
    frames_.keep();
    return stream_event::more;
  }
  if (h.layer != layer_ || h.block != block_ || h.block >= coming_ || h.layer >= about_.layout.layers() ||
      h.key != about_.keys[h.block] || h.offset != 0 || h.length != about_.layout.segments[h.layer])
    return fail(errc::protocol);
  event_layer_ = h.layer;
  event_block_ = h.block;
  dropping_ = h.block >= good_;
  if (!dropping_) return stream_event::segment;
  frames_.discard();
  return stream_event::more;
}

stream_event stream_parser::on_frame() {
  ++sequence_;
  auto type = frames_.header().type;
  if (type != frame_type::segment && !frames_.intact()) return fail(errc::digest_mismatch);
  auto event = [&] {
    switch (type) {
      case frame_type::begin:
        return on_begin();
      case frame_type::segment:
        return on_segment();
      case frame_type::missing:
        return on_missing();
      case frame_type::end:
        return on_end();
      case frame_type::error:
        return on_error();
      case frame_type::ack:
        return on_ack();
    }
    return fail(errc::protocol);
  }();
  frames_.next();
  return event;
}

stream_event stream_parser::on_begin() {
  auto body = frames_.payload();
  if (body.size() < 16) return fail(errc::protocol);
  auto layers = get<std::uint32_t>(body.data()), blocks = get<std::uint32_t>(body.data() + 4);
  auto flags = get<std::uint32_t>(body.data() + 8);
  if (layers == 0 || blocks == 0 || flags > (flag_deferred | flag_unsealed) ||
      get<std::uint32_t>(body.data() + 12) != 0)
    return fail(errc::protocol);
  if (layers > limits_.max_layers || blocks > limits_.max_blocks) return fail(errc::too_large);
  if (body.size() != 16 + 8 * std::uint64_t{layers} + 32 * std::uint64_t{blocks}) return fail(errc::protocol);
  about_.ns = frames_.header().ns;
  about_.generation = frames_.header().generation;
  about_.deferred = flags & flag_deferred;
  about_.digest = flags & flag_unsealed ? digest_algorithm::none : digest_algorithm::xxh3_64;
  if (about_.digest == digest_algorithm::none && !limits_.unsealed) return fail(errc::unsupported);
  about_.layout.segments.resize(layers);
  auto* at = body.data() + 16;
  for (auto& s : about_.layout.segments) {
    s = get<std::uint64_t>(at);
    at += 8;
    if (s == 0) return fail(errc::protocol);
    if (s > limits_.max_segment) return fail(errc::too_large);
  }
  about_.keys.resize(blocks);
  for (auto& k : about_.keys) {
    std::copy_n(at, 32, k.bytes.begin());
    at += 32;
  }
  if (expected_ && about_.layout != expected_->layout) return fail(errc::namespace_mismatch);
  if (expected_ && about_.digest != expected_->digest) return fail(errc::unsupported);
  if (expected_ && about_.keys != expected_->keys) return fail(errc::protocol);
  coming_ = good_ = blocks;
  phase_ = phase::blocks;
  return stream_event::begun;
}

stream_event stream_parser::on_segment() {
  ++block_;
  if (dropping_) return stream_event::more;
  digest_ = frames_.digest();
  if (frames_.intact()) return stream_event::arrived;
  good_ = std::min(good_, event_block_);
  return stream_event::damaged;
}

stream_event stream_parser::on_missing() {
  auto& h = frames_.header();
  auto body = frames_.payload();
  if (body.size() != 4 || h.block >= coming_ || h.key != about_.keys[h.block]) return fail(errc::protocol);
  coming_ = h.block;
  good_ = std::min(good_, coming_);
  event_layer_ = layer_;
  event_block_ = h.block;
  return stream_event::missing;
}

stream_event stream_parser::on_end() {
  auto body = frames_.payload();
  bool all = coming_ == 0 || layer_ == about_.layout.layers();
  if (body.size() != 8 || get<std::uint32_t>(body.data()) != coming_ || get<std::uint32_t>(body.data() + 4) != 0 ||
      !all)
    return fail(errc::protocol);
  phase_ = phase::done;
  return stream_event::ended;
}

stream_event stream_parser::on_error() {
  auto body = frames_.payload();
  if (body.size() < 4) return fail(errc::protocol);
  auto why = from_wire(get<std::uint32_t>(body.data()));
  if (!why) return fail(errc::protocol);
  text_ = text_of(body.subspan(4));
  from_peer_ = true;
  return fail(why);
}

stream_event stream_parser::on_ack() {
  auto body = frames_.payload();
  if (body.size() != 8) return fail(errc::protocol);
  ack_ = {from_wire(get<std::uint32_t>(body.data())), get<std::uint32_t>(body.data() + 4)};
  phase_ = phase::done;
  return stream_event::acked;
}

error_code stream_parser::finish() const noexcept {
  if (phase_ == phase::failed) return error_;
  if (phase_ != phase::done || !frames_.between_frames()) return errc::protocol;
  return {};
}

}  // namespace cokv
