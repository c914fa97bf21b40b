#include "cokv/kvstream/swap_schedule.hpp"

#include <doctest/doctest.h>

#include <stdexcept>
#include <vector>

#include "cokv/runtime/error.hpp"

using namespace cokv;

namespace {

using move = swap_schedule::move;
constexpr auto bring_in = move::kind::bring_in;
constexpr auto write_out = move::kind::write_out;

// A turn whose moves take no time.
void take_turn(swap_schedule& swap, std::uint32_t new_tokens) {
  for (auto moves = swap.next(); !moves.empty(); moves = swap.next())
    for (auto& m : moves) swap.done(m);
  REQUIRE(swap.ready());
  swap.begin();
  swap.end(new_tokens);
}

}  // namespace

TEST_CASE("swap schedule: the example of its header") {
  swap_schedule swap({.slots = 3, .prefetch = 1});
  for (std::uint64_t m = 0; m < 8; ++m) swap.add(m);
  CHECK(swap.next().empty());  // no prompt has been computed, so there is nothing to bring in
  CHECK(swap.ready());
  swap.begin();
  CHECK(!swap.ready());
  swap.end(1);
  auto moves = swap.next();
  CHECK(moves == std::vector<move>{{write_out, 0, 0, {0, 1}}});
  for (auto& move : moves) swap.done(move);
  CHECK(swap.current() == 1);
}

TEST_CASE("swap schedule: a new token writes only itself, and the next one's KV comes while this one computes") {
  swap_schedule swap({.slots = 2, .prefetch = 1});
  for (std::uint64_t m = 0; m < 3; ++m) swap.add(m, 100);
  CHECK(swap.next() == std::vector<move>{{bring_in, 0, 0, {0, 100}}, {bring_in, 1, 1, {0, 100}}});
  CHECK(!swap.ready());
  swap.done({bring_in, 0, 0, {0, 100}});
  swap.begin();
  CHECK(swap.next().empty());
  swap.done({bring_in, 1, 1, {0, 100}});
  swap.end(1);
  // The slot of the first is not free before its token has left.
  CHECK(swap.next() == std::vector<move>{{write_out, 0, 0, {100, 1}}});
  swap.begin();
  CHECK(swap.next().empty());
  swap.done({write_out, 0, 0, {100, 1}});
  CHECK(swap.next() == std::vector<move>{{bring_in, 2, 0, {0, 100}}});
  swap.end(1);
  CHECK(!swap.ready());
}

TEST_CASE("swap schedule: where there is room for all, nothing moves") {
  swap_schedule swap({.slots = 4, .prefetch = 2});
  for (std::uint64_t m = 0; m < 4; ++m) swap.add(m);
  for (int i = 0; i < 40; ++i) {
    CHECK(swap.next().empty());
    REQUIRE(swap.ready());
    swap.begin();
    swap.end(i < 4 ? 50 : 1);
  }
  // One more, and what was never written has to leave.
  swap.add(4);
  auto moves = swap.next();
  REQUIRE(moves.size() == 4);
  for (auto& m : moves) CHECK(m.tokens == index_range{0, 59});
}

TEST_CASE("swap schedule: who is needed last makes room") {
  swap_schedule swap({.slots = 3, .prefetch = 0});
  for (std::uint64_t m = 0; m < 5; ++m) swap.add(m);
  for (int i = 0; i < 3; ++i) take_turn(swap, 9);
  // 0, 1 and 2 are there, and 3 is next. What 2 has new must leave first, and then 1 is needed later than 0.
  swap.next();
  CHECK(swap.slot() == 1);
}

TEST_CASE("swap schedule: what failed is asked for again") {
  swap_schedule swap({.slots = 1, .prefetch = 0});
  swap.add(0, 5);
  swap.add(1);
  auto in = swap.next();
  REQUIRE(in.size() == 1);
  swap.failed(in[0]);
  CHECK(!swap.ready());
  CHECK(swap.slots_used() == 0);
  CHECK(swap.next() == in);
  swap.done(in[0]);
  swap.begin();
  swap.end(2);
  auto out = swap.next();
  CHECK(out == std::vector<move>{{write_out, 0, 0, {5, 2}}});
  swap.failed(out[0]);
  CHECK(swap.next() == out);
  swap.done(out[0]);
  swap.next();
  CHECK(swap.ready());
  CHECK(swap.current() == 1);
}

TEST_CASE("swap schedule: a removed one's slot stays taken until no transfer touches it") {
  for (bool succeeds : {true, false}) {
    swap_schedule swap({.slots = 1, .prefetch = 0});
    swap.add(0, 5);
    swap.add(1, 5);
    auto in = swap.next();
    swap.remove(0);
    CHECK(swap.next().empty());
    CHECK(swap.slots_used() == 1);
    CHECK_THROWS_AS(swap.add(0), std::invalid_argument);
    succeeds ? swap.done(in[0]) : swap.failed(in[0]);
    CHECK(swap.slots_used() == 0);
    CHECK(swap.next() == std::vector<move>{{bring_in, 1, 0, {0, 5}}});
    swap.add(0);
  }
}

TEST_CASE("swap schedule: misuse is refused") {
  CHECK_THROWS_AS(swap_schedule({.slots = 0, .prefetch = 0}), config_error);
  CHECK_THROWS_AS(swap_schedule({.slots = 2, .prefetch = 2}), config_error);
  swap_schedule swap({.slots = 2, .prefetch = 1});
  CHECK(!swap.current());
  CHECK(!swap.ready());
  CHECK_THROWS_AS(swap.begin(), std::invalid_argument);
  CHECK_THROWS_AS(swap.end(1), std::invalid_argument);
  CHECK_THROWS_AS(swap.slot(), std::invalid_argument);
  CHECK_THROWS_AS(swap.remove(1), std::invalid_argument);
  swap.add(1, 4);
  CHECK_THROWS_AS(swap.add(1), std::invalid_argument);
  CHECK_THROWS_AS(swap.begin(), std::invalid_argument);
  auto in = swap.next();
  auto other = in[0];
  other.slot = 1;
  CHECK_THROWS_AS(swap.done(other), std::invalid_argument);
  swap.done(in[0]);
  CHECK_THROWS_AS(swap.done(in[0]), std::invalid_argument);
  swap.begin();
  CHECK_THROWS_AS(swap.begin(), std::invalid_argument);
  CHECK_THROWS_AS(swap.remove(1), std::invalid_argument);
  CHECK_THROWS_AS(swap.end(4294967295u), std::invalid_argument);
}

TEST_CASE("swap schedule: what did not come after all is away again, and asked for in its turn") {
  swap_schedule swap({.slots = 2, .prefetch = 1});
  for (std::uint64_t m = 0; m < 3; ++m) swap.add(m, 100);
  for (auto& move : swap.next()) swap.done(move);  // certain to come
  CHECK(swap.slots_used() == 2);
  swap.lost(0);
  CHECK(!swap.ready());
  CHECK(swap.slots_used() == 1);
  swap.lost(0);
  swap.lost(2);  // is not there anyway
  CHECK(swap.next() == std::vector<move>{{bring_in, 0, 0, {0, 100}}});
  swap.lost(0);  // on its way: failed() is for that
  CHECK(swap.slots_used() == 2);
  swap.done({bring_in, 0, 0, {0, 100}});
  swap.begin();
  CHECK_THROWS_AS(swap.lost(0), std::invalid_argument);  // it computes
  swap.end(1);
  CHECK_THROWS_AS(swap.lost(0), std::invalid_argument);  // the host lacks a token
  CHECK_THROWS_AS(swap.lost(7), std::invalid_argument);
}
