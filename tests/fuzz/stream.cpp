// stream_parser: any split of the bytes, and segments read right into their place, give the same events, in an order
// that makes sense; a stream_writer that is told of these events makes a stream that is read as the same events.
#include "cokv/kvstream/frame_stream.hpp"

#include <cstring>

#include "cokv/runtime/error.hpp"
#include "detail/bytes.hpp"
#include "fuzz/mend.hpp"

namespace cokv::fuzz {
namespace {

constexpr std::uint64_t longest = 4096;

frame_limits limits_of(const input& in) {
  return {
      .max_blocks = 1u + (in.how >> 4 & 7), .max_layers = 1u + (in.how & 3), .max_segment = longest, .max_text = 96};
}

struct step {
  stream_event event;
  std::uint32_t layer = 0, block = 0, good = 0;
  std::uint64_t payload = 0;  // digest, of `arrived`
  friend bool operator==(const step&, const step&) = default;
};

struct story {
  std::vector<step> steps;
  stream_begin about;
  stream_parser::ack_body ack;
  error_code error, finish;
  bool from_peer = false, complete = false;
  std::string text;
  std::vector<std::vector<std::byte>> segments;  // what arrived, not part of the comparison

  bool same(const story& o) const {
    return steps == o.steps && about == o.about && ack.what == o.ack.what && ack.blocks == o.ack.blocks &&
           error == o.error && finish == o.finish && from_peer == o.from_peer && complete == o.complete &&
           text == o.text;
  }
};

// What a receiver relies on, whatever was sent.
void check_order(const stream_parser& parser, const step& now, const step& before) {
  const auto blocks = parser.about().keys.size(), layers = std::size_t{parser.about().layout.layers()};
  require(before.event == stream_event::more || now.good <= before.good, "good blocks only become fewer");
  require(now.good <= blocks && parser.layers_done() <= layers, "counts within what the stream began with");
  switch (now.event) {
    case stream_event::begun:
      require(before.event == stream_event::more, "a stream begins once");
      break;
    case stream_event::segment:
      require(now.layer < layers && now.layer == parser.layers_done() && now.block < now.good, "a segment that is due");
      break;
    case stream_event::arrived:
    case stream_event::damaged:
      require(before.event == stream_event::segment && before.layer == now.layer && before.block == now.block,
              "what becomes of a segment follows it");
      require(now.event == stream_event::arrived || now.good == now.block, "a damaged block is not good");
      break;
    case stream_event::missing:
      require(now.good <= now.block, "a missing block is not good");
      break;
    case stream_event::layer:
      require(parser.layers_done() == now.layer + 1, "a layer that is over was the current one");
      break;
    case stream_event::ended:
      require(now.good == 0 || parser.layers_done() == layers, "all layers come before the end");
      break;
    default:
      break;
  }
}

story read(const input& in, bytes wire, way how, const std::optional<stream_begin>& wanted) {
  const auto limits = limits_of(in);
  stream_parser parser(limits, wanted);
  cutter cut(in, how);
  story out;
  std::vector<std::byte> target;
  bool placed = false;  // the segment that comes, by the caller
  step before{stream_event::more};
  for (auto rest = wire;;) {
    auto piece = rest.first(cut(rest.size()));
    if (const auto room = parser.room(); how == way::direct && !room.empty() && !rest.empty()) {
      const auto n = cut(std::min(room.size(), rest.size()));
      std::memcpy(room.data(), rest.data(), n);
      parser.filled(n);
      rest = rest.subspan(n);
      reach("stream: filled");
      continue;
    }
    const auto given = piece.size();
    step now{parser.next(piece)};
    rest = rest.subspan(given - piece.size());
    require(parser.memory() <= std::max(limits.payload(frame_type::begin), limits.max_text) + frame_header_bytes,
            "memory within the limits");
    if (now.event == stream_event::more) {
      require(piece.empty(), "all bytes are taken before more are asked for");
      if (rest.empty()) break;
      continue;
    }
    now.layer = parser.layer();
    now.block = parser.block();
    now.good = parser.good();
    if (now.event == stream_event::failed) break;
    check_order(parser, now, before);
    if (now.event == stream_event::segment) {
      placed = in.choice(out.steps.size(), 8) != 0;
      target.assign(placed ? parser.about().layout.segments[now.layer] : 0, std::byte{0xa5});
      target.shrink_to_fit();
      placed ? parser.into(target) : parser.discard();
    } else if (now.event == stream_event::arrived && placed) {
      now.payload = digest_of(target);
      out.segments.push_back(target);
    } else if (now.event == stream_event::arrived) {
      out.segments.emplace_back();
    }
    out.steps.push_back(now);
    before = now;
  }
  out.about = parser.about();
  out.ack = parser.ack();
  out.error = parser.error();
  out.finish = parser.finish();
  out.from_peer = parser.from_peer();
  out.text = parser.peer_text();
  out.complete = parser.complete();
  require(out.complete || out.finish, "only a complete stream ends well");
  if (parser.error()) {
    auto more = wire;
    require(parser.next(more) == stream_event::failed && more.size() == wire.size(), "a failed parser takes no bytes");
  }
  return out;
}

// Writes a stream of which these events are to be read.
class retelling {
 public:
  explicit retelling(const story& of) : of_(of), writer_(of.about) { append(writer_.begin()); }

