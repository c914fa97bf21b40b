#include "cluster/placement.hpp"

#include <doctest/doctest.h>

#include <random>

using namespace cokv;
using namespace cokv::cluster;
using namespace std::chrono_literals;

namespace {

constexpr std::uint32_t block = 16;

worker_facts facts(worker_role role, std::string life, std::uint64_t left = 0) {
  worker_facts f{.role = role, .self = {.name = "w", .life = std::move(life), .wire = {2, 1, 8, block, dtype::f32}}};
  f.max_sequence = 10000;
  f.blocks = f.blocks_free = 1000;
  f.prompt_tokens_left = left;
  return f;
}

const time_point start{};

// Two workers of a kind, and what is known of their KV.
struct two {
  explicit two(worker_role role) : kind(role) {
    a = table.add("http://a:1"), b = table.add("http://b:1");
    hear(a), hear(b);
  }
  void hear(worker_table::id id, std::function<void(worker_facts&)> change = {}) {
    auto f = facts(kind, std::to_string(id));
    if (change) change(f);
    table.heard(id, f, start);
  }
  std::optional<worker_table::id> ask(policy by, std::uint32_t prompt, std::uint32_t length = 0,
                                      const std::set<worker_table::id>& without = {}) {
    const std::vector<token_id> tokens(prompt, 1);
    const prompt_keys keys{{block, chain_keys(tokens, block)}};
    return place(table, index, {kind, prompt, length ? length : prompt + 1, &keys}, {by, ttft, tpot}, without);
  }
  void has(worker_table::id id, std::uint32_t tokens) {
    index.stored(id, "device", chain_keys(std::vector<token_id>(tokens, 1), block));
  }

  worker_role kind;
  worker_table table;
  prefix_index index;
  worker_table::id a, b;
  duration ttft = 2s, tpot = 100ms;
};

}  // namespace

TEST_CASE("place: the least loaded, by its word or by what it was given since, and equal ones in turn") {
  worker_table t;
  const prefix_index none;
  const auto where = [&](worker_role what, std::uint32_t length, std::set<worker_table::id> without = {}) {
    return place(t, none, {.what = what, .length = length}, {}, without);
  };
  const auto a = t.add("http://a:1"), b = t.add("http://b:1");
  CHECK_FALSE(where(worker_role::prefill, 50));
  t.heard(a, facts(worker_role::prefill, "1", 50), start);
  t.heard(b, facts(worker_role::prefill, "2"), start);
  CHECK(where(worker_role::prefill, 50) == b);
  CHECK(where(worker_role::prefill, 50, {b}) == a);
  CHECK_FALSE(where(worker_role::prefill, 50, {a, b}));
  CHECK_FALSE(where(worker_role::decode, 50));
  t.give(b, 60);
  CHECK(where(worker_role::prefill, 50) == a);
  t.ended(b, 60);
  t.heard(a, facts(worker_role::prefill, "1"), start);
  CHECK(where(worker_role::prefill, 50) == a);  // it was given less so far
  t.give(a, 0), t.ended(a, 0);
  t.give(a, 0), t.ended(a, 0);
  CHECK(where(worker_role::prefill, 50) == b);

  auto small = facts(worker_role::prefill, "1");
  small.max_sequence = 40;
  t.heard(b, facts(worker_role::prefill, "2", 99), start);
  t.heard(a, small, start);
  CHECK(where(worker_role::prefill, 40) == a);
  CHECK(where(worker_role::prefill, 41) == b);
  CHECK(where(worker_role::prefill, 100000) == b);  // what nobody holds goes where most is held

  auto broken = facts(worker_role::prefill, "2");
  broken.broken = true;
  t.heard(b, broken, start);
  CHECK(where(worker_role::prefill, 41) == a);
  CHECK(t.usable(worker_role::prefill) == 1);
}

TEST_CASE("place: what was heard of a prompt does not count when that is over") {
  worker_table t;
  const auto a = t.add("http://a:1"), b = t.add("http://b:1");
  t.heard(a, facts(worker_role::prefill, "1", 60), start);
  t.heard(b, facts(worker_role::prefill, "2", 50), start);
  const auto next = [&] { return place(t, prefix_index(), {.what = worker_role::prefill, .length = 50}, {}, {}); };
  t.give(a, 60), t.ended(a, 60);  // given since it was heard: what that said was another's
  CHECK(next() == b);
  t.give(a, 60), t.ended(a, 60, true);
  CHECK(next() == a);
  t.give(b, 80), t.ended(b, 80, true);  // no more than was told
  CHECK(t.find(b)->facts.prompt_tokens_left == 0);
}

TEST_CASE("place: by prefix a prompt goes to its KV, until what is before it there is more than that spares") {
  two w(worker_role::prefill);
  w.has(w.b, 800);
  CHECK(w.ask(policy::least_loaded, 1000) == w.a);
  CHECK(w.ask(policy::prefix, 1000) == w.b);
  CHECK(w.ask(policy::prefix, 1000, 0, {w.b}) == w.a);
  w.table.give(w.b, 799);
  CHECK(w.ask(policy::prefix, 1000) == w.b);
  w.table.give(w.b, 2);
  CHECK(w.ask(policy::prefix, 1000) == w.a);
  w.table.give(w.a, 100);
  CHECK(w.ask(policy::prefix, 1000) == w.b);
}

