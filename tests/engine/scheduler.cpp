#include "cokv/engine/scheduler.hpp"

#include <doctest/doctest.h>

#include "cokv/runtime/error.hpp"
#include "engine/scheduler_fixture.hpp"

using namespace cokv;
using namespace cokv::test;

TEST_CASE("a prompt is computed in chunks of the budget, then decodes one token a step") {
  counted_blocks blocks(10);
  scheduler s({.block_tokens = 16, .max_batched_tokens = 32}, blocks);
  REQUIRE(!s.add({.id = 1, .prompt = prompt(70), .max_tokens = 3}));
  std::vector<std::pair<std::uint32_t, std::uint32_t>> chunks;
  std::vector<sampled_token> out;
  while (s.has_work()) {
    auto& step = s.next();
    REQUIRE(step.items.size() == 1);
    auto& item = step.items[0];
    chunks.emplace_back(item.start, item.count);
    CHECK(item.sample == (item.start + item.count >= 70));
    CHECK(s.blocks(1).size() == 5);
    for (auto& t : s.done(answer(step))) out.push_back(t);
  }
  CHECK(chunks == std::vector<std::pair<std::uint32_t, std::uint32_t>>{{0, 32}, {32, 32}, {64, 6}, {70, 1}, {71, 1}});
  REQUIRE(out.size() == 3);
  CHECK(!out[1].last);
  CHECK(out[2].last);
  CHECK(blocks.available() == 10);
}

TEST_CASE("requests that decode come first and prefill takes what is left of the budget") {
  counted_blocks blocks(100);
  scheduler s({.max_batched_tokens = 20}, blocks);
  REQUIRE(!s.add({.id = 1, .prompt = prompt(4), .max_tokens = 10}));
  s.done(answer(s.next()));
  REQUIRE(!s.add({.id = 2, .prompt = prompt(50), .max_tokens = 10}));
  auto step = s.next();
  CHECK(ids(step) == std::vector<request_id>{1, 2});
  CHECK(step.items[1].count == 19);
  CHECK(step.tokens == 20);
  s.done(answer(step));
  CHECK(s.tokens(1).size() == 6);
  CHECK(s.computed_tokens(2) == 19);
}

TEST_CASE("requests are admitted in order of arrival, and a small one doesn't pass a large one") {
  counted_blocks blocks(6);
  scheduler s({.max_batched_tokens = 1000}, blocks);
  REQUIRE(!s.add({.id = 1, .prompt = prompt(60), .max_tokens = 2}));  // 4 blocks
  REQUIRE(!s.add({.id = 2, .prompt = prompt(50), .max_tokens = 2}));  // 4 blocks: must wait
  REQUIRE(!s.add({.id = 3, .prompt = prompt(5), .max_tokens = 2}));
  auto step = s.next();
  CHECK(ids(step) == std::vector<request_id>{1});
  s.done(answer(step));
  step = s.next();
  CHECK(ids(step) == std::vector<request_id>{1});
  CHECK(s.waiting() == 2);
  s.done(answer(step));
  CHECK(!s.contains(1));
  step = s.next();
  CHECK(ids(step) == std::vector<request_id>{2, 3});
  s.done(answer(step));
}

TEST_CASE("a higher priority is admitted sooner, as if it had come so many requests before") {
  counted_blocks blocks(100);
  scheduler s({.max_batched_tokens = 1, .max_running = 1, .priority_lead = 2}, blocks);
  for (request_id id = 1; id <= 4; ++id) REQUIRE(!s.add({.id = id, .prompt = prompt(1), .max_tokens = 1}));
  REQUIRE(!s.add({.id = 5, .prompt = prompt(1), .max_tokens = 1, .priority = 1}));   // passes two
  REQUIRE(!s.add({.id = 6, .prompt = prompt(1), .max_tokens = 1, .priority = -1}));  // is passed by two
  REQUIRE(!s.add({.id = 7, .prompt = prompt(1), .max_tokens = 1}));
  REQUIRE(!s.add({.id = 8, .prompt = prompt(1), .max_tokens = 1}));
  std::vector<request_id> served;
  while (s.has_work()) {
    auto step = s.next();
    for (auto id : ids(step)) served.push_back(id);
    s.done(answer(step));
  }
  CHECK(served == std::vector<request_id>{1, 2, 3, 5, 4, 7, 6, 8});
}

