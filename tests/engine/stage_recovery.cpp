// From where a model's workers go on behind a loss: by hand, and against what it says of itself for any of them; what they tell each other of it
// comes back as it was written, or is refused.
#include "cokv/engine/stage_recovery.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "cokv/engine/stage_worker.hpp"
#include "cokv/runtime/error.hpp"
#include "kvstream/hex.hpp"

using namespace cokv;

namespace {

constexpr stage_epoch before{9, 3}, now{9, 4};
const stage_sizes sizes{.kv_blocks = 10,
                        .block_tokens = 4,
                        .max_batched_tokens = 16,
                        .max_running = 4,
                        .max_requests = 8,
                        .max_sequence = 32,
                        .microbatches = 2,
                        .copies = 1};

held_sequence some_sequence(copy_id id) { return {id, 20, {3, 7}, {5, 6, 7}}; }

stage_recovery some_recovery() { return {now, {2}, {some_sequence(5), {8, 12, {1}, {4}}}}; }

}  // namespace

TEST_CASE("stage recovery: whose KV is kept where") {
  const topology two_by_three(2, 3), ranks(1, 4), stages(3, 1);
  CHECK(keeper_of(two_by_three, 1) == 4);  // the next stage's same rank
  CHECK(keeper_of(two_by_three, 4) == 1);
  CHECK(keeper_of(ranks, 3) == 0);
  CHECK(keeper_of(stages, 2) == 0);
  for (const auto& t : {two_by_three, ranks, stages})
    for (std::uint32_t n = 0; n < t.workers(); ++n) CHECK(kept_by(t, keeper_of(t, n)) == n);
}

// Three stages. Sequence 5 has three steps behind it; the last stage lacks the third. Worker 2 is lost: the leader keeps two
// steps of it. Sequence 6 has one, which never came to the leader: it begins anew.
TEST_CASE("stage recovery: all go on from the fewest steps that anybody has") {
  const topology split(3, 1);
  const std::vector<stage_holding> said{{before, {{5, 3}, {6, 1}}, {{5, 2}}}, {before, {{5, 3}, {6, 1}}, {}}, {}};
  const auto r = recover(split, now, said, {some_sequence(6), some_sequence(5)});
  CHECK(r.now == now);
  CHECK(r.fresh == std::vector<std::uint32_t>{2});
  REQUIRE(r.sequences.size() == 1);
  CHECK(r.sequences[0] == held_sequence{5, 20, {3, 7}, {5, 6}});

  auto lagging = said;
  lagging[1].computed[5] = 1;
  CHECK(recover(split, now, lagging, {some_sequence(5)}).sequences[0].ends == std::vector<std::uint32_t>{5});
  auto stale = said;
  stale[1].last.number = 2;  // of an epoch before the leader's: its keeper, worker 2, is gone, too
  CHECK(recover(split, now, stale, {some_sequence(5)}).fresh == std::vector<std::uint32_t>{1, 2});
  CHECK(recover(split, now, stale, {some_sequence(5)}).sequences.empty());
  auto strange = said;
  strange[1].last.leader = 8;
  CHECK(recover(split, now, strange, {some_sequence(5)}).sequences.empty());
  auto ahead = said;
  ahead[1].last.number = 4;  // it came together with others once more, which the leader did not
  CHECK(recover(split, now, ahead, {some_sequence(5)}).fresh == std::vector<std::uint32_t>{2});
  // The first time nobody has anything.
  CHECK(recover(split, {9, 1}, std::vector<stage_holding>(3), {}).fresh == std::vector<std::uint32_t>{0, 1, 2});
}

