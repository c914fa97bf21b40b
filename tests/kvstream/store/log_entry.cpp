#include "store/log_entry.hpp"

#include <doctest/doctest.h>

#include <cstring>

#include "kvstream/hex.hpp"
#include "store/log_index.hpp"

using namespace cokv;
using namespace cokv::detail;

namespace {

log_record sample(std::size_t layers, std::uint32_t blocks) {
  log_record r;
  r.ns.bytes.fill(std::byte{0x11});
  r.extent.at = 8192;
  r.extent.places = blocks + 1;
  block_layout layout;
  for (std::size_t l = 0; l < layers; ++l) layout.segments.push_back(100 + l);
  r.extent.layout = std::make_shared<const block_layout>(layout);
  for (std::uint32_t i = 0; i < blocks; ++i) {
    r.blocks.push_back({{}, i + (i > 0 ? 1u : 0u)});
    r.blocks.back().key.bytes.fill(static_cast<std::byte>(0x22 + i));
    for (std::size_t l = 0; l < layers; ++l) r.digests.push_back(i * 1000 + l);
  }
  return r;
}

std::vector<std::byte> entry(const log_head& head, std::span<const std::byte> body) {
  std::vector<std::byte> out(log_entry_head + body.size());
  encode_log_head(head, body, out);
  std::copy(body.begin(), body.end(), out.begin() + log_entry_head);
  return out;
}

}  // namespace

TEST_CASE("log entry: the bytes are golden, and what is written is read back") {
  const auto r = sample(2, 1);
  const log_head head{.kind = log_kind::record, .serial = 7, .at = 64, .sequence = 0x0102, .value = 0x0101};
  const auto bytes = entry(head, encode_log_body(r));
  CHECK(bytes.size() == 256);
  CHECK(bytes.size() == log_record_bytes(2, 1));
  CHECK(to_hex(std::span(bytes).first(48)) ==
        "636b6c670400020007000000000000004000000000000000"
        "020100000000000001010000000000000001000000000000");
  CHECK(to_hex(std::span(bytes).subspan(96, 48)) ==
        "00200000000000000200000002000000010000000100000001000000000000006400000000000000"
        "6500000000000000");
  CHECK(to_hex(std::span(bytes).subspan(144, 8)) == "0000000022222222");
  for (auto [layers, blocks] : {std::pair{1u, 1u}, {3u, 5u}, {4096u, 1u}, {32u, 300u}}) {
    const auto one = sample(layers, blocks);
    const auto body = encode_log_body(one);
    CHECK(body.size() + log_entry_head == log_record_bytes(layers, blocks));
    const auto all = entry(head, body);
    const auto back_head = decode_log_head(all);
    REQUIRE(back_head.has_value());
    CHECK(back_head->kind == log_kind::record);
    CHECK(back_head->serial == 7);
    CHECK(back_head->at == 64);
    CHECK(back_head->sequence == 0x0102);
    CHECK(back_head->value == 0x0101);
    CHECK(back_head->bytes == all.size());
    CHECK(!check_log_body(all, body));
    const auto back = decode_log_record(body);
    REQUIRE(back.has_value());
    CHECK(back->ns == one.ns);
    CHECK(back->blocks == one.blocks);
    CHECK(back->digests == one.digests);
    CHECK(*back->extent.layout == *one.extent.layout);
    CHECK(back->extent.places == one.extent.places);
    CHECK(back->find(one.blocks.back()) == blocks - 1);
    CHECK(!back->find({one.blocks.back().key, 1}));
  }
}

TEST_CASE("log entry: whose blocks they are stands behind the digests, in any length up to the longest") {
  auto r = sample(2, 1);
  r.tenant = "team-a";
  const auto golden = encode_log_body(r);
  CHECK(golden.size() + log_entry_head == log_record_bytes(2, 1, 6));
  CHECK(to_hex(std::span(golden).subspan(56, 8)) == "0100000006000000");
  CHECK(to_hex(std::span(golden).subspan(64 + 2 * 8 + 36 + 2 * 8, 8)) == "7465616d2d610000");
  for (std::size_t n : {0u, 1u, 12u, 59u, 60u, 61u, 64u, 255u}) {
    r.tenant = std::string(n, 'x');
    const auto body = encode_log_body(r);
    REQUIRE(body.size() + log_entry_head == log_record_bytes(2, 1, n));
    const auto back = decode_log_record(body);
    REQUIRE(back.has_value());
    CHECK(back->tenant == r.tenant);
    CHECK(back->digests == r.digests);
  }
  r.tenant = std::string(256, 'x');
  CHECK(decode_log_record(encode_log_body(r)).error() == errc::protocol);
}

