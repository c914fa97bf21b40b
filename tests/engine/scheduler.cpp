#include "cokv/engine/scheduler.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>

#include "cokv/runtime/error.hpp"

using namespace cokv;

namespace {

// A pool that knows who holds what: blocks can be shared, given back once a holder, and put in quarantine.
class counted_blocks final : public block_source {
 public:
  explicit counted_blocks(std::size_t n) : holders_(n, 0) {
    for (std::size_t i = n; i-- > 0;) free_.push_back(static_cast<block_index>(i));
  }

  std::size_t capacity() const override { return holders_.size(); }
  std::size_t available() const override { return free_.size(); }
  bool allocate(std::size_t n, std::vector<block_index>& out) override {
    if (n > free_.size()) return false;
    for (; n > 0; --n) {
      out.push_back(free_.back());
      REQUIRE(holders_[free_.back()]++ == 0);
      free_.pop_back();
    }
    return true;
  }
  void release(std::span<const block_index> blocks) override {
    for (auto b : blocks) {
      REQUIRE(holders_.at(b) > 0);
      if (--holders_[b] == 0) (quarantine_all ? quarantine_ : free_).push_back(b);
    }
  }
  std::vector<block_index> match(request_id, std::span<const token_id> tokens) override {
    asked = {tokens.begin(), tokens.end()};
    std::vector<block_index> out;
    for (auto b : cached)
      if (out.size() < tokens.size() / 16) {
        if (holders_[b]++ == 0) std::erase(free_, b);
        out.push_back(b);
      }
    return out;
  }
  void end_quarantine() {
    free_.insert(free_.end(), quarantine_.begin(), quarantine_.end());
    quarantine_.clear();
  }

  std::vector<block_index> cached;  // leading blocks that any prompt hits
  std::vector<token_id> asked;
  bool quarantine_all = false;

 private:
  std::vector<int> holders_;
  std::vector<block_index> free_, quarantine_;
};

std::vector<token_id> prompt(std::size_t n) { return std::vector<token_id>(n, 5); }

// One token for each item that samples.
std::vector<token_id> answer(const schedule& s, token_id token = 9) {
  std::vector<token_id> out;
  for (auto& i : s.items)
    if (i.sample) out.push_back(token);
  return out;
}

std::vector<request_id> ids(const schedule& s) {
  std::vector<request_id> out;
  for (auto& i : s.items) out.push_back(i.id);
  return out;
}

}  // namespace

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

TEST_CASE("calling out of turn is an error of the program") {
  counted_blocks blocks(4);
  scheduler s({}, blocks);
  CHECK_THROWS_AS(s.done({}), std::logic_error);
  REQUIRE(!s.add({.id = 1, .prompt = prompt(3)}));
  s.next();
  CHECK_THROWS_AS(s.next(), std::logic_error);
  CHECK_THROWS_AS(s.done({}), std::logic_error);
}

