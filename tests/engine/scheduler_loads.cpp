// Requests that wait for KV on its way, or compute along with it.
#include <doctest/doctest.h>

#include "cokv/runtime/error.hpp"
#include "engine/scheduler_fixture.hpp"

using namespace cokv;
using namespace cokv::test;

TEST_CASE("a request waits for its load while others run, and computes what did not arrive") {
  counted_blocks blocks(20);
  scheduler s({.block_tokens = 16, .max_batched_tokens = 100}, blocks);
  REQUIRE(!s.add({.id = 1, .prompt = prompt(64), .max_tokens = 1, .loadable_tokens = 64}));
  REQUIRE(!s.add({.id = 2, .prompt = prompt(5), .max_tokens = 2}));
  auto step = s.next();
  REQUIRE(step.loads.size() == 1);
  CHECK(step.loads[0].start == 0);
  CHECK(step.loads[0].count == 48);  // whole blocks before the last token
  CHECK(s.blocks(1).size() == 4);
  CHECK(ids(step) == std::vector<request_id>{2});
  s.done(answer(step));
  s.loaded(1, 40);  // two whole blocks are good
  step = s.next();
  CHECK(ids(step) == std::vector<request_id>{2, 1});
  CHECK(step.items[1].start == 32);
  CHECK(step.items[1].count == 32);
  CHECK(s.cached_tokens(1) == 32);
  s.done(answer(step));
  CHECK(!s.has_work());
  CHECK(blocks.available() == 20);
}

TEST_CASE("what a load lets be computed along with it is not computed again") {
  counted_blocks blocks(20);
  scheduler s({.block_tokens = 16, .max_batched_tokens = 100}, blocks);
  REQUIRE(!s.add({.id = 1, .prompt = prompt(60), .max_tokens = 3, .loadable_tokens = 60}));
  REQUIRE(!s.add({.id = 2, .prompt = prompt(5), .max_tokens = 2}));
  auto step = s.next();
  REQUIRE(step.loads.size() == 1);
  CHECK(step.loads[0].count == 48);
  CHECK(step.loads[0].compute == 12);
  CHECK(step.loads[0].sample);
  CHECK(step.tokens == 5);  // the step's budget is its own
  // The load may end while the step is still running.
  auto token = s.loaded_and_computed(1, 77, 1u << 20);
  REQUIRE(token);
  CHECK(token->token == 77);
  CHECK(!token->last);
  CHECK(s.computed_tokens(1) == 60);
  CHECK(s.cached_tokens(1) == 48);
  CHECK(s.tokens(1).back() == 77);
  s.done(answer(step));
  step = s.next();
  CHECK(ids(step) == std::vector<request_id>{1, 2});
  CHECK(step.items[0].start == 60);
  CHECK(step.items[0].count == 1);
}

TEST_CASE("computed along with a load: as much as one step's budget in all loads together, the rest later") {
  counted_blocks blocks(40);
  scheduler s({.block_tokens = 16, .max_batched_tokens = 20}, blocks);
  REQUIRE(!s.add({.id = 1, .prompt = prompt(40), .max_tokens = 1, .loadable_tokens = 32}));
  REQUIRE(!s.add({.id = 2, .prompt = prompt(64), .max_tokens = 1, .loadable_tokens = 32}));
  REQUIRE(!s.add({.id = 3, .prompt = prompt(40), .max_tokens = 1, .loadable_tokens = 32}));
  auto step = s.next();
  REQUIRE(step.loads.size() == 3);
  CHECK(step.loads[0].compute == 8);
  CHECK(step.loads[0].sample);
  CHECK(step.loads[1].compute == 12);
  CHECK(!step.loads[1].sample);
  CHECK(step.loads[2].compute == 0);
  CHECK_THROWS_AS(s.loaded_and_computed(3, 1, 1), std::logic_error);
  CHECK(!s.loaded_and_computed(2, 1, 1 << 20));  // a piece of the prompt: nothing is sampled
  CHECK(s.computed_tokens(2) == 44);
  s.loaded(1, 16);  // less came than was promised: what was computed behind it counts for nothing here
  CHECK(s.computed_tokens(1) == 16);
  s.loaded(3, 32);
  step = s.next();
  CHECK(ids(step) == std::vector<request_id>{1});
  CHECK(step.items[0].start == 16);
  s.done(answer(step));
  // All of it is given back: to the next load, also by one that is cancelled.
  for (request_id id = 4; id < 7; ++id) {
    REQUIRE(!s.add({.id = id, .prompt = prompt(48), .max_tokens = 1, .loadable_tokens = 32}));
    for (bool begun = false; !begun;) {
      step = s.next();
      begun = !step.loads.empty();
      if (begun) CHECK(step.loads[0].compute == 16);
      if (!step.items.empty()) s.done(answer(step));
    }
    CHECK(s.cancel(id));
  }
  CHECK(!s.loaded_and_computed(6, 1, 1));
}

