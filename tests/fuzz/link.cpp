// The links' parser: any split of the bytes, and scattered payloads read right into their place, give what the bytes
// mean as a whole; nothing is written into a target once it is dropped; a hello that is read is written the same way.
#include <cstring>

#include "cokv/runtime/error.hpp"
#include "detail/bytes.hpp"
#include "fuzz/mend.hpp"
#include "link/hello.hpp"
#include "link/link_parser.hpp"
#include "link/window_layout.hpp"

namespace cokv::fuzz {
namespace {

using namespace detail;
using log = std::vector<std::uint64_t>;
enum placing : std::uint8_t { into, keep, discard, drop };

link_limits limits_of(const input& in) {
  constexpr std::uint64_t sizes[] = {64, 512, 4096, 100};
  return {.chunk = sizes[in.how % 4],
          .message = sizes[in.how / 4 % 4],
          .text = sizes[in.how / 16 % 4],
          .layout = sizes[in.how / 64 % 4]};
}

placing placing_of(const input& in, std::uint64_t frame) { return static_cast<placing>(in.choice(frame, 4)); }

// Of a payload that is dropped: after how many of its bytes.
std::uint64_t drop_at(const input& in, std::uint64_t frame, std::uint64_t length) {
  return in.choice(~frame, length + 1);
}

std::uint64_t most_of(const link_limits& limits, link_type type) {
  switch (type) {
    case link_type::put:
    case link_type::get:
    case link_type::data:
      return limits.chunk;
    case link_type::message:
      return limits.message;
    case link_type::hello:
    case link_type::goodbye:
      return limits.text;
    case link_type::grant:
      return limits.layout;
    case link_type::places:
    case link_type::dones:
      return limits.list;
    default:
      return 0;
  }
}

void log_frame(log& out, const link_header& header, bool intact, bool dropped, bytes payload) {
  out.push_back(digest_of(encode(header)));
  out.push_back(intact);
  out.push_back(dropped);
  out.push_back(dropped ? 0 : digest_of(payload));
}

void check_layout(bytes payload) {
  const auto layout = decode_layout(payload);
  if (!layout) return reach("link: no layout");
  require(std::ranges::equal(encode(*layout), payload), "a layout is written as it was read");
  reach("link: layout");
}

void check_places(bytes payload) {
  const auto places = decode_places(payload);
  if (!places) return reach("link: no places");
  require(std::ranges::equal(encode(*places), payload), "places are written as they were read");
  reach("link: places");
}

void check_dones(bytes payload) {
  const auto requests = decode_requests(payload);
  if (!requests) return reach("link: no answers");
  require(requests->size() * 8 == payload.size(), "every answer is read");
  reach("link: answers");
}

void check_hello(bytes payload) {
  const auto hello = decode_hello(payload);
  if (!hello) return reach("link: no hello");
  const auto again = encode(*hello);
  require(std::ranges::equal(again, payload), "a hello is written as it was read");
  require(decode_hello(again).value() == *hello, "a hello is read as it was written");
  reach("link: hello");
}

// What the bytes mean, all of them at hand.
log expected(const input& in, bytes wire) {
  const auto limits = limits_of(in);
  log out;
  std::size_t at = 0;
  std::uint64_t payloads = 0;
  while (wire.size() - at >= link_header_bytes) {
    const auto head = wire.subspan(at).first<link_header_bytes>();
    at += head.size();
    const auto header = decode_link(head);
    if (!header || header->length > most_of(limits, header->type)) {
      out.push_back(static_cast<std::uint64_t>((header ? make_error_code(errc::too_large) : header.error()).value()));
      out.push_back(at);
      reach(header ? "link: too large" : "link: refused header");
      return out;
    }
    require(std::ranges::equal(encode(*header), head), "a header encodes to the bytes it was decoded from");
    if (!header->has_payload() && header->has_trailer()) {
      if (wire.size() - at < link_trailer_bytes) {
        reach("link: cut short");
        at = wire.size() + 1;
        break;
      }
      log_frame(out, *header, true, false, wire.subspan(at, link_trailer_bytes));
      at += link_trailer_bytes;
      reach("link: in place");
      continue;
    }
    if (!header->has_payload()) {
      log_frame(out, *header, true, false, {});
      reach("link: bare frame");
      continue;
    }
    const auto trailer = header->has_trailer() ? link_trailer_bytes : 0;
    if (wire.size() - at < header->length + trailer) {
      reach("link: cut short");
      at = wire.size() + 1;
      break;
    }
    const auto payload = wire.subspan(at, header->length);
    const auto digest = digest_of(wire.subspan(at - head.size(), head.size() + payload.size()));
    at += payload.size();
    const bool right = trailer == 0 || get<std::uint64_t>(wire.data() + at) == digest;
    at += trailer;
    const auto where = placing_of(in, payloads);
    // Without a trailer, a payload is a whole frame with its last byte: nothing of it is left to drop.
    const bool over = trailer == 0 && drop_at(in, payloads, payload.size()) == payload.size();
    const bool dropped = where == discard || (where == drop && !over);
    ++payloads;
    log_frame(out, *header, right && !dropped, dropped, payload);
    if (header->type == link_type::hello && right) check_hello(payload);
    if (header->type == link_type::grant && right) check_layout(payload);
    if (header->type == link_type::places && right) check_places(payload);
    if (header->type == link_type::dones && right) check_dones(payload);
    reach(dropped ? "link: dropped" : !right ? "link: damaged payload" : trailer ? "link: intact" : "link: unsealed");
  }
  out.push_back(at == wire.size());
  return out;
}

// Memory in parts of all sizes, none included, for one payload.
struct scattered {
  std::vector<std::byte> memory;
  std::vector<std::span<std::byte>> parts;

