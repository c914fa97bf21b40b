#include "cokv/kvstream/frame_stream.hpp"

#include <doctest/doctest.h>

#include <map>
#include <random>

#include "cokv/runtime/error.hpp"
#include "kvstream/hex.hpp"

using namespace cokv;

namespace {

using bytes = std::vector<std::byte>;

stream_begin sample(std::uint32_t blocks = 3, std::vector<std::uint64_t> segments = {40, 40, 24}) {
  stream_begin b;
  for (std::size_t i = 0; i < 32; ++i) b.ns.bytes[i] = static_cast<std::byte>(i);
  b.generation = 7;
  b.layout.segments = std::move(segments);
  for (std::uint32_t k = 0; k < blocks; ++k) {
    block_key key;
    key.bytes.fill(static_cast<std::byte>(0xa0 + k));
    b.keys.push_back(key);
  }
  return b;
}

bytes content(std::uint32_t layer, std::uint32_t block, std::size_t n) {
  bytes out(n);
  for (std::size_t i = 0; i < n; ++i) out[i] = static_cast<std::byte>(layer * 50 + block * 11 + i);
  return out;
}

void append(bytes& out, std::span<const std::byte> more) { out.insert(out.end(), more.begin(), more.end()); }

void append_segment(bytes& out, stream_writer& w, std::uint32_t layer, std::uint32_t block) {
  auto data = content(layer, block, w.about().layout.segments[layer]);
  auto head = w.segment(layer, block);
  append(out, head);
  append(out, data);
  append(out, seal(head, data));
}

// A stream whose block `missing_block` is taken back before (layer, block) `missing_at`.
bytes stream(const stream_begin& about, std::pair<std::uint32_t, std::uint32_t> missing_at = {~0u, 0},
             std::uint32_t missing_block = 0) {
  stream_writer w(about);
  bytes out;
  append(out, w.begin());
  for (std::uint32_t layer = 0; layer < about.layout.layers(); ++layer)
    for (std::uint32_t block = 0; block < w.good(); ++block) {
      if (std::pair(layer, block) == missing_at) append(out, w.missing(missing_block, errc::not_found));
      if (block < w.good()) append_segment(out, w, layer, block);
    }
  append(out, w.end());
  return out;
}

struct outcome {
  std::map<std::pair<std::uint32_t, std::uint32_t>, bytes> segments;
  std::vector<stream_event> events;
  std::vector<std::uint32_t> good_by_layer;
  error_code finish;
  std::uint32_t good = 0;
  std::size_t memory = 0;
};

template <class Cut>
outcome receive(std::span<const std::byte> in, stream_parser& parser, Cut cut) {
  outcome out;
  std::map<std::pair<std::uint32_t, std::uint32_t>, bytes> pending;
  bool over = false;
  while (!over) {
    auto piece = in.first(std::min(in.size(), cut()));
    in = in.subspan(piece.size());
    for (bool more = true; more && !over;) {
      auto event = parser.next(piece);
      out.memory = std::max(out.memory, parser.memory());
      if (event != stream_event::more) out.events.push_back(event);
      switch (event) {
        case stream_event::more:
          more = false;
          break;
        case stream_event::segment: {
          auto& into = pending[{parser.layer(), parser.block()}];
          into.resize(parser.about().layout.segments[parser.layer()]);
          parser.into(into);
          break;
        }
        case stream_event::arrived:
          out.segments[{parser.layer(), parser.block()}] = pending[{parser.layer(), parser.block()}];
          break;
        case stream_event::layer:
          out.good_by_layer.push_back(parser.good());
          break;
        case stream_event::failed:
          over = true;
          break;
        default:
          break;
      }
    }
    if (in.empty()) over = true;
  }
  out.finish = parser.finish();
  out.good = parser.good();
  return out;
}

outcome receive(std::span<const std::byte> in, std::size_t cut = ~std::size_t{0}) {
  stream_parser parser;
  return receive(in, parser, [=] { return cut; });
}

}  // namespace

TEST_CASE("frame stream: the bytes are golden, and those of the protocol's document") {
  auto about = sample(2, {8, 4});
  stream_writer w(about);
  CHECK(to_hex(w.begin()) == golden_hex("begin"));
  w.segment(0, 0);
  w.segment(0, 1);
  CHECK(to_hex(w.missing(1, errc::not_found)) == golden_hex("missing"));
  w.segment(1, 0);
  CHECK(to_hex(w.end()) == golden_hex("end"));
  stream_writer failing(about);
  failing.begin();
  CHECK(to_hex(failing.error(errc::store_full, "disk full")) == golden_hex("error"));
  CHECK(to_hex(ack_frame(about.ns, 7, {}, 2)) == golden_hex("ack"));
}

