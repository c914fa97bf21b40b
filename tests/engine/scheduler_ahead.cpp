// Steps that are planned while the one before them runs.
#include <doctest/doctest.h>

#include "engine/scheduler_fixture.hpp"

using namespace cokv;
using namespace cokv::test;

TEST_CASE(
    "ahead: the next step is planned on what the one before will have done, and a token has its place before it is "
    "known") {
  counted_blocks blocks(20);
  scheduler s({.block_tokens = 4, .max_batched_tokens = 8, .ahead = 1}, blocks);
  REQUIRE(!s.add({.id = 1, .prompt = prompt(10), .max_tokens = 3}));
  auto& first = s.next();
  CHECK(first.items.at(0).count == 8);
  CHECK(!first.items[0].sample);
  auto& second = s.next();
  CHECK(second.items.at(0).start == 8);
  CHECK(second.items[0].count == 2);
  CHECK(second.items[0].sample);
  CHECK(!second.items[0].awaits);
  CHECK_THROWS_AS(s.next(), std::logic_error);
  CHECK(first.items[0].count == 8);  // it is still there
  CHECK(s.done({}).empty());
  auto& third = s.next();
  CHECK(third.items.at(0).start == 10);
  CHECK(third.items[0].awaits);
  CHECK(s.tokens(1).size() == 11);
  CHECK(s.known_tokens(1).size() == 10);
  auto told = s.done({{42}});
  CHECK(told.at(0).token == 42);
  CHECK(!told[0].last);
  CHECK(s.known_tokens(1).back() == 42);
  auto& fourth = s.next();
  CHECK(fourth.items.at(0).start == 11);
  CHECK(s.done({{43}}).at(0).token == 43);
  CHECK(s.next().empty());  // the last token is on its way: nothing is computed for nobody
  CHECK(s.has_work());
  CHECK(s.done({{44}}).at(0).last);
  CHECK(!s.has_work());
  CHECK(blocks.available() == 20);
}

TEST_CASE("ahead: a request that ended has one token dropped, and a newcomer of its id gets none") {
  counted_blocks blocks(20);
  scheduler s({.max_batched_tokens = 64, .ahead = 1}, blocks);
  REQUIRE(!s.add({.id = 1, .prompt = prompt(10), .max_tokens = 30}));
  REQUIRE(!s.add({.id = 2, .prompt = prompt(10), .max_tokens = 30}));
  s.next();
  s.next();
  CHECK(s.done({{5, 6}}).size() == 2);
  CHECK(s.cancel(1));  // an end token
  REQUIRE(!s.add({.id = 1, .prompt = prompt(3), .max_tokens = 30}));
  auto& step = s.next();
  CHECK(ids(step) == std::vector<request_id>{2, 1});
  auto told = s.done({{7, 8}});
  REQUIRE(told.size() == 1);
  CHECK(told[0].id == 2);
  CHECK(told[0].token == 8);
  CHECK(s.tokens(1).size() == 3);
  s.done({{9, 10}});
  CHECK(s.tokens(1).size() == 4);
}

TEST_CASE("ahead: who is preempted while its token is sampled gets it, and is admitted again when it is known") {
  counted_blocks blocks(4);
  scheduler s({.block_tokens = 4, .max_batched_tokens = 100, .ahead = 1}, blocks);
  REQUIRE(!s.add({.id = 1, .prompt = prompt(4), .max_tokens = 12}));
  REQUIRE(!s.add({.id = 2, .prompt = prompt(3), .max_tokens = 12}));
  bool preempted = false;
  std::deque<schedule> flights;
  while (s.has_work()) {
    const auto before = s.contains(2) ? s.tokens(2).size() : 0;
    const auto& next = s.next();
    if (!next.preempted.empty()) {
      preempted = true;
      CHECK(s.tokens(2).size() == before + 1);  // a place for what is being sampled
      CHECK(s.known_tokens(2).size() == before);
      CHECK(s.blocks(2).empty());
    }
    if (!next.items.empty()) flights.push_back(next);
    if (flights.size() < 2 && !next.items.empty()) continue;
    s.done(answer(flights.front(), 9));
    flights.pop_front();
    if (preempted && s.contains(2)) CHECK(s.known_tokens(2).back() == 9);
  }
  CHECK(preempted);
}

