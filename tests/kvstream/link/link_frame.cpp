#include "link/link_frame.hpp"

#include <doctest/doctest.h>

#include <random>

#include "cokv/runtime/error.hpp"
#include "kvstream/hex.hpp"
#include "kvstream/link/frames.hpp"
#include "link/hello.hpp"
#include "link/link_parser.hpp"

using namespace cokv;
using namespace cokv::detail;
using namespace cokv::test;

TEST_CASE("link_frame: a header is 64 known bytes and reads back as it was") {
  send_queue queue;
  const link_header h{.type = link_type::put,
                      .algorithm = digest_algorithm::xxh3_64,
                      .request = std::uint64_t{1} << 32,
                      .window = 5,
                      .generation = 0x0102030405060708,
                      .offset = 16,
                      .length = 3};
  auto payload = buffer::host(3);
  for (int i = 0; i < 3; ++i) payload.bytes()[i] = static_cast<std::byte>('a' + i);
  queue.push({.header = h, .payload = {payload}});
  std::mt19937_64 random(1);
  CHECK(to_hex(written(queue, random)) == golden_hex("link put"));
  CHECK(to_hex(encode({.type = link_type::done, .request = h.request})) == golden_hex("link done"));
  CHECK(decode_link(encode(h)).value() == h);
  const auto head = encode(put_of(5));
  CHECK(decode_link(head).value() == put_of(5));
}

TEST_CASE("link_frame: whatever byte of a header is another one, it is refused") {
  const auto head = encode(put_of(5));
  for (std::size_t i = 0; i < head.size(); ++i)
    for (int bit = 0; bit < 8; ++bit) {
      auto damaged = head;
      damaged[i] ^= std::byte{1} << bit;
      const auto h = decode_link(damaged);
      CHECK((h.error() == errc::digest_mismatch || h.error() == errc::protocol));
    }
  // Another version says so, if its digest is right.
  auto sealed = [&](std::size_t at, int value) {
    auto other = head;
    other[at] = static_cast<std::byte>(value);
    const auto digest = digest_of(std::span(other).first(56));
    for (std::size_t i = 0; i < 8; ++i) other[56 + i] = static_cast<std::byte>(digest >> (8 * i));
    return decode_link(other).error();
  };
  CHECK(sealed(4, 2) == errc::unsupported);
  CHECK(sealed(5, 0) == errc::protocol);
  CHECK(sealed(5, 16) == errc::protocol);
  CHECK(!sealed(5, 14));
  CHECK(sealed(5, 7) == errc::protocol);  // a ping with a payload
  CHECK(sealed(6, 2) == errc::unsupported);
  CHECK(sealed(7, 2) == errc::protocol);  // beside the connection, and with a digest
  CHECK(!sealed(7, 3));
  CHECK(sealed(7, 4) == errc::protocol);
  for (auto type : {link_type::get, link_type::data, link_type::message, link_type::done})
    CHECK(decode_link(encode({.type = type, .length = 5, .listed = true})).error() == errc::protocol);
  CHECK(decode_link(encode({.type = link_type::put, .listed = true})).error() == errc::protocol);  // nothing
  for (auto type : {link_type::places, link_type::dones}) {
    CHECK(decode_link(encode({.type = type, .length = 24})).error() == errc::protocol);  // nobody could verify it
    CHECK(decode_link(encode({.type = type, .algorithm = digest_algorithm::xxh3_64})).error() == errc::protocol);
  }
  for (auto type : {link_type::message, link_type::done, link_type::commit, link_type::grant})
    CHECK(decode_link(encode({.type = type, .in_place = true})).error() == errc::protocol);
  for (auto type : {link_type::message, link_type::done, link_type::goodbye})
    CHECK(decode_link(encode({.type = type, .carried = true})).error() == errc::protocol);
  CHECK(decode_link(encode({.type = link_type::put, .carried = true})).error() == errc::protocol);  // nothing
  const link_header carried{.type = link_type::put, .length = 5, .carried = true};
  CHECK(decode_link(encode(carried)).value() == carried);
  CHECK(!carried.has_payload());
  CHECK(sealed(12, 1) == errc::protocol);
}

