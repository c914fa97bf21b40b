// frame_parser: any split of the bytes, and payloads read right into their place, give what reading the bytes as a
// whole by the rules of frame.hpp gives; memory is bounded by the limits, not by what a header says.
#include "cokv/kvstream/frame.hpp"

#include <cstring>

#include "cokv/runtime/error.hpp"
#include "fuzz/mend.hpp"

namespace cokv::fuzz {
namespace {

using log = std::vector<std::uint64_t>;
enum placing : std::uint8_t { into, keep, discard };

frame_limits limits_of(const input& in) {
  constexpr std::uint64_t segments[] = {64, 512, 4096, 100};
  return {.max_blocks = 1u + (in.how >> 4), .max_layers = 4, .max_segment = segments[in.how % 4], .max_text = 96};
}

placing placing_of(const input& in, std::uint64_t frame) { return static_cast<placing>(in.choice(frame, 3)); }

void log_frame(log& out, const frame_head& head, bool intact, bytes payload, placing where) {
  out.push_back(digest_of(head));
  out.push_back(intact);
  out.push_back(where == discard ? 0 : digest_of(payload));
}

void log_error(log& out, error_code ec, std::size_t at) {
  out.push_back(static_cast<std::uint64_t>(ec.value()));
  out.push_back(at);
}

// What the bytes mean, all of them at hand.
log expected(const input& in, bytes wire) {
  const auto limits = limits_of(in);
  log out;
  std::size_t at = 0;
  for (std::uint64_t frame = 0; wire.size() - at >= frame_header_bytes; ++frame) {
    frame_head head;
    std::memcpy(head.data(), wire.data() + at, head.size());
    at += head.size();
    const auto header = decode(head);
    if (!header || header->length > limits.payload(header->type)) {
      log_error(out, header ? make_error_code(errc::too_large) : header.error(), at);
      reach(header                                    ? "frame: too large"
            : header.error() == errc::digest_mismatch ? "frame: damaged header"
                                                      : "frame: not a frame");
      return out;
    }
    require(encode(*header) == head, "a header encodes to the bytes it was decoded from");
    reach("frame: header");
    const auto left = wire.size() - at;
    if (header->length > left || left - header->length < frame_trailer_bytes) {
      reach("frame: cut short");
      at = wire.size() + 1;
      break;
    }
    const auto payload = wire.subspan(at, header->length);
    const auto trailer = seal(head, payload);
    std::vector<std::byte> copy(payload.size());
    require(seal_copy(head, copy, payload) == trailer, "a seal does not depend on how it was made");
    at += payload.size();
    const bool intact = std::memcmp(trailer.data(), wire.data() + at, trailer.size()) == 0;
    at += trailer.size();
    log_frame(out, head, intact, payload, placing_of(in, frame));
    reach(intact ? "frame: intact" : "frame: damaged payload");
  }
  out.push_back(at == wire.size());
  return out;
}

log read(const input& in, bytes wire, way how) {
  const auto limits = limits_of(in);
  const auto most = std::max({limits.payload(frame_type::begin), limits.max_segment, limits.max_text});
  frame_parser parser(limits);
  cutter cut(in, how);
  log out;
  std::vector<std::byte> target;
  placing where = discard;
  std::size_t at = 0;
  using state = frame_parser::state;
  for (std::uint64_t frame = 0;;) {
    require(parser.memory() <= most + frame_header_bytes, "memory within the limits");
    if (parser.at() == state::place) {
      where = placing_of(in, frame++);
      target.assign(where == into ? parser.header().length : 0, std::byte{0xa5});
      target.shrink_to_fit();  // one byte too many is seen
      if (where == into)
        parser.into(target);
      else
        where == keep ? parser.keep() : parser.discard();
    } else if (parser.at() == state::frame) {
      log_frame(out, encode(parser.header()), parser.intact(), where == keep ? parser.payload() : target, where);
      parser.next();
    } else if (parser.at() == state::failed) {
      require(parser.feed(wire) == 0, "a failed parser takes no bytes");
      log_error(out, parser.error(), at);
      return out;
    } else if (at == wire.size()) {
      out.push_back(parser.between_frames());
      return out;
    } else if (const auto room = parser.room(); how == way::direct && !room.empty()) {
      const auto n = cut(std::min(room.size(), wire.size() - at));
      std::memcpy(room.data(), wire.data() + at, n);
      parser.filled(n);
      at += n;
      reach("frame: filled");
    } else {
      const auto n = cut(wire.size() - at);
      const auto taken = parser.feed(wire.subspan(at, n));
      require(taken > 0 && taken <= n, "a parser that waits for bytes takes some");
      require(taken == n || parser.at() != state::payload, "bytes are left only where the caller has to act");
      at += taken;
    }
  }
}

}  // namespace

void frame(bytes raw) {
  const input in(raw);
  const auto wire = mend_frames(in);
  const auto meant = expected(in, wire);
  require(read(in, wire, way::whole) == meant, "frames of bytes as a whole");
  require(read(in, wire, way::pieces) == meant, "frames of bytes in pieces");
  require(read(in, wire, way::direct) == meant, "frames read right into their place");
}

}  // namespace cokv::fuzz
