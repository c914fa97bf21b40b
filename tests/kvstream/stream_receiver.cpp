#include "cokv/kvstream/stream_receiver.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <random>

#include "cokv/kvstream/digest.hpp"
#include "cokv/runtime/error.hpp"

using namespace cokv;

namespace {

using bytes = std::vector<std::byte>;

stream_begin about_blocks(std::uint32_t blocks, std::vector<std::uint64_t> segments) {
  stream_begin b;
  b.generation = 7;
  b.layout.segments = std::move(segments);
  for (std::uint32_t k = 0; k < blocks; ++k) {
    block_key key;
    key.bytes.fill(static_cast<std::byte>(k + 1));
    b.keys.push_back(key);
  }
  return b;
}

std::byte content(std::uint32_t layer, std::uint32_t block, std::size_t at) {
  return static_cast<std::byte>(layer * 50 + block * 11 + at * 3 + at / 256);
}

void append(bytes& out, std::span<const std::byte> more) { out.insert(out.end(), more.begin(), more.end()); }

void append_segment(bytes& out, stream_writer& w, std::uint32_t layer, std::uint32_t block, bool damaged = false) {
  bytes data(w.about().layout.segments[layer]);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = content(layer, block, i);
  const auto head = w.segment(layer, block);
  const auto trailer = seal(head, data);
  if (damaged) data[data.size() / 2] ^= std::byte{1};
  append(out, head);
  append(out, data);
  append(out, trailer);
}

// What may happen to a stream before segment (layer, block).
struct mishap {
  enum { none, missing, damaged, error } what = none;
  std::uint32_t layer = 0, block = 0, first_missing = 0;
};

bytes stream_of(const stream_begin& about, mishap m = {}) {
  stream_writer w(about);
  bytes out = w.begin();
  for (std::uint32_t layer = 0; layer < about.layout.layers(); ++layer)
    for (std::uint32_t block = 0; block < w.good(); ++block) {
      const bool here = m.layer == layer && m.block == block;
      if (here && m.what == mishap::missing) append(out, w.missing(m.first_missing, errc::not_found));
      if (here && m.what == mishap::error) {
        append(out, w.error(errc::unavailable, "gone"));
        return out;
      }
      if (block < w.good()) append_segment(out, w, layer, block, here && m.what == mishap::damaged);
    }
  append(out, w.end());
  return out;
}

struct event_seen {
  stream_event what;
  std::uint32_t layer, block, good;
  friend bool operator==(const event_seen&, const event_seen&) = default;
};

struct outcome {
  std::vector<event_seen> events;
  std::vector<std::vector<bytes>> segments;  // of the good blocks, by layer
  error_code error;
  std::size_t reads = 0, largest_room = 0;
};

// The same by the parser alone, which is shown the bytes one after the other.
outcome parsed(std::span<const std::byte> in) {
  outcome out;
  stream_parser p;
  std::vector<bytes> layer;
  for (;;) {
    const auto event = p.next(in);
    if (event == stream_event::more) break;
    if (event == stream_event::begun) layer.resize(p.about().keys.size());
    if (event == stream_event::segment) {
      layer[p.block()].resize(p.about().layout.segments[p.layer()]);
      p.into(layer[p.block()]);
      continue;
    }
    out.events.push_back({event, p.layer(), p.block(), p.good()});
    if (event == stream_event::layer) out.segments.emplace_back(layer.begin(), layer.begin() + p.good());
    if (event == stream_event::failed) break;
  }
  out.error = p.error();
  return out;
}

template <class Cut, class Ahead>
outcome received(std::span<const std::byte> in, Cut cut, Ahead ahead) {
  outcome out;
  stream_receiver r;
  std::vector<std::vector<buffer>> memory;
  const auto expect = [&] {
    std::vector<buffer> layer;
    for (std::size_t i = 0; i < r.about().keys.size(); ++i) {
      layer.push_back(buffer::host(r.about().layout.segments[r.expected()]));
      std::memset(layer.back().data(), 0xee, layer.back().size());
    }
    memory.push_back(layer);
    r.expect(std::move(layer));
  };
  for (;;) {
    const auto event = r.next();
    if (event == stream_event::more) {
      if (in.empty()) break;
      const auto room = r.room();
      REQUIRE(!room.empty());
      REQUIRE(room.size() <= stream_receiver::places);
      std::size_t left = std::min(in.size(), std::max<std::size_t>(1, cut())), n = 0;
      for (const auto& place : room) {
        REQUIRE(place.size() > 0);
        const auto part = std::min(left, place.size());
        std::memcpy(place.data(), in.data(), part);
        in = in.subspan(part);
        n += part;
        left -= part;
      }
      out.largest_room = std::max(out.largest_room, room.size());
      ++out.reads;
      r.filled(n);
      continue;
    }
    if (event == stream_event::segment) {
      expect();
      continue;
    }
    out.events.push_back({event, r.layer(), r.block(), r.good()});
    const auto layers = r.about().layout.layers();
    if (event == stream_event::begun || event == stream_event::layer) {
      const auto next = event == stream_event::begun ? 0 : r.layer() + 1;
      while (r.expected() < layers && r.expected() < next + ahead()) expect();
    }
    if (event == stream_event::arrived) {
      const auto& at = memory[r.layer()][r.block()];
      CHECK(r.digest() == digest_of(at.bytes()));
    }
    if (event == stream_event::layer) {
      auto& of = out.segments.emplace_back();
      for (std::size_t i = 0; i < r.good(); ++i) {
        const auto at = memory[r.layer()][i].bytes();
        of.emplace_back(at.begin(), at.end());
      }
    }
    if (event == stream_event::failed) break;
  }
  out.error = r.error();
  if (!out.error) CHECK(in.empty());
  return out;
}

const auto all_of_it = [] { return ~std::size_t{0}; };

}  // namespace