TEST_CASE("frame stream: a whole stream arrives, however it is cut") {
  auto about = sample();
  auto all = stream(about);
  CHECK(all.size() == stream_bytes(about.layout, about.keys.size()));
  for (std::size_t cut : {1ul, 7ul, 128ul, 1000ul, ~0ul}) {
    auto got = receive(all, cut);
    CHECK(!got.finish);
    CHECK(got.good == 3);
    CHECK(got.segments.size() == 9);
    for (auto& [at, data] : got.segments) CHECK(data == content(at.first, at.second, about.layout.segments[at.first]));
    CHECK(got.good_by_layer == std::vector<std::uint32_t>{3, 3, 3});
    CHECK(got.events.front() == stream_event::begun);
    CHECK(got.events.back() == stream_event::ended);
  }
}

TEST_CASE("frame stream: every cut short is told from a complete stream") {
  auto all = stream(sample(2, {8, 4}));
  for (std::size_t n = 0; n < all.size(); ++n) REQUIRE(receive(std::span(all).first(n), 50).finish == errc::protocol);
  CHECK(!receive(all, 50).finish);
}

TEST_CASE("frame stream: a missing block ends the prefix, and the rest of it comes") {
  auto about = sample(4);
  for (std::uint32_t layer = 0; layer < 3; ++layer)
    for (std::uint32_t block = 0; block < 4; ++block)
      for (std::uint32_t gone = 0; gone < 4; ++gone) {
        CAPTURE(layer);
        CAPTURE(block);
        CAPTURE(gone);
        auto got = receive(stream(about, {layer, block}, gone), 33);
        CHECK(!got.finish);
        CHECK(got.good == gone);
        for (std::uint32_t l = 0; l < 3; ++l)
          for (std::uint32_t b = 0; b < gone; ++b) CHECK(got.segments.contains({l, b}));
      }
}

TEST_CASE("frame stream: a damaged segment ends the prefix, the stream goes on") {
  auto about = sample(3);
  auto all = stream(about);
  auto payload_of = [&](std::uint32_t layer, std::uint32_t block) {
    std::size_t at = frame_header_bytes + 16 + 24 + 96 + frame_trailer_bytes;
    for (std::uint32_t l = 0; l < about.layout.layers(); ++l)
      for (std::uint32_t b = 0; b < 3; ++b) {
        if (l == layer && b == block) return at + frame_header_bytes;
        at += frame_header_bytes + about.layout.segments[l] + frame_trailer_bytes;
      }
    return at;
  };
  all[payload_of(1, 1) + 5] ^= std::byte{4};
  auto got = receive(all, 64);
  CHECK(!got.finish);
  CHECK(got.good == 1);
  CHECK(got.good_by_layer == std::vector<std::uint32_t>{3, 1, 1});
  CHECK(std::count(got.events.begin(), got.events.end(), stream_event::damaged) == 1);
  CHECK(got.segments.contains({2, 0}));
  CHECK(!got.segments.contains({1, 1}));
  CHECK(!got.segments.contains({1, 2}));
  CHECK(!got.segments.contains({2, 1}));
}