TEST_CASE("a higher priority takes blocks and places from those of lower ones, and they are computed again") {
  for (bool by_blocks : {true, false}) {
    for (bool quarantined : {false, true}) {
      INFO("for want of ", by_blocks ? "blocks" : "places", quarantined ? ", which come late" : "");
      counted_blocks blocks(by_blocks ? 9 : 100);
      blocks.quarantine_all = quarantined;
      scheduler s({.max_batched_tokens = 1000, .max_running = by_blocks ? 256u : 2u}, blocks);
      REQUIRE(!s.add({.id = 1, .prompt = prompt(50), .max_tokens = 40}));
      REQUIRE(!s.add({.id = 2, .prompt = prompt(20), .max_tokens = 40}));
      s.done(answer(s.next()));
      CHECK(s.running() == 2);
      REQUIRE(!s.add({.id = 3, .prompt = prompt(60), .max_tokens = 2}));  // of the same priority: waits
      for (int i = 0; i < 3; ++i) {
        auto step = s.next();
        CHECK(step.preempted.empty());
        s.done(answer(step));
      }
      REQUIRE(!s.add({.id = 4, .prompt = prompt(30), .max_tokens = 2, .priority = 1}));
      std::vector<request_id> gone;
      for (int i = 0; i < 4 && s.computed_tokens(4) == 0; ++i) {
        auto step = s.next();
        for (auto id : step.preempted) gone.push_back(id);
        if (!step.items.empty()) s.done(answer(step));
        blocks.end_quarantine();
      }
      CHECK(gone == std::vector<request_id>{2});  // the later of the two, and no more than that
      CHECK(s.computed_tokens(4) > 0);
      std::size_t steps = 0;
      for (; s.has_work() && steps < 300; ++steps) {
        auto step = s.next();
        CHECK(std::ranges::count(step.preempted, request_id{4}) == 0);
        if (!step.items.empty()) s.done(answer(step));
        blocks.end_quarantine();
      }
      CHECK(!s.has_work());
      CHECK(blocks.available() == blocks.capacity());
    }
  }
}

TEST_CASE("a higher priority does not wait for a prompt that takes all of the budget, and one of the same does") {
  counted_blocks blocks(100);
  scheduler s({.block_tokens = 16, .max_batched_tokens = 32}, blocks);
  REQUIRE(!s.add({.id = 1, .prompt = prompt(200), .max_tokens = 1}));
  s.done(answer(s.next()));
  REQUIRE(!s.add({.id = 2, .prompt = prompt(10), .max_tokens = 1}));
  auto step = s.next();
  CHECK(ids(step) == std::vector<request_id>{1});
  s.done(answer(step));
  REQUIRE(!s.add({.id = 3, .prompt = prompt(10), .max_tokens = 1, .priority = 1}));
  REQUIRE(!s.add({.id = 4, .prompt = prompt(50), .max_tokens = 1, .priority = 1}));
  step = s.next();
  CHECK(ids(step) == std::vector<request_id>{3, 4});  // whole, and what is left of the budget
  CHECK(step.items[0].count == 10);
  CHECK(step.items[1].count == 22);
  s.done(answer(step));
  step = s.next();
  CHECK(ids(step) == std::vector<request_id>{4, 1});
  CHECK(step.items[0].count == 28);
  CHECK(step.items[1].count == 4);
  s.done(answer(step));
  CHECK(s.computed_tokens(1) == 68);
}

TEST_CASE("however many of a higher priority come, a lower one gets its turn") {
  counted_blocks blocks(100);
  scheduler s({.max_batched_tokens = 4, .max_running = 2, .priority_lead = 3}, blocks);
  request_id next = 1;
  for (; next <= 4; ++next) REQUIRE(!s.add({.id = next, .prompt = prompt(2), .max_tokens = 2, .priority = 8}));
  const auto low = next++;
  REQUIRE(!s.add({.id = low, .prompt = prompt(2), .max_tokens = 2, .priority = -8}));
  std::size_t before = 0;
  for (; s.contains(low); ++before) {
    REQUIRE(before < 200);
    REQUIRE(!s.add({.id = next++, .prompt = prompt(2), .max_tokens = 2, .priority = 8}));
    for (int i = 0; i < 2; ++i) s.done(answer(s.next()));
  }
  CHECK(before > 3);
  CHECK(next - low <= 16 * 3 + 8);  // what it may be passed by, and what ran
}

