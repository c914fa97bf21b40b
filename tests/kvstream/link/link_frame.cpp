#include "link/link_frame.hpp"

#include <doctest/doctest.h>

#include <random>

#include "cokv/runtime/error.hpp"
#include "kvstream/hex.hpp"
#include "link/hello.hpp"
#include "link/link_parser.hpp"
#include "link/send_queue.hpp"

using namespace cokv;
using namespace cokv::detail;

namespace {

link_header put_of(std::uint64_t n, digest_algorithm algorithm = digest_algorithm::xxh3_64) {
  return {.type = link_type::put,
          .algorithm = algorithm,
          .request = 0x0102030405060708,
          .window = 3,
          .generation = 0xfeedfacecafebeef,
          .offset = 1 << 20,
          .length = n};
}

buffer random_bytes(std::size_t n, std::mt19937_64& random) {
  auto b = buffer::host(n);
  for (auto& x : b.bytes()) x = static_cast<std::byte>(random());
  return b;
}

// What a queue of frames is as bytes, taken in writes of random sizes.
std::vector<std::byte> written(send_queue& queue, std::mt19937_64& random) {
  std::vector<std::byte> out;
  while (!queue.empty()) {
    std::uint64_t listed = 0;
    std::vector<std::byte> bytes;
    for (auto part : queue.next(1 + random() % 5000)) {
      const auto* at = static_cast<const std::byte*>(part.data());
      bytes.insert(bytes.end(), at, at + part.size());
      listed += part.size();
    }
    const auto n = 1 + random() % listed;
    out.insert(out.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n));
    queue.written(n);
  }
  CHECK(queue.bytes() == 0);
  CHECK(queue.weight() == 0);
  return out;
}

}  // namespace

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

TEST_CASE("send_queue: what has begun stays, what has not can be taken back") {
  std::mt19937_64 random(9);
  send_queue queue;
  for (std::uint64_t r = 1; r <= 3; ++r) {
    auto header = put_of(1000);
    header.request = r;
    queue.push({.header = header, .payload = {random_bytes(1000, random)}});
  }
  CHECK(!queue.next(100).empty());
  CHECK(!queue.withdraw(link_type::put, 1));
  CHECK(!queue.withdraw(link_type::get, 2));
  CHECK(queue.withdraw(link_type::put, 2));
  CHECK(!queue.withdraw(link_type::put, 2));
  CHECK(queue.size() == 2);
  queue.written(100);
  queue.push({.header = {.type = link_type::done, .request = 4}, .answer = true});
  queue.push({.header = {.type = link_type::ping}});
  queue.keep_begun();
  CHECK(queue.size() == 2);
  CHECK(queue.bytes() == 1072 - 100 + 64);
}

TEST_CASE("send_queue: puts that wait together, and answers, become one frame of known bytes") {
  send_queue queue;
  queue.join_up_to(1000);
  auto bytes = buffer::host(5);
  for (int i = 0; i < 5; ++i) bytes.bytes()[i] = static_cast<std::byte>('a' + i);
  const auto put = [&](std::uint64_t request, std::uint64_t offset, buffer b) {
    queue.push({.header = {.type = link_type::put,
                           .algorithm = digest_algorithm::xxh3_64,
                           .request = request,
                           .window = 5,
                           .generation = 0x0102030405060708,
                           .offset = offset,
                           .length = b.size()},
                .payload = {b}});
  };
  put(std::uint64_t{1} << 32, 16, bytes.slice(0, 3));
  put(std::uint64_t{2} << 32, 64, bytes.slice(3, 2));
  CHECK(queue.size() == 1);
  std::mt19937_64 random(1);
  CHECK(to_hex(written(queue, random)) == golden_hex("link puts"));
  for (std::uint64_t r = 1; r <= 2; ++r)
    queue.push({.header = {.type = link_type::done, .request = r << 32}, .answer = true});
  CHECK(queue.size() == 1);
  std::uint64_t n = 0;
  std::vector<std::byte> out;
  for (auto part : queue.next(1000)) {
    const auto* at = static_cast<const std::byte*>(part.data());
    out.insert(out.end(), at, at + part.size());
    n += part.size();
  }
  CHECK(to_hex(out) == golden_hex("link dones"));
  CHECK(queue.written(n - 1) == 0);
  CHECK(queue.written(1) == 2);
}