TEST_CASE("frame stream: no flipped bit makes wrong bytes good") {
  auto about = sample(2, {16, 8});
  auto all = stream(about, {1, 1}, 1);
  for (std::size_t bit = 0; bit < all.size() * 8; ++bit) {
    auto damaged = all;
    damaged[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    auto got = receive(damaged, 41);
    bool noticed =
        got.finish || got.good < 1 || std::count(got.events.begin(), got.events.end(), stream_event::damaged) > 0;
    // Damage to a block that was not good any more is dropped with it.
    if (!noticed) {
      CAPTURE(bit);
      CHECK(got.good == 1);
    }
    for (auto& [at, data] : got.segments)
      REQUIRE(data == content(at.first, at.second, about.layout.segments[at.first]));
  }
}

TEST_CASE("frame stream: random damage never crashes, never allocates beyond the bound, never passes as whole") {
  auto about = sample(3);
  frame_limits limits;
  limits.max_blocks = 16;
  limits.max_layers = 8;
  limits.max_segment = 256;
  auto all = stream(about);
  std::mt19937 random(11);
  for (int round = 0; round < 20'000; ++round) {
    auto damaged = all;
    for (auto n = 1 + random() % 4; n-- > 0 && !damaged.empty();) {
      auto at = random() % damaged.size(), length = random() % 200;
      auto end = std::min(damaged.size(), at + length);
      auto from = damaged.begin() + static_cast<std::ptrdiff_t>(at),
           to = damaged.begin() + static_cast<std::ptrdiff_t>(end);
      switch (random() % 4) {
        case 0:
          damaged[at] ^= static_cast<std::byte>(1 << (random() % 8));
          break;
        case 1:
          damaged.erase(from, to);
          break;
        case 2: {
          bytes copy(from, to);
          damaged.insert(from, copy.begin(), copy.end());
          break;
        }
        case 3:
          for (auto i = from; i != to; ++i) *i = static_cast<std::byte>(random());
      }
    }
    stream_parser parser(limits);
    auto got = receive(damaged, parser, [&] { return 1 + random() % 300; });
    REQUIRE(got.memory <= limits.payload(frame_type::begin) + limits.max_text + frame_header_bytes);
    for (auto& [at, data] : got.segments)
      REQUIRE(data == content(at.first, at.second, about.layout.segments[at.first]));
    if (damaged != all && !got.finish) REQUIRE(got.good < 3);
  }
}

TEST_CASE("frame stream: sound frames in the wrong order are refused") {
  auto about = sample(2, {8, 4});
  auto first_of = [&](auto... frames) {
    bytes out;
    (append(out, frames), ...);
    return receive(out).finish;
  };
  auto segment = [&](stream_writer& w, std::uint32_t l, std::uint32_t b) {
    bytes out;
    append_segment(out, w, l, b);
    return out;
  };
  stream_writer w(about);
  auto begin = w.begin(), s00 = segment(w, 0, 0), s01 = segment(w, 0, 1), s10 = segment(w, 1, 0),
       s11 = segment(w, 1, 1), end = w.end();
  CHECK(!first_of(begin, s00, s01, s10, s11, end));
  CHECK(first_of(s00) == errc::protocol);
  CHECK(first_of(end) == errc::protocol);
  CHECK(first_of(begin, begin) == errc::protocol);
  CHECK(first_of(begin, s01) == errc::protocol);       // a frame was lost
  CHECK(first_of(begin, s00, s00) == errc::protocol);  // or came twice
  CHECK(first_of(begin, s00, s01, s10, end) == errc::protocol);
  CHECK(first_of(begin, s00, s01, s10, s11, end, end) == errc::protocol);
  CHECK(first_of(begin, ack_frame(about.ns, 7, {}, 1)) == errc::protocol);

  auto foreign = about;
  foreign.generation = 8;
  stream_writer other(foreign);
  other.begin();
  CHECK(first_of(begin, segment(other, 0, 0)) == errc::protocol);  // a frame of an earlier exchange
}

TEST_CASE("frame stream: a reader that knows what it asked for takes nothing else") {
  auto about = sample(2, {8, 4});
  auto refused = [&](auto change) {
    auto other = about;
    change(other);
    stream_parser parser(frame_limits(), about);
    return receive(stream(other), parser, [] { return std::size_t{100}; }).finish;
  };
  CHECK(!refused([](stream_begin&) {}));
  CHECK(!refused([](stream_begin& b) { b.deferred = true; }));
  CHECK(refused([](stream_begin& b) { b.ns.bytes[0] = std::byte{9}; }) == errc::namespace_mismatch);
  CHECK(refused([](stream_begin& b) { b.layout.segments[1] = 8; }) == errc::namespace_mismatch);
  CHECK(refused([](stream_begin& b) { b.generation = 1; }) == errc::protocol);
  CHECK(refused([](stream_begin& b) { std::swap(b.keys[0], b.keys[1]); }) == errc::protocol);
}

TEST_CASE("frame stream: what a stream may ask for is bounded") {
  frame_limits limits;
  limits.max_blocks = 2;
  limits.max_layers = 2;
  limits.max_segment = 8;
  auto finish = [&](const stream_begin& about) {
    stream_parser parser(limits);
    return receive(stream(about), parser, [] { return std::size_t{100}; }).finish;
  };
  CHECK(!finish(sample(2, {8, 4})));
  CHECK(finish(sample(3, {8, 4})) == errc::too_large);
  CHECK(finish(sample(2, {8, 4, 4})) == errc::too_large);
  CHECK(finish(sample(2, {8, 9})) == errc::too_large);
}

TEST_CASE("frame stream: an error and an ack arrive with what they say") {
  auto about = sample();
  stream_writer w(about);
  auto all = w.begin();
  append(all, w.error(errc::store_full, "disk\nfull"));
  stream_parser parser;
  auto got = receive(all, parser, [] { return std::size_t{10}; });
  CHECK(got.finish == errc::store_full);
  CHECK(parser.peer_text() == "disk full");

  stream_parser answer(frame_limits(), about);
  got = receive(ack_frame(about.ns, about.generation, errc::store_full, 2), answer, [] { return std::size_t{9}; });
  CHECK(!got.finish);
  CHECK(got.events == std::vector<stream_event>{stream_event::acked});
  CHECK(answer.ack().what == errc::store_full);
  CHECK(answer.ack().blocks == 2);
}

TEST_CASE("frame stream: a writer keeps the order") {
  stream_writer w(sample(2, {8, 4}));
  CHECK_THROWS_AS(w.segment(0, 0), std::logic_error);
  w.begin();
  CHECK_THROWS_AS(w.begin(), std::logic_error);
  CHECK_THROWS_AS(w.segment(0, 1), std::logic_error);
  CHECK_THROWS_AS(w.end(), std::logic_error);
  w.segment(0, 0);
  w.missing(1, {});
  CHECK_THROWS_AS(w.missing(1, {}), std::logic_error);
  CHECK_THROWS_AS(stream_writer{stream_begin{}}, std::logic_error);
}