TEST_CASE("log entry: the version that knew no tenants is read, and those before and after it are not") {
  auto bytes = entry({.kind = log_kind::record, .serial = 7, .at = 64}, encode_log_body(sample(2, 1)));
  for (std::uint8_t version : {2, 3, 4, 5}) {
    bytes[4] = static_cast<std::byte>(version);
    const auto digest = digest_of(std::span(bytes).first(56));
    std::memcpy(bytes.data() + 56, &digest, sizeof digest);
    const auto head = decode_log_head(bytes);
    CHECK(head.has_value() == (version == 3 || version == 4));
    if (!head) CHECK(head.error() == errc::unsupported);
  }
  CHECK(decode_log_record(std::span(bytes).subspan(log_entry_head))->tenant.empty());
}

TEST_CASE("log entry: a removal is read back") {
  log_removal r{{sample(1, 1).ns, sample(1, 1).blocks[0].key}, 99};
  const auto body = encode_log_body(r);
  CHECK(body.size() + log_entry_head == log_removal_bytes);
  const auto back = decode_log_removal(body);
  REQUIRE(back.has_value());
  CHECK(back->id == r.id);
  CHECK(back->horizon == 99);
  CHECK(!decode_log_removal(std::span(body).first(64)).has_value());
}

TEST_CASE("log entry: segments of a layer lie together, block by block") {
  auto r = sample(3, 2);
  CHECK(r.extent.segment_at(0, 0) == 8192);
  CHECK(r.extent.segment_at(0, 2) == 8192 + 200);
  CHECK(r.extent.segment_at(1, 0) == 8192 + 300);
  CHECK(r.extent.bytes() == 3 * 303);
  r.extent.alignment = log_page;
  CHECK(r.extent.segment_at(0, 2) == 8192 + 2 * 4096);
  CHECK(r.extent.segment_at(2, 1) == 8192 + 7 * 4096);
  CHECK(r.extent.bytes() == 9 * 4096);
  CHECK(log_block_bytes(*r.extent.layout, log_page) == 3 * 4096);
}