TEST_CASE("stream receiver: payloads are read to where they belong, many at a time") {
  const auto about = about_blocks(20, {3000, 3000, 40});
  const auto all = stream_of(about);
  for (const std::uint32_t ahead : {1u, 3u}) {
    const auto got = received(all, all_of_it, [&] { return ahead; });
    const auto wanted = parsed(all);
    CHECK(!got.error);
    CHECK(got.events == wanted.events);
    CHECK(got.segments == wanted.segments);
    CHECK(got.largest_room >= 41);
    // The begin's two parts, then 32 segments a read, or a layer.
    CHECK(got.reads <= 3 + (ahead == 1 ? 3 : 2));
  }
}

TEST_CASE("stream receiver: what room() gives is the memory that was expected") {
  const auto about = about_blocks(2, {500, 700});
  const auto all = stream_of(about);
  std::span<const std::byte> in = all;
  stream_receiver r;
  const auto read = [&](std::size_t most) {
    std::size_t n = 0;
    for (const auto& place : r.room()) {
      const auto part = std::min({place.size(), in.size(), most - n});
      std::memcpy(place.data(), in.data(), part);
      in = in.subspan(part);
      n += part;
    }
    r.filled(n);
  };
  while (r.next() != stream_event::begun) read(~0ul);
  const std::vector<buffer> memory{buffer::host(500), buffer::host(500)};
  r.expect(memory);
  CHECK(r.next() == stream_event::more);
  auto room = r.room();
  REQUIRE(room.size() == 5);
  CHECK(room[0].size() == frame_header_bytes);
  CHECK(room[1].data() == memory[0].data());
  CHECK(room[2].size() == frame_trailer_bytes + frame_header_bytes);
  CHECK(room[3].data() == memory[1].data());
  CHECK(room[4].size() == frame_trailer_bytes);  // nothing beyond the layers that are expected
  read(frame_header_bytes + 100);
  CHECK(r.next() == stream_event::more);
  room = r.room();
  CHECK(room[0].data() == memory[0].data() + 100);
  CHECK(room[0].size() == 400);
  // Of the last layer the stream's end is read along.
  r.expect({buffer::host(700), buffer::host(700)});
  for (auto event = r.next(); event != stream_event::layer; event = r.next())
    if (event == stream_event::more) read(~0ul);
  CHECK(r.next() == stream_event::more);
  CHECK(r.room().back().size() == frame_trailer_bytes + frame_header_bytes + 8 + frame_trailer_bytes);
}