TEST_CASE("a load that was made good by computing what it lost counts as cached what it brought") {
  counted_blocks blocks(20);
  scheduler s({.block_tokens = 16, .max_batched_tokens = 100}, blocks);
  REQUIRE(!s.add({.id = 1, .prompt = prompt(60), .max_tokens = 3, .loadable_tokens = 60}));
  CHECK(s.next().loads.size() == 1);
  auto token = s.loaded_and_computed(1, 77, 32);
  REQUIRE(token);
  CHECK(token->token == 77);
  CHECK(s.computed_tokens(1) == 60);
  CHECK(s.cached_tokens(1) == 32);
  CHECK(s.next().items.at(0).start == 60);
}

TEST_CASE("a load that is given up leaves its blocks to who may still write them, and takes others or waits for them") {
  for (std::size_t n : {8u, 5u}) {
    counted_blocks blocks(n);
    blocks.quarantine_all = true;
    scheduler s({.block_tokens = 16, .max_batched_tokens = 100}, blocks);
    REQUIRE(!s.add({.id = 1, .prompt = prompt(60), .max_tokens = 3, .loadable_tokens = 60}));
    auto step = s.next();
    REQUIRE(step.loads.size() == 1);
    const auto before = std::vector(s.blocks(1).begin(), s.blocks(1).end());
    s.load_given_up(1, 20);  // one whole block is good
    if (n == 5) {
      CHECK(s.blocks(1).empty());
      CHECK(s.waiting() == 1);
      CHECK(s.next().empty());
      blocks.end_quarantine();
    } else {
      const auto now = s.blocks(1);
      REQUIRE(now.size() == 4);
      CHECK(now[0] == before[0]);
      for (auto b : now.subspan(1)) CHECK(std::ranges::find(before, b) == before.end());
    }
    step = s.next();
    REQUIRE(step.items.size() == 1);
    CHECK(step.loads.empty());  // not asked for again
    CHECK(step.items[0].start == (n == 5 ? 0 : 16));
    CHECK(s.cached_tokens(1) == (n == 5 ? 0 : 16));
    s.done(answer(step));
    CHECK(s.running() == 1);
    s.load_given_up(1, 0);  // of nobody's load: nothing
    CHECK(s.computed_tokens(1) == 60);
  }
}

TEST_CASE("a load that brings nothing leaves everything to be computed") {
  counted_blocks blocks(20);
  scheduler s({.max_batched_tokens = 100}, blocks);
  REQUIRE(!s.add({.id = 1, .prompt = prompt(40), .max_tokens = 1, .loadable_tokens = 32}));
  CHECK(s.next().loads.size() == 1);
  CHECK(s.next().empty());  // no step is in flight, the load is
  s.loaded(1, 0);
  auto step = s.next();
  REQUIRE(step.items.size() == 1);
  CHECK(step.items[0].start == 0);
  CHECK(step.items[0].count == 40);
  s.done(answer(step));
}