TEST_CASE("place: of a prompt that is there to its last token that token is computed all the same") {
  two w(worker_role::prefill);
  w.has(w.b, 64);
  const std::vector<token_id> tokens(64, 1);
  const prompt_keys keys{{block, chain_keys(tokens, block)}};
  CHECK(tokens_there(*w.table.find(w.b), w.b, w.index, {worker_role::prefill, 64, 65, &keys}) == 63);
  CHECK(tokens_there(*w.table.find(w.b), w.b, w.index, {worker_role::prefill, 64, 65, {}}) == 0);
  CHECK(tokens_there(*w.table.find(w.a), w.a, w.index, {worker_role::prefill, 64, 65, &keys}) == 0);
}

TEST_CASE("place: by prefix an answer goes to its prompt's KV where that outweighs what is in use there") {
  two w(worker_role::decode);
  w.has(w.b, 1600);
  w.table.give(w.b, 1000);
  CHECK(w.ask(policy::least_loaded, 2000) == w.a);
  CHECK(w.ask(policy::prefix, 2000) == w.b);
  w.table.give(w.b, 700);
  CHECK(w.ask(policy::prefix, 2000) == w.a);
}

TEST_CASE("place: by SLO a prompt goes where it is in time with least to compute, else where it is first") {
  two w(worker_role::prefill);
  w.hear(w.a, [](worker_facts& f) { f.step = {0, 1e-3, 0}; });  // 1000 tokens a second
  w.hear(w.b, [](worker_facts& f) { f.step = {0, 1e-4, 0}; });  // 10,000
  CHECK(w.ask(policy::prefix, 1000) == w.a);                    // in turn
  CHECK(w.ask(policy::slo, 1000) == w.b);                       // both in time, as much to compute: who is sooner
  w.has(w.a, 512);
  CHECK(w.ask(policy::slo, 1000) == w.a);  // 0.49 s: in time, and less to compute
  CHECK(w.ask(policy::slo, 3000) == w.b);  // 2.5 s against 0.3
  w.table.give(w.b, 30000);
  CHECK(w.ask(policy::slo, 3000) == w.a);  // 2.5 s against 3.3: none in time
  w.table.give(w.a, 2000);
  CHECK(w.ask(policy::slo, 3000) == w.b);
  w.ttft = 10s;
  CHECK(w.ask(policy::slo, 3000) == w.a);
}

TEST_CASE("place: by SLO an answer goes where tokens are in time, by room, else where they are soonest") {
  two w(worker_role::decode);
  w.hear(w.a, [](worker_facts& f) {
    f.step = {0.05, 0.01, 0};
    f.running = 4;
    f.blocks_free = 900;
  });
  w.hear(w.b, [](worker_facts& f) {
    f.step = {0.01, 0.01, 0};
    f.running = 4;
    f.blocks_free = 500;
  });
  CHECK(w.ask(policy::slo, 100) == w.a);  // 100 ms and 60: both are in time, and a has more room
  w.tpot = 90ms;
  CHECK(w.ask(policy::slo, 100) == w.b);
  w.tpot = 10ms;
  CHECK(w.ask(policy::slo, 100) == w.b);  // none: the soonest
  w.hear(w.b, [](worker_facts& f) {
    f.step = {0.01, 0.01, 1e-4};
    f.blocks_free = 0;  // 16,000 tokens of context cost 1.6 s
  });
  CHECK(w.ask(policy::slo, 100) == w.a);
}

TEST_CASE("place: by SLO who has told nothing of its steps yet takes as long as another; where nobody has, by prefix") {
  two w(worker_role::prefill);
  w.has(w.b, 160);
  CHECK(w.ask(policy::slo, 1000) == w.b);
  w.hear(w.b, [](worker_facts& f) { f.step = {0, 1e-3, 0}; });
  w.table.give(w.b, 5000);
  CHECK(w.ask(policy::slo, 1000) == w.a);
}

TEST_CASE("place: whatever is known, somebody usable who is not left out is found") {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    two w(seed % 2 ? worker_role::prefill : worker_role::decode);
    for (auto id : {w.a, w.b}) {
      w.hear(id, [&](worker_facts& f) {
        f.blocks_free = random() % 1001;
        f.running = random() % 100;
        f.prompt_tokens_left = random() % 100000;
        if (random() % 2) f.step = {(random() % 100) * 1e-3, (random() % 100) * 1e-5, (random() % 100) * 1e-9};
      });
      w.table.give(id, random() % 100000);
      w.has(id, random() % 3000);
    }
    for (auto by : {policy::least_loaded, policy::prefix, policy::slo}) {
      const auto at = w.ask(by, 1 + random() % 5000);
      REQUIRE(at);
      CHECK(w.ask(by, 1 + random() % 5000, 0, {*at}) == (*at == w.a ? w.b : w.a));
      CHECK_FALSE(w.ask(by, 1000, 0, {w.a, w.b}));
    }
  }
}

TEST_CASE("place: policies have names") {
  for (auto p : {policy::least_loaded, policy::prefix, policy::slo}) CHECK(parse_policy(to_string(p)) == p);
  CHECK_FALSE(parse_policy("random"));
}