  void make(const input& in, std::uint64_t frame, std::size_t n) {
    memory.assign(n, std::byte{0xa5});
    memory.shrink_to_fit();
    parts.clear();
    splitmix random(in.seed ^ frame << 20);
    for (std::size_t at = 0; at < n;) {
      const auto part = std::min<std::size_t>(n - at, random.below(40));
      parts.push_back(std::span(memory).subspan(at, part));
      at += part;
    }
  }
};

class reader {
 public:
  reader(const input& in, bytes wire, way how)
      : in_(in), wire_(wire), how_(how), limits_(limits_of(in)), parser_(limits_), cut_(in, how) {}

  log run() {
    using state = link_parser::state;
    for (;;) {
      check();
      if (parser_.at() == state::place) {
        place();
      } else if (parser_.at() == state::frame) {
        finish();
      } else if (parser_.at() == state::failed) {
        require(parser_.feed(wire_) == 0, "a failed parser takes no bytes");
        out_.push_back(static_cast<std::uint64_t>(parser_.error().value()));
        out_.push_back(at_);
        return out_;
      } else if (at_ == wire_.size()) {
        out_.push_back(parser_.at() == state::header && rest_ == 0);
        return out_;
      } else {
        take();
      }
    }
  }

 private:
  void check() {
    const auto before = parser_.at();
    parser_.filled(0);
    require(parser_.feed({}) == 0 && parser_.at() == before, "no bytes change nothing");
    require(parser_.kept().capacity() <=
                std::max({limits_.chunk, limits_.message, limits_.text, limits_.layout, limits_.list}),
            "memory within the limits");
  }

  void place() {
    const auto length = parser_.header().length;
    where_ = placing_of(in_, frame_);
    drop_ = where_ == drop ? drop_at(in_, frame_, length) : ~std::uint64_t{0};
    got_ = 0;
    target_.make(in_, frame_++, where_ == into || where_ == drop ? length : 0);
    if (where_ == into || where_ == drop)
      parser_.into(target_.parts);
    else
      where_ == keep ? parser_.keep() : parser_.discard();
    drop_now();
  }

  void drop_now() {
    if (where_ != drop || got_ != drop_ || parser_.at() != link_parser::state::payload) return;
    parser_.drop_rest();
    require(parser_.room() == 0, "nothing is read into what was dropped");
    std::ranges::fill(target_.memory, std::byte{0x5a});
    reach("link: dropped halfway");
  }

  void finish() {
    const auto& header = parser_.header();
    const bool dropped = header.has_payload() && parser_.dropped();
    if (dropped)
      for (auto b : target_.memory) require(b == std::byte{0x5a}, "a dropped target is not touched");
    std::array<std::byte, link_trailer_bytes> sealed{};
    put(sealed.data(), parser_.sealed());
    const bytes payload = header.in_place && header.has_trailer() ? bytes(sealed)
                          : !header.has_payload()                 ? bytes()
                          : where_ == keep                        ? bytes(parser_.kept())
                                                                  : target_.memory;
    log_frame(out_, header, parser_.intact(), dropped, payload);
    where_ = discard;
    target_.make(in_, 0, 0);
    parser_.next();
    rest_ = 0;
  }

  void take() {
    using state = link_parser::state;
    const bool payload = parser_.at() == state::payload;
    auto most = wire_.size() - at_;
    if (where_ == drop && payload && got_ < drop_) most = std::min<std::size_t>(most, drop_ - got_);
    if (how_ == way::direct && parser_.room() > 0) return take_direct(cut_(most));
    const auto room = parser_.room();
    const bool at_header = parser_.at() == state::header;
    const auto n = cut_(at_header ? std::min(most, link_header_bytes - rest_) : most);
    const auto taken = parser_.feed(wire_.subspan(at_, n));
    require(taken > 0 && taken <= n, "a parser that waits for bytes takes some");
    require(taken == n || parser_.at() != state::payload, "bytes are left only where the caller has to act");
    at_ += taken;
    if (at_header) rest_ += taken;
    if (payload) got_ += std::min<std::uint64_t>(taken, room);
    drop_now();
  }

  void take_direct(std::size_t n) {
    std::vector<asio::mutable_buffer> list;
    const auto room = parser_.room();
    require(parser_.list_room(~std::uint64_t{0}, ~std::size_t{0}, list) == room, "all of the room can be listed");
    list.clear();
    const auto parts = 1 + in_.choice(at_, 3);
    const auto listed = parser_.list_room(n, parts, list);
    std::size_t sum = 0;
    for (auto part : list) {
      require(part.size() > 0, "no empty part is listed");
      std::memcpy(part.data(), wire_.data() + at_ + sum, part.size());
      sum += part.size();
    }
    require(listed > 0 && listed == sum && listed <= n && listed <= room && list.size() <= parts,
            "room is listed as asked for");
    parser_.filled(listed);
    at_ += listed;
    got_ += listed;
    reach("link: filled");
    drop_now();
  }

  const input& in_;
  bytes wire_;
  way how_;
  link_limits limits_;
  link_parser parser_;
  cutter cut_;
  log out_;
  std::size_t at_ = 0, rest_ = 0;  // rest_: of a header
  std::uint64_t frame_ = 0, got_ = 0, drop_ = 0;
  placing where_ = discard;
  scattered target_;
};

}  // namespace

void link(bytes raw) {
  const input in(raw);
  const auto wire = mend_link(in);
  check_hello(in.wire);
  check_layout(in.wire);
  const auto meant = expected(in, wire);
  require(reader(in, wire, way::whole).run() == meant, "frames of bytes as a whole");
  require(reader(in, wire, way::pieces).run() == meant, "frames of bytes in pieces");
  require(reader(in, wire, way::direct).run() == meant, "frames read right into their place");
}

}  // namespace cokv::fuzz