TEST_CASE("link_parser: any split of what a queue wrote gives the same frames, wherever their payloads go") {
  std::mt19937_64 random(7);
  for (int round = 0; round < 200; ++round) {
    send_queue queue;
    std::vector<std::pair<link_header, std::vector<std::byte>>> sent;
    const auto frames = 1 + random() % 6;
    for (std::size_t f = 0; f < frames; ++f) {
      const auto n = random() % 3 == 0 ? random() % 20 : random() % 9000;
      auto data = random_bytes(n, random);
      std::vector<buffer> pieces;
      for (std::size_t at = 0; at < n;) {
        const auto part = std::min<std::size_t>(n - at, 1 + random() % 700);
        pieces.push_back(data.slice(at, part));
        at += part;
      }
      auto header = put_of(n, random() % 2 ? digest_algorithm::xxh3_64 : digest_algorithm::none);
      header.request = f;
      header.in_place = random() % 4 == 0;
      sent.emplace_back(header, std::vector(data.bytes().begin(), data.bytes().end()));
      if (header.in_place) {  // where the bytes are, both know; their digest is sent
        queue.push({.header = header, .answer = f % 2 == 0, .sealed = f + 77});
        continue;
      }
      queue.push({.header = header, .payload = std::move(pieces), .answer = f % 2 == 0});
    }
    const auto bytes = written(queue, random);

    link_parser parser({.chunk = 9000});
    std::size_t f = 0;
    std::vector<std::byte> target;
    int how = 0;
    for (std::span<const std::byte> in = bytes; f < frames;) {
      if (parser.at() == link_parser::state::place) {
        how = static_cast<int>(random() % 3);
        target.assign(parser.header().length, std::byte{0});
        if (how == 0) {
          std::vector<std::span<std::byte>> parts;
          for (std::size_t at = 0; at < target.size();) {
            const auto n = std::min<std::size_t>(target.size() - at, random() % 1000);
            parts.push_back(std::span(target).subspan(at, n));
            at += n;
          }
          parser.into(std::move(parts));
        } else if (how == 1) {
          parser.keep();
        } else {
          parser.discard();
        }
      } else if (parser.at() == link_parser::state::frame) {
        CHECK(parser.header() == sent[f].first);
        CHECK(parser.intact() == (how != 2 || !parser.header().has_payload()));
        if (parser.header().in_place && parser.header().has_trailer()) CHECK(parser.sealed() == f + 77);
        if (parser.header().has_payload() && how == 0) CHECK(target == sent[f].second);
        if (parser.header().has_payload() && how == 1) CHECK(parser.kept() == sent[f].second);
        parser.next();
        ++f;
      } else if (parser.room() > 0 && random() % 2) {  // as a socket reads: right into the target
        std::vector<asio::mutable_buffer> room;
        const auto n = std::min<std::uint64_t>(parser.list_room(1 + random() % 2000, 5, room), in.size());
        std::uint64_t at = 0;
        for (auto part : room) {
          const auto here = std::min<std::uint64_t>(part.size(), n - at);
          std::copy_n(in.begin() + static_cast<std::ptrdiff_t>(at), here, static_cast<std::byte*>(part.data()));
          at += here;
        }
        parser.filled(n);
        in = in.subspan(n);
      } else {
        REQUIRE(!in.empty());
        in = in.subspan(parser.feed(in.first(std::min<std::size_t>(in.size(), 1 + random() % 3000))));
      }
      REQUIRE(parser.at() != link_parser::state::failed);
    }
  }
}

TEST_CASE("link_parser: a damaged payload spoils its frame alone; a length beyond the limit ends it") {
  std::mt19937_64 random(3);
  send_queue queue;
  for (int i = 0; i < 2; ++i) queue.push({.header = put_of(100), .payload = {random_bytes(100, random)}});
  auto bytes = written(queue, random);
  bytes[64 + 50] ^= std::byte{1};
  link_parser parser;
  std::vector<bool> intact;
  for (std::span<const std::byte> in = bytes; intact.size() < 2;) {
    if (parser.at() == link_parser::state::place) parser.keep();
    if (parser.at() == link_parser::state::frame) {
      intact.push_back(parser.intact());
      parser.next();
    }
    in = in.subspan(parser.feed(in));
  }
  CHECK(intact == std::vector{false, true});

  auto refused = [](link_header h) {
    link_parser p({.chunk = 4096});
    p.feed(encode(h));
    return p.error();
  };
  CHECK(refused(put_of(4097)) == errc::too_large);
  CHECK(refused(put_of(~std::uint64_t{0})) == errc::too_large);
  CHECK(refused({.type = link_type::get, .length = 4097}) == errc::too_large);
  CHECK(refused({.type = link_type::message, .length = (64 << 10) + 1}) == errc::too_large);
  CHECK(refused({.type = link_type::hello, .length = (64 << 10) + 1}) == errc::too_large);
  CHECK(!refused(put_of(4096)));
}