TEST_CASE("when blocks run out the newest request gives way and is computed again with what it had generated") {
  counted_blocks blocks(4);
  scheduler s({.block_tokens = 4, .max_batched_tokens = 100}, blocks);
  REQUIRE(!s.add({.id = 1, .prompt = prompt(4), .max_tokens = 12}));
  REQUIRE(!s.add({.id = 2, .prompt = prompt(3), .max_tokens = 12}));
  auto step = s.next();
  CHECK(ids(step) == std::vector<request_id>{1, 2});
  s.done(answer(step));
  std::size_t preempted_at = 0;
  for (;;) {
    auto now = s.next();
    if (!now.preempted.empty()) {
      CHECK(now.preempted == std::vector<request_id>{2});
      CHECK(ids(now) == std::vector<request_id>{1});
      CHECK(s.blocks(2).empty());
      preempted_at = s.tokens(2).size();
      s.done(answer(now));
      break;
    }
    s.done(answer(now));
  }
  CHECK(preempted_at > 3);
  bool again = false;
  while (s.has_work()) {
    auto now = s.next();
    for (auto& i : now.items)
      if (i.id == 2 && i.start == 0) {
        again = true;
        CHECK(!s.contains(1));
        CHECK(i.count == preempted_at);
      }
    s.done(answer(now));
  }
  CHECK(again);
  CHECK(blocks.available() == 4);
}

TEST_CASE("what a tier holds of a preempted request is asked for, and loaded before it goes on") {
  for (std::uint32_t held : {0u, 48u, 1000u}) {
    INFO("held ", held);
    counted_blocks blocks(8);
    scheduler s({.max_batched_tokens = 1000, .ask_again = true}, blocks);
    REQUIRE(!s.add({.id = 1, .prompt = prompt(60), .max_tokens = 30}));
    REQUIRE(!s.add({.id = 2, .prompt = prompt(40), .max_tokens = 30}));
    schedule step;
    for (int i = 0; i < 60 && step.preempted.empty(); ++i) {
      step = s.next();
      s.done(answer(step));
    }
    REQUIRE(step.preempted == std::vector<request_id>{2});
    const auto known = static_cast<std::uint32_t>(s.known_tokens(2).size());
    REQUIRE(!s.add({.id = 3, .prompt = prompt(2), .max_tokens = 2}));
    s.cancel(1);
    CHECK(s.next().empty());  // nobody passes it
    s.found(2, held);
    s.found(2, 16);  // too late
    step = s.next();
    const auto loaded = std::min(held, known - 1) / 16 * 16;
    if (loaded == 0) {
      CHECK(step.loads.empty());
      CHECK(step.items[0].count == known);
      s.done(answer(step));
      continue;
    }
    REQUIRE(step.loads.size() == 1);
    CHECK(step.loads[0].start == 0);
    CHECK(step.loads[0].count == loaded);
    CHECK(step.loads[0].compute == known - loaded);
    CHECK(ids(step) == std::vector<request_id>{3});
    s.done(answer(step));
    const auto sampled = s.loaded_and_computed(2, 7, loaded);
    REQUIRE(sampled.has_value());
    CHECK(sampled->token == 7);
    CHECK(s.tokens(2).size() == known + 1);
  }
}

TEST_CASE("blocks that are already computed count as computed, and the last prompt token never does") {
  counted_blocks blocks(10);
  std::vector<block_index> pinned;
  blocks.allocate(3, pinned);  // the cache's own hold
  blocks.cached = pinned;
  scheduler s({.block_tokens = 16, .max_batched_tokens = 100}, blocks);
  REQUIRE(!s.add({.id = 1, .prompt = prompt(48), .max_tokens = 1}));
  auto step = s.next();
  REQUIRE(step.items.size() == 1);
  CHECK(blocks.asked.size() == 32);
  CHECK(step.items[0].start == 32);
  CHECK(step.items[0].count == 16);
  CHECK(s.cached_tokens(1) == 32);
  CHECK(s.blocks(1)[0] == pinned[0]);
  s.done(answer(step));
  CHECK(blocks.available() == 7);
  blocks.release(pinned);
}

