#include "stage/block_slots.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>

using namespace cokv;
using namespace cokv::detail;

namespace {

using blocks = std::vector<block_index>;

blocks from(block_index first, std::uint32_t count) {
  blocks out;
  for (std::uint32_t i = 0; i < count; ++i) out.push_back(first + i);
  return out;
}

// Blocks that came in for a step, which ends at once.
std::size_t came_in(block_slots& s, const blocks& filled, const blocks& fresh = {}) {
  slot_moves in;
  REQUIRE(s.begin(filled, fresh, in));
  s.end();
  return in.in.size();
}

}  // namespace

TEST_CASE("block_slots: what is there does not come in again, nor what a step begins itself") {
  block_slots s(100, 10, 100);
  CHECK(came_in(s, {}, from(0, 4)) == 0);
  CHECK(came_in(s, from(0, 4), from(4, 1)) == 0);
  CHECK(came_in(s, from(10, 4)) == 4);
  CHECK(came_in(s, from(10, 4)) == 0);
  CHECK(s.forget(11));
  CHECK(came_in(s, from(10, 4)) == 1);
}

TEST_CASE("block_slots: slots that are taken are told, whether something comes into them or not") {
  block_slots s(100, 10, 100);
  slot_moves all, room, none;
  REQUIRE(s.begin(from(0, 5), {}, room));
  REQUIRE(s.begin({}, from(5, 5), room));
  CHECK(!room.taken);
  s.end(), s.end();
  REQUIRE(s.begin(from(3, 4), {}, none));
  CHECK(!none.taken);
  REQUIRE(s.begin({}, from(20, 1), all));
  CHECK(all.taken);
  CHECK(all.in.empty());
}

TEST_CASE("block_slots: a step waits for slots that others have, and changes nothing until it has them") {
  block_slots s(100, 10, 100);
  slot_moves in;
  REQUIRE(s.begin(from(0, 5), {}, in));
  REQUIRE(s.begin(from(10, 4), {}, in));
  CHECK(in.in.size() == 9);
  CHECK(!s.begin(from(20, 2), {}, in));
  CHECK(!s.begin(from(2, 5), {}, in));  // of which it shares three
  CHECK(in.in.size() == 9);
  CHECK(!s.forget(3));
  s.end();
  CHECK(s.forget(3));
  CHECK(!in.taken);
  CHECK(s.begin(from(20, 6), {}, in));
  CHECK(in.in.size() == 15);
  for (block_index b = 10; b < 14; ++b) CHECK(s.slot_of(b) < 10);
}

// Six rounds of four microbatches of four blocks, in room for three: one of them that is there and two that take turns would be
// no better than what the least recently used gives, which is nothing. The best is that two stay.
TEST_CASE("block_slots: in a round of microbatches what fits stays") {
  block_slots s(100, 12, 100);
  std::size_t moved = 0;
  for (int round = 0; round < 6; ++round)
    for (block_index m = 0; m < 4; ++m) moved += came_in(s, from(m * 4, 4));
  CHECK(moved <= 16 + 5 * 8);
}

TEST_CASE("block_slots: what no step of a while had gives way first") {
  block_slots s(100, 12, 5);
  CHECK(came_in(s, from(50, 8)) == 8);
  for (int i = 0; i < 8; ++i) (void)came_in(s, from(0, 2));
  std::size_t moved = 0;
  for (int round = 0; round < 4; ++round)
    for (block_index m = 0; m < 3; ++m) moved += came_in(s, from(m * 4, 4));
  CHECK(moved == 10);  // each once, but for the two that are there
}

TEST_CASE("block_slots: random steps, against a map of what is where") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    const auto below = [&](std::uint64_t n) { return static_cast<std::uint32_t>(random() % n); };
    const std::uint32_t all = 10 + below(60), slots = 2 + below(all - 1);
    block_slots s(all, slots, 1 + below(20));
    std::map<std::uint32_t, block_index> there;  // by slot
    std::deque<blocks> steps;
    const auto held = [&](block_index b) {
      return std::ranges::any_of(steps, [&](auto& step) { return std::ranges::find(step, b) != step.end(); });
    };
    for (int i = 0; i < 200; ++i) {
      const auto what = below(8);
      if (what == 0) {
        const auto b = below(all);
        const bool forgot = s.forget(b);
        CHECK(forgot == !held(b));
        if (forgot) std::erase_if(there, [&](auto& one) { return one.second == b; });
      } else if (what < 4 && !steps.empty()) {
        s.end();
        steps.pop_front();
      } else {
        std::set<block_index> wanted;
        for (auto n = 1 + below(std::max(1u, slots / 2)); n > 0; --n) wanted.insert(below(all));
        blocks filled, fresh;
        for (auto b : wanted) (below(4) || held(b) ? filled : fresh).push_back(b);
        std::set<block_index> kept(wanted);
        for (auto& step : steps) kept.insert(step.begin(), step.end());
        slot_moves in;
        const bool began = s.begin(filled, fresh, in);
        CHECK(began == (kept.size() <= slots));
        if (!began) {
          CHECK(in.in.empty());
          continue;
        }
        std::set<block_index> moved;
        for (auto& m : in.in) {
          CHECK(moved.insert(m.block).second);
          CHECK(std::ranges::count(filled, m.block) == 1);
          CHECK(s.slot_of(m.block) == m.slot);
        }
        for (auto b : filled) {
          const auto at = there.find(s.slot_of(b));
          CHECK(moved.contains(b) == (at == there.end() || at->second != b));
        }
        steps.emplace_back(wanted.begin(), wanted.end());
        for (auto b : wanted) {
          std::erase_if(there, [&](auto& one) { return one.second == b; });
          there[s.slot_of(b)] = b;
        }
        // Nobody's slot is another's.
        for (auto& step : steps)
          for (auto b : step) CHECK(there.at(s.slot_of(b)) == b);
      }
    }
  }
}