TEST_CASE("send_queue: what joined others can be taken back, and other frames join none") {
  std::mt19937_64 random(11);
  const auto fresh = [&](send_queue& queue, std::uint64_t request, auto change) {
    auto header = put_of(100);
    header.request = request;
    header.offset = request * 100;
    change(header);
    auto data = random_bytes(header.length, random);
    queue.push({.header = header, .payload = {data.slice(0, 30), data.slice(30, header.length - 30)}});
  };
  const auto as_it_is = [](link_header&) {};
  for (unsigned gone = 0; gone < 16; ++gone) {
    send_queue queue;
    queue.join_up_to(400);
    for (std::uint64_t r = 0; r < 4; ++r) fresh(queue, r, as_it_is);
    CHECK(queue.size() == 1);
    std::vector<std::uint64_t> left;
    for (std::uint64_t r = 0; r < 4; ++r) {
      if (gone >> r & 1)
        CHECK(queue.withdraw(link_type::put, r));
      else
        left.push_back(r);
    }
    CHECK(!queue.withdraw(link_type::put, 9));
    CHECK(queue.empty() == left.empty());
    const auto bytes = written(queue, random);
    link_parser parser;
    std::vector<std::uint64_t> came;
    for (std::span<const std::byte> in = bytes; !in.empty();) {
      if (parser.at() == link_parser::state::place) parser.keep();
      in = in.subspan(parser.feed(in));
      if (parser.at() != link_parser::state::frame) continue;
      CHECK(parser.intact());
      const auto& h = parser.header();
      if (h.type == link_type::places) {
        for (const auto& p : decode_places(parser.kept()).value()) {
          CHECK(p.offset == p.request * 100);
          CHECK(p.length == 100);
          came.push_back(p.request);
        }
      } else if (h.listed) {
        CHECK(h.offset == came.size());
        CHECK(h.length == came.size() * 100);
      } else {
        CHECK(h.offset == h.request * 100);
        came.push_back(h.request);
      }
      parser.next();
    }
    CHECK(came == left);
  }
  send_queue queue;
  queue.join_up_to(400);
  fresh(queue, 1, as_it_is);
  fresh(queue, 2, [](auto& h) { h.window = 4; });
  fresh(queue, 3, [](auto& h) { h.window = 4, h.generation = 1; });
  fresh(queue, 4, [](auto& h) { h.window = 4, h.generation = 1, h.algorithm = digest_algorithm::none; });
  fresh(queue, 5,
        [](auto& h) { h.window = 4, h.generation = 1, h.algorithm = digest_algorithm::none, h.length = 301; });
  CHECK(queue.size() == 5);
  queue.push({.header = {.type = link_type::done, .request = 1}, .answer = true});
  queue.push({.header = {.type = link_type::done, .code = 2, .request = 2}, .answer = true});
  queue.push({.header = {.type = link_type::done, .code = 2, .request = 0}, .answer = true});  // of a ping
  CHECK(queue.size() == 8);
  for (std::uint64_t r = 0; r < 2 * most_listed; ++r)
    queue.push({.header = {.type = link_type::done, .request = r + 1}, .answer = true});
  CHECK(queue.size() == 10);
  queue.next(100);
  fresh(queue, 6, as_it_is);
  CHECK(queue.size() == 11);
}

TEST_CASE("send_queue: joined puts let go what they keep alive when they are taken back, or all are written") {
  send_queue queue;
  queue.join_up_to(1000);
  std::vector<std::weak_ptr<int>> kept;
  const auto put = [&](std::uint64_t request, bool keeps) {
    auto owner = keeps ? std::make_shared<int>() : nullptr;
    kept.push_back(owner);
    auto header = put_of(10);
    header.request = request;
    queue.push({.header = header, .payload = {buffer::host(10)}, .keep_alive = std::move(owner)});
  };
  put(0, true), put(1, false), put(2, true), put(3, true), put(4, true);
  CHECK(queue.size() == 1);
  CHECK(queue.withdraw(link_type::put, 2));
  CHECK(kept[2].expired());
  CHECK(queue.withdraw(link_type::put, 1));
  std::uint64_t n = 0;
  for (auto part : queue.next(1000)) n += part.size();
  auto listed = queue.listed();
  queue.written(n - 1);
  for (auto i : {0, 3, 4}) CHECK(!kept[i].expired());
  queue.written(1);
  CHECK(queue.empty());
  for (auto i : {0, 3, 4}) CHECK(!kept[i].expired());  // who was told what is listed has it still
  listed.reset();
  for (const auto& k : kept) CHECK(k.expired());

  put(5, true), put(6, true);
  CHECK(queue.withdraw(link_type::put, 5));
  CHECK(!kept.back().expired());
  CHECK(queue.withdraw(link_type::put, 6));
  CHECK(queue.empty());
  CHECK(kept.back().expired());
}

TEST_CASE("send_queue: pieces that lie together are one buffer of a write, and the digest is that of their bytes") {
  std::mt19937_64 random(13);
  auto data = random_bytes(1000, random);
  for (bool together : {true, false}) {
    send_queue queue;
    std::vector<buffer> pieces;
    for (std::size_t i = 0; i < 10; ++i) pieces.push_back(data.slice((together ? i : 9 - i) * 100, 100));
    queue.push({.header = put_of(1000), .payload = pieces});
    CHECK(queue.next(5000).size() == (together ? 3 : 12));  // between the header and the digest
    std::vector<std::byte> bytes;
    for (const auto& p : pieces) bytes.insert(bytes.end(), p.bytes().begin(), p.bytes().end());
    const auto wire = written(queue, random);
    link_parser parser;
    std::span<const std::byte> in = wire;
    in = in.subspan(parser.feed(in));
    parser.keep();
    in = in.subspan(parser.feed(in));
    CHECK(parser.intact());
    CHECK(parser.kept() == bytes);
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
