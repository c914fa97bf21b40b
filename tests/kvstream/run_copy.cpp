#include "transfer/run_copy.hpp"

#include <doctest/doctest.h>

#include <random>

#include "kvstream/transfers.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

struct place {
  std::uint32_t buffer;
  std::uint64_t offset;
  friend bool operator==(const place&, const place&) = default;
};

void add(std::vector<place>& out, const kv_run& r) {
  for (std::uint64_t row = 0; row < r.rows; ++row)
    for (std::uint64_t c = 0; c < r.chunks; ++c)
      for (std::uint64_t b = 0; b < r.chunk_bytes; ++b)
        out.push_back({r.buffer, r.offset + row * r.row_stride + c * r.chunk_stride + b});
}

// Runs side by side in two buffers, of all forms: one stretch, rows, rows of chunks, one row of chunks.
std::vector<kv_run> make_runs(std::mt19937& random, std::uint64_t sizes[2]) {
  static constexpr std::uint64_t chunks[] = {1, 2, 3, 4, 16, 24, 64, 128, 256, 300, 5000};
  std::vector<kv_run> runs;
  for (auto n = random() % 12; n > 0; --n) {
    kv_run r{.buffer = static_cast<std::uint32_t>(random() % 2), .chunk_bytes = chunks[random() % 11]};
    if (random() % 3 > 0) {
      r.rows = 1 + random() % 9;
      r.chunks = 1 + random() % 4;
      r.chunk_stride = r.chunk_bytes + random() % 3;
      r.row_stride = r.chunks * r.chunk_stride + random() % 5;
    }
    r.offset = sizes[r.buffer];
    sizes[r.buffer] += r.rows * r.row_stride + r.chunks * r.chunk_stride + r.chunk_bytes;
    runs.push_back(r);
  }
  return runs;
}

}  // namespace

TEST_CASE("run copy: what is packed is the runs' bytes in order with their digest, and unpacked it is where it was") {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    std::uint64_t sizes[2] = {};
    const auto runs = make_runs(random, sizes);
    std::vector<place> expected;
    for (const auto& r : runs) add(expected, r);

    const std::uint64_t room = 1 + random() % (round % 2 ? 200 : 40'000);
    const auto groups = detail::cut(runs, room);
    std::vector<place> cut;
    for (const auto& g : groups) {
      CHECK((g.bytes > 0 && g.bytes <= room));
      const auto before = cut.size();
      for (const auto& r : g.runs) add(cut, r);
      CHECK(cut.size() - before == g.bytes);
    }
    REQUIRE(cut == expected);

    const std::vector<buffer> from = {patterned(sizes[0], 1), patterned(sizes[1], 2)};
    const std::vector<buffer> to = {blank(sizes[0]), blank(sizes[1])}, model = {blank(sizes[0]), blank(sizes[1])};
    std::vector<std::byte> bytes;
    for (const auto& p : expected) {
      bytes.push_back(from[p.buffer].bytes()[p.offset]);
      model[p.buffer].bytes()[p.offset] = bytes.back();
    }
    const std::vector<buffer> plainly = {blank(sizes[0]), blank(sizes[1])};
    const auto how = round % 3 == 0 ? digest_algorithm::xxh3_64_tree : digest_algorithm::xxh3_64;
    detail::running_digest packing(how), unpacking(how), none(digest_algorithm::none);
    std::vector<std::byte> all;
    for (const auto& g : groups) {
      std::vector<std::byte> staged(g.bytes);
      detail::pack(packing, staged, g.runs, from);
      detail::unpack(unpacking, staged, g.runs, to);
      std::vector<std::byte> plain(g.bytes);  // and without a digest
      detail::pack(none, plain, g.runs, from);
      detail::unpack(none, plain, g.runs, plainly);
      CHECK(plain == staged);
      all.insert(all.end(), staged.begin(), staged.end());
    }
    CHECK(all == bytes);
    const auto right = how == digest_algorithm::xxh3_64 ? digest_of(bytes) : tree_digest_of(bytes);
    CHECK(packing.value() == right);
    CHECK(unpacking.value() == right);
    for (int b = 0; b < 2; ++b) {
      CHECK(same(to[b].bytes(), model[b].bytes()));
      CHECK(same(plainly[b].bytes(), model[b].bytes()));
    }
  }
}

TEST_CASE("run copy: rows stay whole where a group has room for one") {
  const std::vector<kv_run> runs = {
      {.chunk_bytes = 30},
      {.offset = 100, .rows = 5, .row_stride = 8, .chunks = 2, .chunk_stride = 4, .chunk_bytes = 4}};
  const auto groups = detail::cut(runs, 36);
  REQUIRE(groups.size() == 3);
  CHECK(groups[0].runs == std::vector<kv_run>{runs[0]});
  CHECK(groups[1].bytes == 32);
  CHECK(groups[1].runs[0].rows == 4);
  CHECK(groups[2].runs[0].offset == 132);
  CHECK(detail::cut({}, 36).empty());
}