TEST_CASE("apart: steps that are under way at once are of other requests, each with its share of those that decode") {
  counted_blocks blocks(40);
  scheduler s({.block_tokens = 4, .max_batched_tokens = 64, .ahead = 2, .apart = true}, blocks);
  for (request_id id = 1; id <= 7; ++id) REQUIRE(!s.add({.id = id, .prompt = prompt(3), .max_tokens = 30}));
  CHECK(ids(s.next()) == std::vector<request_id>{1, 2, 3, 4, 5, 6, 7});  // all prompts fit into one
  CHECK(s.next().empty());                                               // and all wait for their tokens
  CHECK(s.done(std::vector<token_id>(7, 9)).size() == 7);
  CHECK(ids(s.next()) == std::vector<request_id>{1, 2, 3});
  CHECK(ids(s.next()) == std::vector<request_id>{4, 5, 6});
  CHECK(ids(s.next()) == std::vector<request_id>{7});
  CHECK_THROWS_AS(s.next(), std::logic_error);
  for (auto n : {3, 3, 1}) {
    CHECK(s.done(std::vector<token_id>(static_cast<std::size_t>(n), 9)).size() == static_cast<std::size_t>(n));
    for (auto& item : s.next().items) {
      CHECK(!item.awaits);
      CHECK(s.known_tokens(item.id).size() == item.start + 1);
    }
  }
}

TEST_CASE("apart: a prompt's chunks follow each other without waiting, and decoding waits for its last one's token") {
  counted_blocks blocks(40);
  scheduler s({.block_tokens = 4, .max_batched_tokens = 4, .ahead = 3, .apart = true}, blocks);
  REQUIRE(!s.add({.id = 1, .prompt = prompt(10), .max_tokens = 3}));
  for (std::uint32_t start : {0u, 4u, 8u}) CHECK(s.next().items.at(0).start == start);
  CHECK(s.next().empty());
  CHECK(s.done({}).empty());
  CHECK(s.done({}).empty());
  CHECK(s.next().empty());
  CHECK(s.done({{9}}).size() == 1);
  CHECK(s.next().items.at(0).start == 10);
}

TEST_CASE("apart: steps that are taken back are planned again, and a request goes on from what is there of it") {
  counted_blocks blocks(20);
  scheduler s({.block_tokens = 4, .max_batched_tokens = 4, .ahead = 3, .apart = true}, blocks);
  REQUIRE(!s.add({.id = 1, .prompt = prompt(10), .max_tokens = 5}));
  s.next();
  s.next();
  const auto& third = s.next();  // two tokens, and it samples
  REQUIRE(third.items.at(0).sample);
  s.next();
  CHECK(s.tokens(1).size() == 11);
  s.done({});
  s.take_back();
  CHECK(!s.stepping());
  CHECK(s.tokens(1).size() == 10);
  CHECK(s.computed_tokens(1) == 4);
  CHECK_THROWS_AS(s.done({}), std::logic_error);

  // All workers had the second step, too.
  s.resume(1, 8);
  const auto& again = s.next();
  CHECK(again.items.at(0).start == 8);
  CHECK(again.items[0].count == 2);
  CHECK_THROWS_AS(s.resume(1, 4), std::logic_error);  // in a step
  CHECK_THROWS_AS(s.restart(1), std::logic_error);
  CHECK(s.done({{7}}).at(0).token == 7);
  CHECK_THROWS_AS(s.resume(1, 11), std::logic_error);  // its last token is computed, for its logits

  // Two tokens behind, with blocks for eleven: what there is no block for waits for one.
  REQUIRE(s.next().items.at(0).start == 10);
  CHECK(s.done({{8}}).at(0).token == 8);
  REQUIRE(s.next().items.at(0).start == 11);
  CHECK(s.done({{9}}).at(0).token == 9);
  s.resume(1, 11);
  const auto& behind = s.next();
  CHECK(behind.items.at(0).start == 11);
  CHECK(behind.items[0].count == 1);
  CHECK(!behind.items[0].sample);
  s.done({});
  const auto& last = s.next();
  CHECK(last.items.at(0).start == 12);
  CHECK(last.items[0].sample);
  s.done({{10}});

  s.restart(1);
  CHECK(blocks.available() == 20);
  CHECK(s.next().items.at(0).start == 0);
  s.take_back();
  CHECK(s.cancel(1));
  CHECK(blocks.available() == 20);
}

TEST_CASE("apart: what is taken back of a request that was cancelled is nobody's") {
  counted_blocks blocks(20);
  scheduler s({.block_tokens = 4, .max_batched_tokens = 16, .ahead = 1, .apart = true}, blocks);
  for (request_id id : {1, 2}) REQUIRE(!s.add({.id = id, .prompt = prompt(3), .max_tokens = 5}));
  s.next();
  s.next();
  CHECK(s.cancel(1));
  REQUIRE(!s.add({.id = 1, .prompt = prompt(6), .max_tokens = 5}));  // another, of its name
  s.take_back();
  CHECK(s.tokens(1).size() == 6);
  CHECK(s.tokens(2).size() == 3);
  CHECK(s.computed_tokens(2) == 0);
  CHECK(s.next().tokens == 9);
  CHECK(s.done({{4, 5}}).size() == 2);

  scheduler plain({.ahead = 1}, blocks);
  CHECK_THROWS_AS(plain.take_back(), std::logic_error);
}
