// Prompts whose KV comes from elsewhere: admitted as others are, and never computed unless they were preempted later.
#include <doctest/doctest.h>

#include "cokv/runtime/error.hpp"
#include "engine/scheduler_fixture.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

schedule_request outside(request_id id, std::size_t tokens, std::uint32_t max_tokens = 8) {
  return {.id = id, .prompt = prompt(tokens), .max_tokens = max_tokens, .outside = static_cast<std::uint32_t>(tokens)};
}

std::vector<std::size_t> steps_to_the_end(scheduler& s) {
  std::vector<std::size_t> sizes;
  while (s.has_work()) {
    const auto step = s.next();
    REQUIRE(!step.items.empty());
    sizes.push_back(step.tokens);
    s.done(answer(step));
  }
  return sizes;
}

}  // namespace

TEST_CASE("outside: it is asked for exactly what is missing, holds its blocks, and decodes once it is there") {
  counted_blocks blocks(10);
  scheduler s({.block_tokens = 16}, blocks);
  REQUIRE(!s.add(outside(1, 40, 3)));
  const auto step = s.next();
  CHECK(step.items.empty());
  REQUIRE(step.loads.size() == 1);
  const auto& load = step.loads.front();
  CHECK(load.outside);
  CHECK(load.start == 0);
  CHECK(load.count == 40);
  CHECK(load.compute == 0);
  CHECK_FALSE(load.sample);
  CHECK(s.blocks(1).size() == 3);
  CHECK(s.limit(1) == 43);
  CHECK(s.prompt_tokens_left() == 0);  // none of them here
  CHECK(s.next().empty());
  const auto first = s.arrived(1, 77);
  REQUIRE(first);
  CHECK(first->token == 77);
  CHECK_FALSE(first->last);
  CHECK(s.computed_tokens(1) == 40);
  CHECK(s.tokens(1).back() == 77);
  const auto next = s.next();
  REQUIRE(next.items.size() == 1);
  CHECK(next.items[0].start == 40);
  CHECK(next.items[0].count == 1);
  CHECK(next.items[0].sample);
  CHECK(s.done(std::vector<token_id>{5}).size() == 1);
  CHECK(steps_to_the_end(s) == std::vector<std::size_t>{1});
  CHECK(blocks.available() == 10);
}

TEST_CASE("outside: all of it may be here already, its last whole block included") {
  counted_blocks blocks(10);
  blocks.cached = {9, 8, 7};
  scheduler s({.block_tokens = 16}, blocks);
  REQUIRE(!s.add(outside(1, 48)));
  auto step = s.next();
  CHECK(blocks.asked.size() == 48);  // a prompt that is computed asks for one block less
  REQUIRE(step.loads.size() == 1);
  CHECK(step.loads[0].start == 48);
  CHECK(step.loads[0].count == 0);
  REQUIRE(s.arrived(1, 3));
  step = s.next();
  REQUIRE(step.items.size() == 1);
  CHECK(step.items[0].start == 48);
  CHECK(s.blocks(1).size() == 4);
  CHECK(s.cached_tokens(1) == 48);
  s.cancel(1);
  CHECK(blocks.available() == 10);
}

TEST_CASE("outside: the token that came may be the last there is room for") {
  counted_blocks blocks(4);
  scheduler s({.block_tokens = 16}, blocks);
  REQUIRE(!s.add(outside(1, 20, 1)));
  s.next();
  const auto t = s.arrived(1, 3);
  REQUIRE(t);
  CHECK(t->last);
  CHECK_FALSE(s.contains(1));
  CHECK(blocks.available() == 4);
}

TEST_CASE("outside: it waits in its turn for blocks, which others keep while they need them") {
  counted_blocks blocks(6);
  scheduler s({.block_tokens = 16}, blocks);
  REQUIRE(!s.add({.id = 1, .prompt = prompt(60), .max_tokens = 2}));
  REQUIRE(!s.add(outside(2, 40)));
  REQUIRE(!s.add({.id = 3, .prompt = prompt(1), .max_tokens = 1}));
  auto step = s.next();
  CHECK(ids(step) == std::vector<request_id>{1});
  CHECK(step.loads.empty());  // three blocks, and one to spare
  s.done(answer(step));
  step = s.next();
  CHECK(step.loads.empty());
  s.done(answer(step));  // 1 is over
  step = s.next();
  REQUIRE(step.loads.size() == 1);
  CHECK(step.loads[0].id == 2);
  CHECK(ids(step) == std::vector<request_id>{3});
}

