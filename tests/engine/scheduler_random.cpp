// Random arrivals, loads, prompts from outside and cancellations, judged by what every request would be alone.
#include <doctest/doctest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>

#include "cokv/runtime/error.hpp"
#include "engine/scheduler_fixture.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

struct tally {
  std::size_t finished = 0, cancelled = 0, preemptions = 0, steps = 0, generated = 0, arrived = 0;
};

// What a request says is a function of what was said before: so a wrong place of a token shows.
token_id says(std::span<const token_id> tokens) {
  std::uint32_t h = 17;
  for (auto t : tokens) h = h * 31 + static_cast<std::uint32_t>(t) + 7;
  return static_cast<token_id>(h % 1000);
}

// Random arrivals, loads, cancellations, quarantines and given-up loads, each step planned while the one before runs or
// not; every answer has to be what it would be alone.
void simulate_ahead(std::uint64_t seed, std::uint32_t ahead, tally& out, bool apart = false, bool few_a_step = false) {
  std::mt19937_64 random(seed);
  auto below = [&](std::uint64_t n) { return static_cast<std::uint32_t>(random() % n); };
  const std::uint32_t block_tokens = 1 + below(8), budget = 1 + below(40);
  counted_blocks blocks(8 + below(30));
  const auto capacity = blocks.capacity();
  blocks.quarantine_all = below(2);
  const std::uint32_t most_step_blocks = few_a_step ? 2 + below(capacity) : 0;
  std::map<request_id, std::vector<token_id>> sequences;  // what each has to be told, from its prompt on
  std::set<request_id> wholes;                            // prompts that come from outside to the end
  std::map<request_id, schedule_load> loading;
  std::vector<std::pair<request_id, std::uint32_t>> asking;  // preempted, and what was known of them
  {
    scheduler s({.block_tokens = block_tokens,
                 .max_batched_tokens = budget,
                 .max_running = 1 + below(12),
                 .max_sequence = 10 + below(200),
                 .priority_lead = below(10),
                 .ask_again = below(2) == 0,
                 .ahead = ahead,
                 .apart = apart,
                 .most_step_blocks = most_step_blocks},
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
        const auto outside = below(4) > 0 ? 0 : below(2) ? n : 1 + below(n);
        const auto loadable = outside == 0 && below(3) == 0 ? below(n + 5) : 0;
        const bool whole = outside == n;
        const auto priority = below(2) ? 0 : static_cast<std::int32_t>(below(17)) - most_priority;
        if (!s.add({.id = next_id,
                    .prompt = p,
                    .max_tokens = 1 + below(20),
                    .loadable_tokens = loadable,
                    .priority = priority,
                    .outside = outside})) {
          sequences[next_id] = p;
          if (whole) wholes.insert(next_id);
        }
        ++next_id;
      }
      if (flights.size() <= ahead && s.has_work()) {
        const auto& plan = s.next();
        out.preemptions += plan.preempted.size();
        std::uint32_t sum = 0;
        for (auto& load : plan.loads) loading[load.id] = load;
        for (auto id : plan.preempted)  // who gives way has blocks to give: no step has them
          for (auto& before : flights)
            for (auto& other : before.plan.items) CHECK((!apart || other.id != id));
        for (auto id : plan.preempted) asking.emplace_back(id, static_cast<std::uint32_t>(s.known_tokens(id).size()));
        if (!plan.items.empty()) {
          flying f{plan, {}};
          std::set<block_index> theirs;
          for (auto& item : plan.items) {
            sum += item.count;
            const auto all = s.tokens(item.id);
            CHECK(item.start + item.count <= all.size());
            CHECK(s.blocks(item.id).size() * block_tokens >= item.start + item.count);
            CHECK(item.awaits == (item.count == 1 && s.known_tokens(item.id).size() <= item.start));
            if (apart) {
              CHECK(!item.awaits);
              for (auto& before : flights)
                for (auto& other : before.plan.items) CHECK((other.id != item.id || !other.sample));
            }
            if (!item.awaits) CHECK(s.known_tokens(item.id).size() >= item.start + item.count);
            f.computed.emplace_back(all.begin(), all.begin() + item.start + item.count);
            const auto of_it = s.blocks(item.id).first((item.start + item.count + block_tokens - 1) / block_tokens);
            theirs.insert(of_it.begin(), of_it.end());
          }
          CHECK((!few_a_step || theirs.size() <= most_step_blocks));
          CHECK(sum <= budget);
          flights.push_back(std::move(f));
        }
      }
      if (flights.size() > ahead || (!flights.empty() && below(2))) end_oldest();
      if (!asking.empty() && below(3) == 0) {
        s.found(asking.back().first, below(asking.back().second + 5));
        asking.pop_back();
      }
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
        if (load.outside) {
          const bool whole = wholes.contains(load.id);
          const auto t =
              s.arrived(load.id, whole ? std::optional(says(sequences.at(load.id))) : std::optional<token_id>());
          REQUIRE(t.has_value() == whole);
          ++out.arrived;
          if (t) told(*t);
        } else if (way == 0)
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
                            .max_sequence = 10 + below(200),
                            .priority_lead = below(10)};
  tally out;
  struct life {
    std::uint32_t prompt, max_tokens;
    std::size_t seen = 0;
    std::int64_t turn = 0, arrival = 0;
    std::uint32_t outside = 0;
  };
  std::map<request_id, life> alive;
  std::map<request_id, schedule_load> loading;
  std::int64_t arrivals = 0;
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
        const auto priority = below(2) ? 0 : static_cast<std::int32_t>(below(17)) - most_priority;
        life l{1 + below(40), 1 + below(20), 0, arrivals - std::int64_t{options.priority_lead} * priority, arrivals};
        l.outside = below(4) > 0 ? 0 : below(2) ? l.prompt : 1 + below(l.prompt);
        auto loadable = l.outside == 0 && below(3) == 0 ? below(l.prompt + 5) : 0;
        std::vector<token_id> tokens(l.prompt, static_cast<token_id>(next_id));
        auto ec = s.add({.id = next_id,
                         .prompt = tokens,
                         .max_tokens = l.max_tokens,
                         .loadable_tokens = loadable,
                         .priority = priority,
                         .outside = l.outside});
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
        CHECK(s.blocks(load.id).size() * block_tokens >= load.start + load.count + load.compute);
        loading[load.id] = load;
        if (load.outside) {
          CHECK(load.start + load.count == alive[load.id].outside);
          CHECK(load.compute == 0);
          continue;
        }
        CHECK(load.count % block_tokens == 0);
        CHECK(load.start + load.count < s.tokens(load.id).size());
        CHECK(load.sample == (load.compute > 0 && load.start + load.count + load.compute == s.tokens(load.id).size()));
      }
      std::uint32_t along = 0;
      std::size_t arriving = 0, theirs = 0;
      for (auto& [id, load] : loading) {
        along += load.compute;
        arriving += load.outside;
        if (load.outside) theirs += s.blocks(id).size();
      }
      CHECK((arriving <= 1 || theirs <= capacity / 2));
      CHECK(along <= budget);
      // The turn of a preempted request comes after those of all that are served.
      const auto turn = [&](request_id id) { return std::pair(alive[id].turn, alive[id].arrival); };
      for (auto gone : step.preempted)
        for (auto& i : step.items) CHECK((gone == i.id || turn(i.id) < turn(gone)));
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
          if (it->second.outside) {
            const bool whole = alive.at(it->first).outside == alive.at(it->first).prompt;
            const auto t = s.arrived(it->first, whole ? std::optional<token_id>(9) : std::nullopt);
            REQUIRE(t.has_value() == whole);
            ++out.arrived;
            if (t) appended(*t);
          } else if (it->second.compute == 0 || below(3) == 0)
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
    all.arrived += one.arrived;
  }
  CHECK(all.finished > 5000);
  CHECK(all.cancelled > 500);
  CHECK(all.preemptions > 500);
  CHECK(all.arrived > 1000);
}