TEST_CASE("link_parser: what is dropped halfway is not touched any more, and the next frame is sound") {
  std::mt19937_64 random(5);
  for (std::size_t when = 0; when < 180; when += 7) {
    send_queue queue;
    for (int i = 0; i < 2; ++i) queue.push({.header = put_of(100), .payload = {random_bytes(100, random)}});
    const auto bytes = written(queue, random);
    link_parser parser;
    std::vector<std::byte> target(100);
    std::span<const std::byte> in = bytes;
    in = in.subspan(parser.feed(in.first(64)));
    parser.into({std::span(target)});
    auto part = in.first(std::min<std::size_t>(when, 107));
    while (!part.empty()) {
      const auto n = parser.feed(part);
      part = part.subspan(n);
      in = in.subspan(n);
    }
    parser.drop_rest();
    const auto before = target;
    std::ranges::fill(target, std::byte{0x55});
    while (parser.at() != link_parser::state::frame) in = in.subspan(parser.feed(in.first(1)));
    CHECK(std::ranges::all_of(target, [](std::byte b) { return b == std::byte{0x55}; }));
    CHECK(!parser.intact());
    parser.next();
    in = in.subspan(parser.feed(in));
    parser.keep();
    in = in.subspan(parser.feed(in));
    CHECK(parser.intact());
  }
}

TEST_CASE("link_parser: that no bytes were read into a payload changes nothing, between frames either") {
  link_parser parser;
  parser.filled(0);
  CHECK(parser.at() == link_parser::state::header);
  CHECK(parser.feed(encode({.type = link_type::put, .length = 1})) == link_header_bytes);
  parser.filled(0);
  CHECK(parser.at() == link_parser::state::place);
  parser.keep();
  parser.filled(0);
  CHECK(parser.at() == link_parser::state::payload);
  CHECK(parser.feed(std::vector<std::byte>(1)) == 1);
  REQUIRE(parser.at() == link_parser::state::frame);
  parser.next();
  parser.filled(0);
  CHECK(parser.at() == link_parser::state::header);
}

TEST_CASE("link_parser: what it keeps of one payload after another is never more than the largest may be") {
  link_parser parser({.chunk = 100});
  for (const std::size_t n : {60, 100, 1, 70, 100}) {
    parser.feed(encode({.type = link_type::put, .length = n}));
    parser.keep();
    parser.feed(std::vector<std::byte>(n, static_cast<std::byte>(n)));
    REQUIRE(parser.at() == link_parser::state::frame);
    CHECK(parser.kept() == std::vector<std::byte>(n, static_cast<std::byte>(n)));
    CHECK(parser.kept().capacity() <= 100);
    parser.next();
  }
}

TEST_CASE("link_frame: places and answers are read as they were written, and nothing else is") {
  const std::vector<put_place> places = {{1, 2, 3}, {4, 5, 6}};
  CHECK(decode_places(encode(places)).value() == places);
  CHECK(decode_requests(encode_requests(places)).value() == std::vector<std::uint64_t>{1, 4});
  const std::vector<put_place> many(most_listed + 1, {1, 2, 3});
  CHECK(decode_places(encode(many)).error() == errc::protocol);
  CHECK(decode_requests(encode_requests(many)).error() == errc::protocol);
  for (std::size_t n : {0, 1, 23, 25}) CHECK(decode_places(std::vector<std::byte>(n)).error() == errc::protocol);
  for (std::size_t n : {0, 7, 9}) CHECK(decode_requests(std::vector<std::byte>(n)).error() == errc::protocol);
  CHECK(decode_places(encode(std::vector<put_place>{{1, 2, 0}})).error() == errc::protocol);
  CHECK(decode_places(encode(std::vector<put_place>{{1, 2, ~0ull}})).error() == errc::protocol);
}

TEST_CASE("hello: reads back as it was, and nothing else reads as one") {
  link_hello h;
  h.session = 77;
  h.lane = 1;
  h.lanes = 4;
  h.credits = 5;
  h.messages = 6;
  h.chunk = 1 << 20;
  h.name = "decode-0";
  h.topology = "pp2xtp4";
  h.worker = 99;
  h.sessions = {77, 78};
  const auto bytes = encode(h);
  CHECK(decode_hello(bytes).value() == h);
  auto meeting = h;
  meeting.meeting.assign(256, std::byte{7});
  CHECK(decode_hello(encode(meeting)).value() == meeting);
  meeting.meeting.pop_back();
  CHECK(decode_hello(encode(meeting)).error() == errc::protocol);
  for (std::size_t n = 0; n < bytes.size(); ++n)
    CHECK(decode_hello(std::span(bytes).first(n)).error() == errc::protocol);
  auto longer = bytes;
  longer.push_back({});
  CHECK(decode_hello(longer).error() == errc::protocol);
  auto wrong = [&](auto change) {
    auto other = h;
    change(other);
    return decode_hello(encode(other)).error() == errc::protocol;
  };
  CHECK(wrong([](auto& o) { o.lanes = 0; }));
  CHECK(wrong([](auto& o) { o.lane = most_lane_numbers; }));
  CHECK(wrong([](auto& o) { o.credits = 0; }));
  CHECK(wrong([](auto& o) { o.messages = 0; }));
  CHECK(wrong([](auto& o) { o.chunk = 4095; }));
  CHECK(wrong([](auto& o) { o.chunk = std::uint64_t{1} << 40; }));
  CHECK(wrong([](auto& o) { o.credits = ~0u; }));
}