TEST_CASE("cancelling frees the blocks at once: waiting, loading, running, and while its step is in flight") {
  counted_blocks blocks(20);
  scheduler s({.max_batched_tokens = 64}, blocks);
  REQUIRE(!s.add({.id = 1, .prompt = prompt(40), .max_tokens = 5}));
  REQUIRE(!s.add({.id = 2, .prompt = prompt(40), .max_tokens = 5, .loadable_tokens = 32}));
  auto step = s.next();
  REQUIRE(!s.add({.id = 3, .prompt = prompt(40), .max_tokens = 5}));
  CHECK(s.cancel(3));
  CHECK(s.cancel(2));
  s.loaded(2, 32);  // the load that was cancelled comes back: nobody waits for it
  CHECK(s.cancel(1));
  CHECK(!s.cancel(1));
  CHECK(blocks.available() == 20);
  // The id may be used again before the step is over; the step's token isn't the newcomer's.
  REQUIRE(!s.add({.id = 1, .prompt = prompt(3), .max_tokens = 5}));
  CHECK(s.done(answer(step)).empty());
  CHECK(s.tokens(1).size() == 3);
  CHECK(ids(s.next()) == std::vector<request_id>{1});
}

TEST_CASE("quarantined blocks are waited for, not counted on") {
  counted_blocks blocks(4);
  blocks.quarantine_all = true;
  scheduler s({.max_batched_tokens = 64}, blocks);
  REQUIRE(!s.add({.id = 1, .prompt = prompt(60), .max_tokens = 5}));
  s.next();
  s.cancel(1);
  s.done({{9}});
  REQUIRE(!s.add({.id = 2, .prompt = prompt(60), .max_tokens = 1}));
  CHECK(s.next().empty());
  blocks.end_quarantine();
  CHECK(ids(s.next()) == std::vector<request_id>{2});
}

TEST_CASE("a sequence is cut where the model or the pool is full") {
  counted_blocks blocks(2);
  scheduler s({.block_tokens = 4, .max_batched_tokens = 64, .max_sequence = 7}, blocks);
  REQUIRE(!s.add({.id = 1, .prompt = prompt(5), .max_tokens = 100}));
  std::vector<sampled_token> out;
  while (s.has_work())
    for (auto& t : s.done(answer(s.next()))) out.push_back(t);
  REQUIRE(out.size() == 2);
  CHECK(out[1].last);
}

TEST_CASE("requests that can't be served are refused when they come") {
  counted_blocks blocks(4);
  scheduler s({.block_tokens = 4, .max_waiting = 2, .max_sequence = 100}, blocks);
  CHECK(s.add({.id = 1, .prompt = {}}) == errc::invalid_argument);
  CHECK(s.add({.id = 1, .prompt = prompt(1), .max_tokens = 0}) == errc::invalid_argument);
  CHECK(s.add({.id = 1, .prompt = prompt(16)}) == errc::too_large);
  CHECK(!s.add({.id = 1, .prompt = prompt(15)}));
  CHECK(s.add({.id = 1, .prompt = prompt(1)}) == errc::already_exists);
  CHECK(!s.add({.id = 2, .prompt = prompt(1)}));
  CHECK(s.add({.id = 3, .prompt = prompt(1)}) == errc::queue_full);
  CHECK_THROWS_AS(scheduler({.block_tokens = 0}, blocks), config_error);
}

TEST_CASE("a priority beyond the most is refused") {
  counted_blocks blocks(10);
  scheduler s({}, blocks);
  CHECK(s.add({.id = 1, .prompt = prompt(2), .priority = 9}) == errc::invalid_argument);
  CHECK(s.add({.id = 1, .prompt = prompt(2), .priority = -9}) == errc::invalid_argument);
  CHECK(!s.add({.id = 1, .prompt = prompt(2), .priority = -8}));
}

TEST_CASE("calling out of turn is an error of the program") {
  counted_blocks blocks(4);
  scheduler s({}, blocks);
  CHECK_THROWS_AS(s.done({}), std::logic_error);
  REQUIRE(!s.add({.id = 1, .prompt = prompt(3)}));
  s.next();
  CHECK_THROWS_AS(s.next(), std::logic_error);
  CHECK_THROWS_AS(s.done({}), std::logic_error);
}