TEST_CASE("stream receiver: whatever happens to a stream, however it is cut, it is what the parser makes of it") {
  std::mt19937 random(1);
  const auto below = [&](std::size_t n) { return static_cast<std::uint32_t>(random() % n); };
  for (int round = 0; round < 4000; ++round) {
    CAPTURE(round);
    std::vector<std::uint64_t> segments(1 + below(5));
    for (auto& s : segments) s = 1 + below(below(2) ? 20 : 700);
    const auto about = about_blocks(1 + below(9), segments);
    mishap m{.what = {}, .layer = below(segments.size()), .block = below(about.keys.size())};
    m.what = static_cast<decltype(m.what)>(below(4));
    m.first_missing = below(about.keys.size());
    auto all = stream_of(about, m);
    if (below(4) == 0) all.resize(below(all.size()));                                                     // cut
    if (below(4) == 0 && !all.empty()) all[below(all.size())] ^= static_cast<std::byte>(1 + below(255));  // or flipped
    const auto most = 1 + below(below(2) ? 60 : 6000);
    const auto ahead = below(4);
    const auto got = received(all, [&] { return below(most); }, [&] { return ahead; });
    const auto wanted = parsed(all);
    CHECK(got.error == wanted.error);
    CHECK(got.events == wanted.events);
    CHECK(got.segments == wanted.segments);
  }
}

TEST_CASE("stream receiver: a stream without digests is refused unless it is wanted") {
  auto about = about_blocks(3, {300, 20});
  about.digest = digest_algorithm::none;
  auto all = stream_of(about);
  all[stream_writer(about).begin().size() + frame_header_bytes + 100] ^= std::byte{1};  // nobody looks at payloads
  for (const bool wanted : {false, true}) {
    stream_receiver r({.unsealed = wanted}, wanted ? std::optional(about) : std::nullopt);
    std::span<const std::byte> in = all;
    auto event = r.next();
    for (; event != stream_event::failed && event != stream_event::ended; event = r.next()) {
      if (event == stream_event::segment) r.expect(std::vector(3, buffer::host(about.layout.segments[r.expected()])));
      if (event == stream_event::arrived) CHECK(r.digest() == 0);
      CHECK(event != stream_event::damaged);
      if (event != stream_event::more) continue;
      std::size_t n = 0;
      for (const auto& place : r.room()) {
        const auto part = std::min(place.size(), in.size());
        std::memcpy(place.data(), in.data(), part);
        in = in.subspan(part);
        n += part;
      }
      r.filled(n);
    }
    CHECK(event == (wanted ? stream_event::ended : stream_event::failed));
    if (!wanted) CHECK(r.error() == errc::unsupported);
  }
  // Each side says what it wants.
  for (const auto asked : {digest_algorithm::none, digest_algorithm::xxh3_64}) {
    about.digest = asked;
    const auto bytes = stream_writer(about).begin();
    auto other = about;
    other.digest = asked == digest_algorithm::none ? digest_algorithm::xxh3_64 : digest_algorithm::none;
    stream_parser p({.unsealed = true}, other);
    std::span<const std::byte> in = bytes;
    CHECK(p.next(in) == stream_event::failed);
    CHECK(p.error() == errc::unsupported);
  }
}

TEST_CASE("stream receiver: memory that does not fit is a bug of its user's") {
  const auto about = about_blocks(2, {40});
  const auto all = stream_of(about);
  stream_receiver r;
  std::span<const std::byte> in = all;
  while (r.next() != stream_event::begun) {
    const auto place = r.room().front();
    std::memcpy(place.data(), in.data(), place.size());
    in = in.subspan(place.size());
    r.filled(place.size());
  }
  CHECK_THROWS_AS(r.expect({buffer::host(40)}), std::logic_error);
  CHECK_THROWS_AS(r.expect({buffer::host(40), buffer::host(41)}), std::logic_error);
  r.expect({buffer::host(40), buffer::host(40)});
  CHECK_THROWS_AS(r.expect({buffer::host(40), buffer::host(40)}), std::logic_error);
}