TEST_CASE("log entry: every flipped bit is found, and what can't be is refused") {
  const log_head head{.kind = log_kind::record, .serial = 7, .at = 64, .sequence = 9, .value = 9};
  const auto body = encode_log_body(sample(3, 2));
  const auto good = entry(head, body);
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    auto bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    const auto h = decode_log_head(bad);
    REQUIRE((!h || check_log_body(bad, std::span(bad).subspan(log_entry_head)) == errc::digest_mismatch));
  }
  CHECK(decode_log_head(std::span(good).first(63)).error() == errc::digest_mismatch);
  auto other = good;
  encode_log_head({.kind = static_cast<log_kind>(6)}, {}, other);
  CHECK(decode_log_head(other).error() == errc::protocol);
  std::vector<std::byte> foreign(64, std::byte{'x'});
  CHECK(decode_log_head(foreign).error() == errc::protocol);

  const auto refused = [&](auto change) {
    auto r = sample(3, 2);
    change(r);
    CHECK(decode_log_record(encode_log_body(r)).error() == errc::protocol);
  };
  refused([](auto& r) { r.extent.at = 100; });
  refused([](auto& r) { r.extent.places = 2; });  // one of the places is behind it
  refused([](auto& r) { r.extent.places = 70'000; });
  refused([](auto& r) { r.extent.alignment = 512; });
  refused([](auto& r) { std::swap(r.blocks[0], r.blocks[1]); });
  refused([](auto& r) { r.extent.layout = std::make_shared<const block_layout>(block_layout{{1, 0, 1}}); });
  refused([](auto& r) { r.blocks.clear(), r.digests.clear(); });
  CHECK(!decode_log_record(std::span(body).first(body.size() - 64)).has_value());
}

TEST_CASE("log entry: names are read back, and no other name is") {
  CHECK(log_file_name(0x2a) == "000000000000002a.log");
  CHECK(parse_log_file_name("000000000000002a.log") == 0x2a);
  CHECK(parse_log_file_name(log_file_name(~std::uint64_t{0})) == ~std::uint64_t{0});
  for (auto bad : {"", "2a.log", "000000000000002A.log", "000000000000002a.lo", "000000000000002a.log~",
                   "x00000000000002a.log", "0000000000000002a.log"})
    CHECK(!parse_log_file_name(bad));
}

namespace {

// What a file holds after some writes.
struct image {
  std::vector<std::byte> bytes;
  void take(log_index& index) {
    for (auto& w : index.take_writes()) {
      CHECK(w.at % log_page == 0);
      CHECK(w.bytes.size() % log_page == 0);
      CHECK(reinterpret_cast<std::uintptr_t>(w.bytes.data()) % log_page == 0);
      if (bytes.size() < w.at + w.bytes.size()) bytes.resize(static_cast<std::size_t>(w.at + w.bytes.size()));
      std::copy(w.bytes.bytes().begin(), w.bytes.bytes().end(), bytes.begin() + static_cast<std::ptrdiff_t>(w.at));
    }
  }
};

struct walked {
  std::vector<std::uint64_t> sequences, damaged;
  bool sealed = false;
  std::size_t chunks = 0;
};

walked walk(const std::vector<std::byte>& file, std::uint64_t serial) {
  walked out;
  const auto first = read_log_first(file, serial);
  REQUIRE(first.has_value());
  for (std::uint64_t at = 0, bytes = first->chunk_bytes; bytes != 0; ++out.chunks) {
    std::vector<std::byte> chunk(static_cast<std::size_t>(bytes));
    for (std::size_t i = 0; i < chunk.size() && at + i < file.size(); ++i)
      chunk[i] = file[static_cast<std::size_t>(at) + i];
    const auto said = read_log_chunk(chunk, serial, at);
    for (const auto& e : said.entries) out.sequences.push_back(e.head.sequence);
    out.damaged.insert(out.damaged.end(), said.damaged.begin(), said.damaged.end());
    out.sealed = said.sealed;
    at = said.next_at;
    bytes = said.next_bytes;
  }
  return out;
}

}  // namespace

TEST_CASE("log index: entries go through chunks that are linked, small and large ones, between extents") {
  log_index index(5, true, 4096);
  image file;
  file.take(index);
  CHECK(file.bytes.size() == 4096);
  CHECK(index.end() == 4096);
  std::vector<std::uint64_t> wanted;
  for (std::uint64_t i = 1; i <= 60; ++i) {
    const auto at = index.allocate(10'000);
    CHECK(at % log_page == 0);
    const auto body = encode_log_body(sample(i % 7 == 0 ? 900 : 2, 1 + static_cast<std::uint32_t>(i % 3)));
    const auto before = index.end();
    const auto place = index.add(log_kind::record, i, i, body);
    CHECK(index.end() <= log_pages(before) + log_index::growth(log_entry_head + body.size(), 4096));
    file.take(index);
    const auto head = decode_log_head(std::span(file.bytes).subspan(static_cast<std::size_t>(place)));
    REQUIRE(head.has_value());
    CHECK(head->sequence == i);
    wanted.push_back(i);
    const auto now = walk(file.bytes, 5);
    REQUIRE(now.sequences == wanted);
    CHECK(!now.sealed);
    CHECK(now.damaged.empty());
  }
  index.seal();
  file.take(index);
  const auto end = walk(file.bytes, 5);
  CHECK(end.sealed);
  CHECK(end.chunks > 8);
  CHECK(read_log_first(file.bytes, 5)->carried);
  CHECK(read_log_first(file.bytes, 6).error() == errc::protocol);  // another's name
  CHECK(read_log_first({}, 5).error() == errc::not_found);
  CHECK(read_log_first(std::vector<std::byte>(4096), 5).error() == errc::not_found);
  auto damaged = file.bytes;
  damaged[20] ^= std::byte{1};
  CHECK(read_log_first(damaged, 5).error() == errc::digest_mismatch);
}

TEST_CASE("log index: a damaged byte costs an entry, and which batches were synced tells whether it counts") {
  log_index index(5, false, 4096);
  image file;
  for (std::uint64_t i = 1; i <= 9; ++i)
    index.add(log_kind::record, i, (i + 2) / 3 * 3 - 2, encode_log_body(sample(2, 1)));
  file.take(index);
  for (std::size_t which = 0; which < 9; ++which)
    for (std::size_t at : {0, 30, 60, 70, 200}) {
      auto bad = file.bytes;
      bad[64 + which * 256 + at] ^= std::byte{4};
      const auto now = walk(bad, 5);
      CHECK(now.sequences.size() == 8);
      if (at == 0 && now.damaged.empty()) continue;  // no entry of ours begins there any more
      REQUIRE(now.damaged.size() == 1);
      CHECK(now.damaged[0] == (which == 8 ? ~std::uint64_t{0} : (which + 1) / 3 * 3 + 1));
    }
}

TEST_CASE("log index: what was allocated last can be given back, nothing else") {
  log_index index(5, false, 4096);
  const auto a = index.allocate(5000), b = index.allocate(1);
  CHECK(a == 4096);
  CHECK(b == 4096 + 8192);
  CHECK(!index.take_back(a, 5000));
  CHECK(index.take_back(b, 1));
  CHECK(index.take_back(a, 5000));
  CHECK(index.end() == 4096);
}