TEST_CASE("random arrivals, planned ahead or not: every answer is the one it would be alone") {
  struct way {
    std::uint32_t ahead;
    bool apart, few_a_step;
  };
  for (auto [ahead, apart, few_a_step] : {way{0, false, false},
                                          {1, false, false},
                                          {1, true, false},
                                          {3, true, false},
                                          {0, true, true},
                                          {1, true, true},
                                          {3, true, true}}) {
    CAPTURE(ahead);
    CAPTURE(few_a_step);
    tally all;
    for (std::uint64_t seed = 0; seed < 300; ++seed) {
      CAPTURE(seed);
      simulate_ahead(seed, ahead, all, apart, few_a_step);
    }
    CHECK(all.finished > (few_a_step ? 2000 : 2500));  // more are too long for a step
    CHECK(all.cancelled > 300);
    CHECK(all.preemptions > 200);
    CHECK(all.arrived > 500);
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

// Six answers of three blocks each, and steps of seven blocks: two go together, so that everybody has its turn in three steps, though
// those that came first could fill all of them.
TEST_CASE("steps of few blocks: answers take turns") {
  counted_blocks blocks(40);
  scheduler s({.block_tokens = 4, .max_batched_tokens = 64, .ahead = 1, .apart = true, .most_step_blocks = 7}, blocks);
  for (request_id id = 1; id <= 6; ++id) CHECK(!s.add({.id = id, .prompt = prompt(9), .max_tokens = 4}));
  std::map<request_id, std::uint64_t> last;
  for (std::uint64_t step = 1; s.has_work() && step < 100; ++step) {
    const auto& plan = s.next();
    CHECK(std::ranges::count(plan.items, 1u, &schedule_item::count) <= 2);
    for (auto& i : plan.items) {
      if (s.tokens(i.id).size() > 9 && last.contains(i.id)) CHECK(step - last[i.id] <= 4);
      last[i.id] = step;
    }
    if (!plan.items.empty()) s.done(answer(plan));
  }
  CHECK(!s.has_work());
}

TEST_CASE("steps of few blocks: a prompt that does not fit behind answers has the next one") {
  counted_blocks blocks(40);
  scheduler s({.block_tokens = 4, .max_batched_tokens = 64, .ahead = 1, .apart = true, .most_step_blocks = 10}, blocks);
  for (request_id id = 1; id <= 4; ++id) CHECK(!s.add({.id = id, .prompt = prompt(15), .max_tokens = 40}));
  for (int i = 0; i < 6; ++i)
    if (const auto& plan = s.next(); !plan.items.empty()) s.done(answer(plan));
  CHECK(!s.add({.id = 9, .prompt = prompt(38), .max_tokens = 2}));  // ten blocks
  int steps = 0;
  for (; s.contains(9) && steps < 10; ++steps)
    if (const auto& plan = s.next(); !plan.items.empty()) s.done(answer(plan));
  CHECK(steps <= 6);
}

TEST_CASE("steps of few blocks: prompts that take whole steps leave every other one to answers") {
  counted_blocks blocks(400);
  scheduler s({.block_tokens = 4, .max_batched_tokens = 400, .ahead = 1, .apart = true, .most_step_blocks = 10},
              blocks);
  CHECK(!s.add({.id = 1, .prompt = prompt(5), .max_tokens = 20}));
  if (const auto& plan = s.next(); !plan.items.empty()) s.done(answer(plan));
  int steps = 0;
  for (request_id id = 2; s.contains(1) && steps < 200; ++steps) {
    while (s.waiting() < 3) CHECK(!s.add({.id = id++, .prompt = prompt(37), .max_tokens = 1}));
    if (const auto& plan = s.next(); !plan.items.empty()) s.done(answer(plan));
  }
  CHECK(steps <= 2 * 20 + 4);
}

TEST_CASE("steps of few blocks: nobody is let in behind a prompt that did not fit") {
  counted_blocks blocks(400);
  scheduler s({.block_tokens = 4, .max_batched_tokens = 400, .ahead = 1, .apart = true, .most_step_blocks = 10},
              blocks);
  for (request_id id = 1; id <= 30; ++id) CHECK(!s.add({.id = id, .prompt = prompt(39), .max_tokens = 1}));
  const auto& plan = s.next();
  CHECK(plan.items.size() == 1);
  CHECK(s.running() == 2);
}