TEST_CASE("outside: cancelled in any state, its blocks come back once, and what arrives later is nobody's") {
  counted_blocks blocks(6);
  scheduler s({.block_tokens = 16}, blocks);
  REQUIRE(!s.add(outside(1, 40)));
  CHECK(s.cancel(1));  // waiting
  REQUIRE(!s.add(outside(2, 40)));
  s.next();
  CHECK(blocks.available() == 3);
  CHECK(s.cancel(2));  // arriving
  CHECK(blocks.available() == 6);
  CHECK_FALSE(s.arrived(2, 1));
  REQUIRE(!s.add(outside(3, 40)));
  s.next();
  REQUIRE(s.arrived(3, 1));
  s.next();
  CHECK(s.cancel(3));  // decoding
  s.done(std::vector<token_id>{1});
  CHECK(blocks.available() == 6);
  CHECK_FALSE(s.has_work());
}

TEST_CASE("outside: preempted afterwards it is computed, its first token with it") {
  counted_blocks blocks(5);
  scheduler s({.block_tokens = 4}, blocks);
  REQUIRE(!s.add({.id = 1, .prompt = prompt(3), .max_tokens = 12}));
  auto step = s.next();
  s.done(answer(step));
  REQUIRE(!s.add(outside(2, 7)));
  step = s.next();
  REQUIRE(step.loads.size() == 1);
  s.done(answer(step));
  REQUIRE(s.arrived(2, 66));
  bool preempted = false, computed = false;
  for (int i = 0; s.has_work(); ++i) {
    REQUIRE(i < 100);
    step = s.next();
    CHECK(step.loads.empty());
    for (auto id : step.preempted) preempted |= id == 2;
    for (auto& item : step.items)
      if (preempted && item.id == 2 && item.start == 0) {
        computed = true;
        CHECK(item.count >= 8);
        CHECK(s.tokens(2)[7] == 66);
      }
    s.done(answer(step));
  }
  CHECK(preempted);
  CHECK(computed);
  CHECK(blocks.available() == 5);
}

TEST_CASE("outside: arriving prompts have half of the blocks, and one is let in whatever it needs") {
  counted_blocks blocks(12);
  scheduler s({.block_tokens = 16}, blocks);
  REQUIRE(!s.add(outside(1, 16 * 7)));
  REQUIRE(!s.add(outside(2, 16)));
  auto step = s.next();
  REQUIRE(step.loads.size() == 1);
  CHECK(step.loads[0].id == 1);
  CHECK(s.next().empty());
  REQUIRE(s.arrived(1, 1));
  step = s.next();
  REQUIRE(step.loads.size() == 1);  // what has arrived does not count
  CHECK(step.loads[0].id == 2);
  s.done(answer(step));
}

TEST_CASE("outside: of leading tokens the rest is computed, and the first token sampled, here") {
  counted_blocks blocks(10);
  scheduler s({.block_tokens = 16}, blocks);
  REQUIRE(!s.add({.id = 1, .prompt = prompt(40), .max_tokens = 3, .outside = 38}));
  auto step = s.next();
  CHECK(step.items.empty());
  REQUIRE(step.loads.size() == 1);
  CHECK(step.loads[0].outside);
  CHECK(step.loads[0].start == 0);
  CHECK(step.loads[0].count == 38);
  CHECK(s.blocks(1).size() == 3);
  CHECK(s.next().empty());
  CHECK_THROWS_AS(s.arrived(1, 7), std::logic_error);  // the token behind it is none of the sender's
  CHECK_FALSE(s.arrived(1, std::nullopt));
  CHECK(s.computed_tokens(1) == 38);
  step = s.next();
  REQUIRE(step.items.size() == 1);
  CHECK(step.items[0].start == 38);
  CHECK(step.items[0].count == 2);
  CHECK(step.items[0].sample);
  s.done(answer(step));
  CHECK(s.tokens(1).size() == 41);
  CHECK(steps_to_the_end(s) == std::vector<std::size_t>{1, 1});
  CHECK(blocks.available() == 10);
  CHECK(s.add({.id = 2, .prompt = prompt(4), .outside = 5}) == errc::invalid_argument);
}

TEST_CASE("outside: a load that ends as another kind's is a mistake of the caller's") {
  counted_blocks blocks(12);
  scheduler s({.block_tokens = 16}, blocks);
  REQUIRE(!s.add(outside(1, 20)));
  s.next();
  CHECK_THROWS_AS(s.arrived(1, std::nullopt), std::logic_error);
  CHECK_THROWS_AS(s.loaded(1, 16), std::logic_error);
  CHECK_THROWS_AS(s.load_given_up(1, 16), std::logic_error);
  CHECK_THROWS_AS(s.loaded_and_computed(1, 5, 16), std::logic_error);
  REQUIRE(!s.add({.id = 2, .prompt = prompt(40), .loadable_tokens = 32}));
  s.next();
  CHECK_THROWS_AS(s.arrived(2, 5), std::logic_error);
}