TEST_CASE("stage recovery: of any workers, no step goes on that somebody has not got") {
  std::mt19937 random(7);
  const auto below = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); };
  std::size_t went_on = 0;
  for (int round = 0; round < 2000; ++round) {
    const topology split(1 + below(4), 1 + below(3));
    if (split.workers() == 1) continue;
    std::vector<held_sequence> held;
    for (copy_id id = 1; id <= 3; ++id) {
      held.push_back({id, 100, std::vector<block_index>(25, 0), {}});
      for (auto n = below(5); n > 0; --n)
        held.back().ends.push_back((held.back().ends.empty() ? 0 : held.back().ends.back()) + 1 + below(3));
    }
    std::vector<stage_holding> said(split.workers());
    for (std::uint32_t n = 0; n < said.size(); ++n) {
      if (n > 0 && below(4) == 0) continue;
      said[n].last = before;
      for (copy_id id = 1; id <= 3; ++id) said[n].computed[id] = below(6), said[n].kept[id] = below(6);
    }
    const auto r = recover(split, now, said, held);
    for (const auto& s : r.sequences) {
      ++went_on;
      const auto& was = held[s.id - 1];
      REQUIRE(!s.ends.empty());
      REQUIRE(s.ends.size() <= was.ends.size());
      CHECK(std::equal(s.ends.begin(), s.ends.end(), was.ends.begin()));
      for (std::uint32_t n = 0; n < said.size(); ++n) {
        const bool lost = std::ranges::binary_search(r.fresh, n);
        const auto& keeper = said[keeper_of(split, n)];
        CHECK(s.ends.size() <= (lost ? keeper.kept.at(s.id) : said[n].computed.at(s.id)));
      }
    }
  }
  CHECK(went_on > 200);
}

TEST_CASE("stage recovery: comes back as it was written, in the protocol's bytes") {
  const stage_holding h{before, {{5, 3}, {6, 1}}, {{7, 2}}};
  const auto back = decode_holding(encode(h), sizes);
  REQUIRE(back.has_value());
  CHECK(back->last == h.last);
  CHECK(back->computed == h.computed);
  CHECK(back->kept == h.kept);
  CHECK(decode_recovery(encode(some_recovery()), sizes, 3).value() == some_recovery());
  CHECK(to_hex(encode(h)) == golden_hex("stage holding"));
  CHECK(to_hex(encode(some_recovery())) == golden_hex("stage recovery"));
  for (const auto& bytes : {encode(h), encode(some_recovery())})
    for (std::size_t n = 0; n < bytes.size(); ++n) {
      const auto part = std::span(bytes).first(n);
      CHECK(decode_holding(part, sizes).error() == errc::protocol);
      CHECK(decode_recovery(part, sizes, 3).error() == errc::protocol);
    }
}

TEST_CASE("stage recovery: what there is none of is refused") {
  const auto refused = [](auto change) {
    auto r = some_recovery();
    change(r);
    CHECK(decode_recovery(encode(r), sizes, 3).error() == errc::protocol);
  };
  refused([](stage_recovery& r) { r.now.number = 0; });
  refused([](stage_recovery& r) { r.fresh = {3}; });
  refused([](stage_recovery& r) { r.fresh = {1, 1}; });
  refused([](stage_recovery& r) { r.sequences[1].id = 5; });
  refused([](stage_recovery& r) { r.sequences[0].id = 0; });
  refused([](stage_recovery& r) { r.sequences[0].blocks[0] = 10; });
  refused([](stage_recovery& r) { r.sequences[0].blocks.assign(10, 1); });
  refused([](stage_recovery& r) { r.sequences[0].ends = {}; });
  refused([](stage_recovery& r) { r.sequences[0].ends = {0, 4}; });
  refused([](stage_recovery& r) { r.sequences[0].ends = {4, 4}; });
  refused([](stage_recovery& r) { r.sequences[0].ends = {9}; });  // beyond its blocks
  refused([](stage_recovery& r) { r.sequences[0].room = 6; });    // and beyond its room
  refused([](stage_recovery& r) { r.sequences[0].room = 33; });
  refused([](stage_recovery& r) { r.sequences.resize(9, r.sequences[0]); });
  stage_holding many{before, {}, {}};
  for (copy_id id = 1; id <= 9; ++id) many.computed[id] = 1;
  CHECK(decode_holding(encode(many), sizes).error() == errc::protocol);
  auto twice = encode(stage_holding{before, {{5, 3}, {6, 1}}, {}});
  twice[28 + 12] = std::byte{5};  // the second id
  CHECK(decode_holding(twice, sizes).error() == errc::protocol);
}
