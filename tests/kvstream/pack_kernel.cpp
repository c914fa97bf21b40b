// The packing kernel's own code, every thread of it on the host, against what packs on the host.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "kernel/pack_table.hpp"
#include "kvstream/transfers.hpp"
#include "support/pack_on_host.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

// Runs side by side in two buffers, of all forms, aligned and not; some longer than a tile.
std::vector<kv_run> make_runs(std::mt19937& random, std::uint64_t sizes[2], bool aligned) {
  static constexpr std::uint64_t chunks[] = {1, 2, 3, 4, 16, 24, 64, 128, 256, 300, 5000, 20'000};
  std::vector<kv_run> runs;
  for (auto n = random() % 40; n > 0; --n) {
    kv_run r{.buffer = static_cast<std::uint32_t>(random() % 2), .chunk_bytes = chunks[random() % 12]};
    if (aligned) r.chunk_bytes = (r.chunk_bytes + 15) / 16 * 16;
    const auto gap = [&](unsigned most) { return random() % most * (aligned ? 16 : 1); };
    if (random() % 3 > 0) {
      r.rows = 1 + random() % 9;
      r.chunks = 1 + random() % 4;
      r.chunk_stride = r.chunk_bytes + gap(3);
      r.row_stride = r.chunks * r.chunk_stride + gap(5);
    }
    r.offset = sizes[r.buffer] + gap(7);
    sizes[r.buffer] = r.offset + r.rows * r.row_stride + r.chunks * r.chunk_stride + r.chunk_bytes;
    runs.push_back(r);
  }
  return runs;
}

template <bool Packs>
void run_kernel(const detail::pack_job& job, std::mt19937& random) {
  detail::pack_tile tile;
  std::memset(static_cast<void*>(&tile), 0xdb, sizeof tile);
  const std::uint32_t blocks = 1 + random() % 5;
  for (std::uint32_t b = blocks; b-- > 0;) detail::run_block<Packs>(job, tile, b, blocks);
}

}  // namespace

TEST_CASE("pack kernel: a leaf's digest is XXH3-64 of its 4096 bytes") {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    std::uint64_t words[detail::leaf_words], sums[detail::leaf_lanes], secret[detail::secret_words];
    for (auto& w : words) w = round == 0 ? 0 : round == 1 ? ~std::uint64_t{0} : random();
    for (std::uint32_t i = 0; i < detail::secret_words; ++i) secret[i] = detail::secret_word(i);
    for (std::uint32_t lane = 0; lane < detail::leaf_lanes; ++lane) sums[lane] = detail::leaf_lane(words, secret, lane);
    CHECK(detail::leaf_digest(sums, secret) == digest_of(std::as_bytes(std::span(words))));
  }
}

TEST_CASE("pack kernel: groups are cut at leaves, fit with their tables, and lose nothing") {
  std::mt19937 random(2);
  std::size_t several = 0, none = 0;
  for (int round = 0; round < 500; ++round) {
    std::uint64_t sizes[2] = {}, bytes = 0;
    const auto runs = make_runs(random, sizes, false);
    for (const auto& r : runs) bytes += r.bytes();
    const std::uint64_t room = 4000 + random() % (round % 2 ? 4000 : 60'000);
    const auto groups = detail::cut_by_leaves(runs, room);
    several += groups.size() > 2;
    if (groups.empty()) {
      none += bytes > 0;
      continue;
    }
    std::uint64_t all = 0;
    const std::vector<buffer> memory = {blank(sizes[0]), blank(sizes[1])};
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const auto& g = groups[i];
      CHECK((i + 1 == groups.size() || g.bytes % tree_leaf_bytes == 0));
      CHECK(g.skip < g.runs.front().bytes());
      std::vector<std::byte> staging(room + 7);
      const auto skewed = std::span(staging).subspan(random() % 8, room);
      const auto job = detail::lay_out(skewed, g, memory, true);
      const auto* end = reinterpret_cast<const std::byte*>(job.first + detail::tiles_of(g.bytes) + 1);
      CHECK(end <= skewed.data() + skewed.size());
      all += g.bytes;
    }
    CHECK(all == bytes);
  }
  CHECK(several > 50);
  CHECK(none > 10);
  CHECK(detail::cut_by_leaves({}, 1 << 20).empty());
}

TEST_CASE("pack kernel: it packs, unpacks and digests as the host does, whatever the runs, their cut and alignment") {
  std::mt19937 random(3);
  int packed = 0;
  for (int round = 0; round < 300; ++round) {
    CAPTURE(round);
    std::uint64_t sizes[2] = {};
    const auto runs = make_runs(random, sizes, round % 3 == 0);
    const auto groups = detail::cut_by_leaves(runs, 6000 + random() % 100'000);
    const std::vector<buffer> from = {patterned(sizes[0], 1), patterned(sizes[1], 2)};
    const std::vector<buffer> to = {blank(sizes[0]), blank(sizes[1])}, model = {blank(sizes[0]), blank(sizes[1])};
    const bool digested = random() % 4 != 0;
    std::uint64_t bytes = 0;
    for (const auto& r : runs) bytes += r.bytes();
    if (groups.empty()) continue;
    std::vector<std::byte> right(bytes), all;
    detail::running_digest digest(digest_algorithm::xxh3_64_tree);
    detail::pack(digest, right, runs, from);
    detail::running_digest none(digest_algorithm::none);
    detail::unpack(none, right, runs, model);

    std::vector<std::uint64_t> leaves, back;
    for (const auto& g : groups) {
      std::vector<std::byte> staging(200'000, std::byte{0xdb});
      const auto room = std::span(staging).subspan(round % 3 == 1 ? random() % 16 : 0, 180'000);
      auto job = detail::lay_out(room, g, from, digested);
      run_kernel<true>(job, random);
      CHECK(std::equal(room.begin(), room.begin() + static_cast<std::ptrdiff_t>(g.bytes),
                       right.begin() + static_cast<std::ptrdiff_t>(all.size())));
      all.insert(all.end(), room.begin(), room.begin() + static_cast<std::ptrdiff_t>(g.bytes));
      if (digested) leaves.insert(leaves.end(), job.leaves, job.leaves + detail::leaves_of(g.bytes));
      job = detail::lay_out(room, g, to, digested);
      if (digested) std::fill_n(job.leaves, detail::leaves_of(g.bytes), 0);
      run_kernel<false>(job, random);
      if (digested) back.insert(back.end(), job.leaves, job.leaves + detail::leaves_of(g.bytes));
      ++packed;
    }
    CHECK(all == right);
    for (int b = 0; b < 2; ++b) CHECK(same(to[b].bytes(), model[b].bytes()));
    if (!digested) continue;
    CHECK(tree_digest_of(leaves, bytes) == digest.value());
    CHECK(back == leaves);
  }
  CHECK(packed > 400);
}
