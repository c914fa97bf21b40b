#include "link/send_queue.hpp"

#include <doctest/doctest.h>

#include <random>

#include "kvstream/hex.hpp"
#include "kvstream/link/frames.hpp"
#include "link/link_parser.hpp"

using namespace cokv;
using namespace cokv::detail;
using namespace cokv::test;

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

TEST_CASE("send_queue: a message goes before bytes that have not begun, and behind other messages") {
  std::mt19937_64 random(3);
  send_queue queue;
  const auto push = [&](link_type type, std::uint64_t request, std::size_t n) {
    auto header = put_of(n);
    header.type = type;
    header.request = request;
    queue.push({.header = header, .payload = {random_bytes(n, random)}});
  };
  push(link_type::put, 1, 1000);
  CHECK(!queue.next(100).empty());  // begun
  push(link_type::put, 2, 1000);
  push(link_type::data, 3, 1000);
  push(link_type::message, 4, 10);
  push(link_type::put, 5, 1000);
  push(link_type::message, 6, 10);
  queue.push({.header = {.type = link_type::ping, .request = 7}});
  push(link_type::message, 8, 10);
  std::vector<std::byte> all;
  while (!queue.empty()) {
    std::uint64_t n = 0;
    for (auto& b : queue.next(~std::uint64_t{0})) {
      const auto* at = static_cast<const std::byte*>(b.data());
      all.insert(all.end(), at, at + b.size());
      n += b.size();
    }
    queue.written(n);
  }
  std::vector<std::uint64_t> order;
  for (std::size_t at = 0; at < all.size();) {
    const auto h = decode_link(std::span(all).subspan(at).first<link_header_bytes>()).value();
    order.push_back(h.request);
    at += link_header_bytes + (h.has_payload() ? h.length : 0) + (h.has_trailer() ? link_trailer_bytes : 0);
  }
  CHECK(order == std::vector<std::uint64_t>{1, 4, 6, 2, 3, 5, 7, 8});
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