namespace {

struct tally {
  std::size_t finished = 0, cancelled = 0, preemptions = 0, steps = 0, generated = 0;
};

// What a request says is a function of what was said before: so a wrong place of a token shows.
token_id says(std::span<const token_id> tokens) {
  std::uint32_t h = 17;
  for (auto t : tokens) h = h * 31 + static_cast<std::uint32_t>(t) + 7;
  return static_cast<token_id>(h % 1000);
}

// Random arrivals, loads, cancellations, quarantines and given-up loads, each step planned while the one before runs or
// not; every answer has to be what it would be alone.
void simulate_ahead(std::uint64_t seed, std::uint32_t ahead, tally& out) {
  std::mt19937_64 random(seed);
  auto below = [&](std::uint64_t n) { return static_cast<std::uint32_t>(random() % n); };
  const std::uint32_t block_tokens = 1 + below(8), budget = 1 + below(40);
  counted_blocks blocks(8 + below(30));
  const auto capacity = blocks.capacity();
  blocks.quarantine_all = below(2);
  std::map<request_id, std::vector<token_id>> sequences;  // what each has to be told, from its prompt on
  std::map<request_id, schedule_load> loading;
  {
    scheduler s({.block_tokens = block_tokens,
                 .max_batched_tokens = budget,
                 .max_running = 1 + below(12),
                 .max_sequence = 10 + below(200),
                 .ahead = ahead},
                blocks);
    auto told = [&](const sampled_token& t) {
      auto& known = sequences.at(t.id);
      CHECK(t.token == says(known));
      known.push_back(t.token);
      ++out.generated;
      if (t.last || below(40) == 0) {  // a stop string
        CHECK(t.last == !s.contains(t.id));
        s.cancel(t.id);
        sequences.erase(t.id);
        ++out.finished;
      }
    };
    struct flying {
      schedule plan;
      std::vector<std::vector<token_id>>
          computed;  // by item: the sequence that its sample is of, but for what it awaits
    };
    std::deque<flying> flights;
    auto end_oldest = [&] {
      std::vector<token_id> tokens;
      auto f = std::move(flights.front());
      flights.pop_front();
      for (std::size_t i = 0; i < f.plan.items.size(); ++i) {
        auto& item = f.plan.items[i];
        if (!item.sample) continue;
        tokens.push_back(says(f.computed[i]));
        // What the next step computes on it, the device fills in.
        for (auto& next : flights)
          for (std::size_t k = 0; k < next.plan.items.size(); ++k)
            if (next.plan.items[k].id == item.id && next.plan.items[k].awaits)
              next.computed[k].at(next.plan.items[k].start) = tokens.back();
      }
      for (auto& t : s.done(tokens)) told(t);
    };
    request_id next_id = 1;
    for (std::size_t to_come = 25; to_come > 0 || s.has_work();) {
      REQUIRE(++out.steps < 4'000'000);
      while (to_come > 0 && below(3) == 0) {
        --to_come;
        const auto n = 1 + below(40);
        std::vector<token_id> p;
        for (std::uint32_t i = 0; i < n; ++i) p.push_back(static_cast<token_id>(below(1000)));
        const auto loadable = below(3) == 0 ? below(n + 5) : 0;
        if (!s.add({.id = next_id, .prompt = p, .max_tokens = 1 + below(20), .loadable_tokens = loadable}))
          sequences[next_id] = p;
        ++next_id;
      }
      if (flights.size() <= ahead && s.has_work()) {
        const auto& plan = s.next();
        out.preemptions += plan.preempted.size();
        std::uint32_t sum = 0;
        for (auto& load : plan.loads) loading[load.id] = load;
        if (!plan.items.empty()) {
          flying f{plan, {}};
          for (auto& item : plan.items) {
            sum += item.count;
            const auto all = s.tokens(item.id);
            CHECK(item.start + item.count <= all.size());
            CHECK(s.blocks(item.id).size() * block_tokens >= item.start + item.count);
            CHECK(item.awaits == (item.count == 1 && s.known_tokens(item.id).size() <= item.start));
            if (!item.awaits) CHECK(s.known_tokens(item.id).size() >= item.start + item.count);
            f.computed.emplace_back(all.begin(), all.begin() + item.start + item.count);
          }
          CHECK(sum <= budget);
          flights.push_back(std::move(f));
        }
      }
      if (flights.size() > ahead || (!flights.empty() && below(2))) end_oldest();
      if (below(12) == 0 && !sequences.empty()) {
        auto it = std::next(sequences.begin(), below(sequences.size()));
        CHECK(s.cancel(it->first));
        loading.erase(it->first);
        sequences.erase(it);
        ++out.cancelled;
      }
      for (auto it = loading.begin(); it != loading.end();) {
        const auto load = it->second;
        if (below(3) > 0 || !s.contains(load.id)) {
          it = s.contains(load.id) ? std::next(it) : loading.erase(it);
          continue;
        }
        it = loading.erase(it);
        const auto way = below(3);
        if (way == 0)
          s.load_given_up(load.id, below(60));
        else if (way == 1 || load.compute == 0)
          s.loaded(load.id, below(60));
        else if (auto t = s.loaded_and_computed(load.id, says(sequences.at(load.id)), below(60)))
          told(*t);
      }
      if (below(2)) blocks.end_quarantine();
      std::set<block_index> held;
      std::size_t count = 0;
      for (auto& [id, l] : sequences)
        for (auto b : s.blocks(id)) {
          held.insert(b);
          ++count;
        }
      CHECK(held.size() == count);
      CHECK(held.size() + blocks.available() <= capacity);
    }
    while (!flights.empty()) end_oldest();
    CHECK(sequences.empty());
  }
  blocks.end_quarantine();
  CHECK(blocks.available() == capacity);
}

// Random arrivals, loads, cancellations and quarantines; checks at each step what the scheduler promises.
tally simulate(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  auto below = [&](std::uint64_t n) { return static_cast<std::uint32_t>(random() % n); };
  std::uint32_t block_tokens = 1 + below(8), budget = 1 + below(40);
  counted_blocks blocks(6 + below(30));
  auto capacity = blocks.capacity();
  blocks.quarantine_all = below(2);
  scheduler_options options{.block_tokens = block_tokens,
                            .max_batched_tokens = budget,
                            .max_running = 1 + below(12),
                            .max_sequence = 10 + below(200)};
  tally out;
  struct life {
    std::uint32_t prompt, max_tokens;
    std::size_t seen = 0;
    std::uint64_t arrival = 0;
  };
  std::map<request_id, life> alive;
  std::map<request_id, std::uint32_t> loading;  // and what is computed along
  std::uint64_t arrivals = 0;
  {
    scheduler s(options, blocks);
    request_id next_id = 1;
    auto appended = [&](const sampled_token& t) {
      auto& l = alive.at(t.id);
      ++out.generated;
      ++l.seen;
      bool full = l.seen == l.max_tokens || l.prompt + l.seen == options.max_sequence ||
                  l.prompt + l.seen == capacity * block_tokens;
      CHECK(t.last == full);
      CHECK(t.last == !s.contains(t.id));
      if (t.last) {
        alive.erase(t.id);
        ++out.finished;
      }
    };
    for (std::size_t to_come = 25; to_come > 0 || s.has_work();) {
      REQUIRE(++out.steps < 20'000);  // everyone finishes
      while (to_come > 0 && below(3) == 0) {
        --to_come;
        life l{1 + below(40), 1 + below(20), 0, arrivals};
        auto loadable = below(3) == 0 ? below(l.prompt + 5) : 0;
        std::vector<token_id> tokens(l.prompt, static_cast<token_id>(next_id));
        auto ec = s.add({.id = next_id, .prompt = tokens, .max_tokens = l.max_tokens, .loadable_tokens = loadable});
        CHECK((!ec || ec == errc::too_large));
        if (!ec) {
          alive[next_id] = l;
          ++arrivals;
        }
        ++next_id;
      }
      auto step = s.next();
      out.preemptions += step.preempted.size();
      std::uint32_t sum = 0;
      std::set<request_id> once;
      bool prefill_seen = false;
      for (auto& i : step.items) {
        sum += i.count;
        CHECK(once.insert(i.id).second);
        CHECK(i.count > 0);
        CHECK(i.start == s.computed_tokens(i.id));
        CHECK(i.sample == (i.start + i.count == s.tokens(i.id).size()));
        CHECK(s.blocks(i.id).size() * block_tokens >= i.start + i.count);
        // Decoding requests come first, and while there are blocks none is left out.
        if (s.tokens(i.id).size() - i.start > 1)
          prefill_seen = true;
        else if (i.start > 0 && s.tokens(i.id).size() > alive[i.id].prompt)
          CHECK(!prefill_seen);
      }
      CHECK(sum == step.tokens);
      CHECK(sum <= budget);
      CHECK(s.running() <= std::min(options.max_running, budget));
      if (blocks.available() > 0 && step.preempted.empty())
        for (auto& [id, l] : alive)
          if (s.tokens(id).size() > l.prompt && s.computed_tokens(id) + 1 == s.tokens(id).size() &&
              s.computed_tokens(id) > 0 && !loading.contains(id))
            CHECK((once.contains(id) || s.blocks(id).empty()));
      for (auto& load : step.loads) {
        CHECK(load.start % block_tokens == 0);
        CHECK(load.count % block_tokens == 0);
        CHECK(load.start + load.count < s.tokens(load.id).size());
        CHECK(s.blocks(load.id).size() * block_tokens >= load.start + load.count + load.compute);
        CHECK(load.sample == (load.compute > 0 && load.start + load.count + load.compute == s.tokens(load.id).size()));
        loading[load.id] = load.compute;
      }
      std::uint32_t along = 0;
      for (auto& [id, n] : loading) along += n;
      CHECK(along <= budget);
      // A preempted request is newer than all that are served.
      for (auto gone : step.preempted)
        for (auto& i : step.items) CHECK(alive[i.id].arrival < alive[gone].arrival);
      if (below(12) == 0 && !alive.empty()) {
        auto it = std::next(alive.begin(), below(alive.size()));
        CHECK(s.cancel(it->first));
        loading.erase(it->first);
        alive.erase(it);
        ++out.cancelled;
      }
      if (!step.items.empty()) {
        for (auto& t : s.done(answer(step))) appended(t);
      }
      for (auto it = loading.begin(); it != loading.end();) {
        if (below(3) == 0) {
          if (it->second == 0 || below(3) == 0)
            s.loaded(it->first, below(60));
          else if (auto t = s.loaded_and_computed(it->first, 9, 1u << 20))
            appended(*t);
          it = loading.erase(it);
        } else {
          ++it;
        }
      }
      if (below(2)) blocks.end_quarantine();
      // Blocks are conserved and never shared: what is not held is free or in quarantine.
      std::set<block_index> held;
      std::size_t count = 0;
      for (auto& [id, l] : alive)
        for (auto b : s.blocks(id)) {
          held.insert(b);
          ++count;
        }
      CHECK(held.size() == count);
      CHECK(held.size() + blocks.available() <= capacity);
    }
    CHECK(alive.empty());
    // A last request that holds blocks when the scheduler goes.
    if (!s.add({.id = 1'000'000, .prompt = prompt(2), .max_tokens = 2})) s.next();
  }
  blocks.end_quarantine();
  CHECK(blocks.available() == capacity);
  return out;
}

}  // namespace

TEST_CASE("random arrivals, loads and cancellations: blocks conserved, budget kept, everyone finishes") {
  tally all;
  for (std::uint64_t seed = 0; seed < 600; ++seed) {
    CAPTURE(seed);
    auto one = simulate(seed);
    all.finished += one.finished;
    all.cancelled += one.cancelled;
    all.preemptions += one.preemptions;
    all.generated += one.generated;
  }
  CHECK(all.finished > 5000);
  CHECK(all.cancelled > 500);
  CHECK(all.preemptions > 500);
}

TEST_CASE("random arrivals, planned ahead or not: every answer is the one it would be alone") {
  for (std::uint32_t ahead : {0u, 1u}) {
    tally all;
    for (std::uint64_t seed = 0; seed < 300; ++seed) {
      CAPTURE(seed);
      simulate_ahead(seed, ahead, all);
    }
    CHECK(all.finished > 2500);
    CHECK(all.cancelled > 300);
    CHECK(all.preemptions > 200);
  }
}

TEST_CASE("the same arrivals give the same schedule") {
  auto trace = [] {
    counted_blocks blocks(12);
    scheduler s({.block_tokens = 4, .max_batched_tokens = 16}, blocks);
    for (request_id id = 10; id > 0; --id) CHECK(!s.add({.id = id, .prompt = prompt(5 + id % 7), .max_tokens = 9}));
    std::vector<std::array<std::uint64_t, 4>> out;
    while (s.has_work()) {
      auto step = s.next();
      for (auto& i : step.items) out.push_back({i.id, i.start, i.count, i.sample});
      s.done(answer(step));
    }
    return out;
  };
  CHECK(trace() == trace());
}