  std::vector<std::byte> run() {
    auto segment = of_.segments.begin();
    for (const auto& s : of_.steps) {
      switch (s.event) {
        case stream_event::arrived:
          fill_to(s.layer, s.block);
          send(s.layer, s.block, segment->empty() ? filler(s.layer) : *segment, true);
          ++segment;
          break;
        case stream_event::damaged:
          fill_to(s.layer, s.block);
          send(s.layer, s.block, filler(s.layer), false);
          break;
        case stream_event::missing:
          append(writer_.missing(s.block, errc::not_found));
          break;
        case stream_event::layer:
          while (layer_ == s.layer && block_ < writer_.good()) send(layer_, block_, filler(layer_), true);
          layer_ = s.layer + 1;
          block_ = 0;
          break;
        case stream_event::ended:
          append(writer_.end());
          break;
        default:
          break;
      }
    }
    if (of_.from_peer) append(writer_.error(of_.error, of_.text));
    return std::move(out_);
  }

 private:
  std::vector<std::byte> filler(std::uint32_t layer) const {
    return std::vector<std::byte>(of_.about.layout.segments[layer]);
  }
  void append(std::span<const std::byte> bytes) { detail::append(out_, bytes); }

  // Segments of blocks that are not good any more leave no event.
  void fill_to(std::uint32_t layer, std::uint32_t block) {
    require(layer == layer_, "segments come layer by layer");
    while (block_ < block) send(layer_, block_, filler(layer_), true);
  }

  void send(std::uint32_t layer, std::uint32_t block, const std::vector<std::byte>& data, bool intact) {
    const auto head = writer_.segment(layer, block);
    auto trailer = seal(head, data);
    if (!intact) trailer[0] ^= std::byte{1};
    append(head);
    append(data);
    append(trailer);
    block_ = block + 1;
  }

  const story& of_;
  stream_writer writer_;
  std::vector<std::byte> out_;
  std::uint32_t layer_ = 0, block_ = 0;
};

void retell(const input& in, story told) {
  const auto wire = retelling(told).run();
  // A stream that was cut in a segment has its beginning as the last event.
  while (!told.steps.empty() && told.steps.back().event == stream_event::segment) told.steps.pop_back();
  // Of what went wrong, only what the peer said is retold.
  if (!told.from_peer) {
    told.complete = told.steps.back().event == stream_event::ended;
    told.error = {};
    told.finish = told.complete ? error_code() : make_error_code(errc::protocol);
  }
  require(read(in, wire, way::whole, std::nullopt).same(told),
          "a stream written from its events is read as these events");
  if (told.complete && told.steps.back().good == told.about.keys.size())
    require(wire.size() == stream_bytes(told.about.layout, told.about.keys.size()), "a stream's length is foretold");
  reach(told.complete ? "stream: retold whole" : "stream: retold in part");
}

void count(const story& s) {
  using namespace std::string_view_literals;
  constexpr std::string_view names[] = {"",
                                        "stream: begun",
                                        "stream: segment",
                                        "stream: arrived",
                                        "stream: damaged",
                                        "stream: missing",
                                        "stream: layer",
                                        "stream: ended",
                                        "stream: acked"};
  for (const auto& now : s.steps) reach(names[static_cast<std::size_t>(now.event)]);
  if (s.error) reach(s.from_peer ? "stream: error of the peer"sv : "stream: refused"sv);
}

}  // namespace

void stream(bytes raw) {
  const input in(raw);
  const auto wire = mend_frames(in);
  const auto meant = read(in, wire, way::whole, std::nullopt);
  count(meant);
  require(read(in, wire, way::pieces, std::nullopt).same(meant), "events of bytes in pieces");
  require(read(in, wire, way::direct, std::nullopt).same(meant), "events of segments read right into their place");
  if (meant.steps.empty() || meant.steps.front().event != stream_event::begun) return;

  auto wanted = meant.about;
  require(read(in, wire, way::pieces, wanted).same(meant), "events of a stream that was expected");
  wanted.generation += 1;
  require(read(in, wire, way::pieces, wanted).error == errc::protocol, "another generation is refused");
  wanted = meant.about;
  wanted.layout.segments.back() += 1;
  require(read(in, wire, way::whole, wanted).error == errc::namespace_mismatch, "another layout is refused");
  retell(in, meant);
}

}  // namespace cokv::fuzz
