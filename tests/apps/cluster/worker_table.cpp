#include "cluster/worker_table.hpp"

#include <doctest/doctest.h>

#include <random>

#include "cluster/placement.hpp"

using namespace cokv;
using namespace cokv::cluster;
using namespace std::chrono_literals;

namespace {

constexpr auto health = health_options{.period = 500ms, .dead_after = 1500ms};

worker_facts facts(worker_role role, std::string life, std::uint64_t left = 0) {
  worker_facts f{.role = role, .self = {.name = "w", .life = std::move(life), .wire = {2, 1, 8, 16, dtype::f32}}};
  f.max_sequence = 100;
  f.blocks = f.blocks_free = 10;
  f.prompt_tokens_left = left;
  return f;
}

const time_point start{};

}  // namespace

TEST_CASE("worker_table: a worker is here when it is heard, and dead after so long without an answer, or refused") {
  worker_table t(health);
  const auto a = t.add("http://a:1"), b = t.add("http://b:1");
  CHECK(t.add("http://a:1") == a);
  CHECK(t.find(a)->state == presence::unheard);
  CHECK(t.silent(a, true, start) == worker_change::none);  // it was never here
  CHECK(t.usable(worker_role::prefill) == 0);

  CHECK(t.heard(a, facts(worker_role::prefill, "1"), start) == worker_change::came);
  CHECK(t.heard(b, facts(worker_role::both, "2"), start) == worker_change::came);
  CHECK(t.usable(worker_role::prefill) == 2);
  CHECK(t.usable(worker_role::decode) == 1);
  CHECK(t.max_sequence() == 100);
  CHECK(t.patience(a, start + 400ms) == 1100ms);
  CHECK(t.patience(a, start + 3s) == 1ms);
  CHECK(t.silent(a, false, start + 1499ms) == worker_change::none);
  CHECK(t.heard(a, facts(worker_role::prefill, "1"), start + 1499ms) == worker_change::none);
  CHECK(t.silent(a, false, start + 2998ms) == worker_change::none);
  CHECK(t.silent(a, false, start + 2999ms) == worker_change::died);
  CHECK(t.silent(a, false, start + 4s) == worker_change::none);
  CHECK(t.silent(b, true, start) == worker_change::died);
  CHECK(t.usable(worker_role::both) == 0);
  CHECK(t.heard(a, facts(worker_role::prefill, "1"), start + 5s) == worker_change::came);
}

TEST_CASE("worker_table: one that was met with an error is doubted until it is heard again") {
  worker_table t(health);
  const auto a = t.add("http://a:1");
  t.heard(a, facts(worker_role::decode, "1"), start);
  CHECK(!t.find(a)->doubted);
  t.doubt(a);
  t.doubt(77);  // of which nothing is known
  CHECK(t.find(a)->doubted);
  CHECK(t.usable(worker_role::decode) == 1);  // as long as it is not known to be dead
  CHECK(t.silent(a, false, start + 1s) == worker_change::none);
  CHECK(t.find(a)->doubted);
  CHECK(t.heard(a, facts(worker_role::decode, "1"), start + 1s) == worker_change::none);
  CHECK(!t.find(a)->doubted);
}

TEST_CASE("worker_table: another run of a worker has nothing of what the one before had") {
  worker_table t(health);
  const auto a = t.add("http://a:1");
  t.heard(a, facts(worker_role::decode, "1"), start);
  CHECK(t.heard(a, facts(worker_role::decode, "2"), start + 1s) == worker_change::replaced);
  CHECK(t.find(a)->facts.self.life == "2");
  CHECK(t.silent(a, true, start + 1s) == worker_change::died);
  CHECK(t.heard(a, facts(worker_role::decode, "3"), start + 2s) == worker_change::came);
}

TEST_CASE("worker_table: blocks of another size fit, and another element type where both convert") {
  worker_table t(health);
  const auto a = t.add("http://a:1"), b = t.add("http://b:1");
  auto one = facts(worker_role::decode, "1"), other = facts(worker_role::prefill, "2");
  t.heard(a, one, start);
  other.self.wire.block_tokens = 8;
  CHECK(t.heard(b, other, start) == worker_change::came);
  CHECK(t.block_sizes() == std::set<std::uint32_t>{one.self.wire.block_tokens, 8});
  other.self.wire.type = dtype::bf16;
  CHECK(t.heard(b, other, start) == worker_change::misfit);
  other.self.converts = true;
  CHECK(t.heard(b, other, start) == worker_change::none);
  CHECK(t.find(b)->wrong.find("--convert-kv") != std::string::npos);
  one.self.converts = true;
  t.heard(a, one, start);
  CHECK(t.heard(b, other, start) == worker_change::came);
  other.self.wire.type = dtype::fp8_e4m3;
  CHECK(t.heard(b, other, start) == worker_change::misfit);
  other.self.wire.type = dtype::bf16;
  other.self.wire.kv_heads += 1;
  CHECK(t.heard(b, other, start) == worker_change::none);
}

TEST_CASE("worker_table: what is of another model gets nothing, until none of the old is left") {
  worker_table t(health);
  const auto a = t.add("http://a:1"), b = t.add("http://b:1");
  t.heard(a, facts(worker_role::decode, "1"), start);
  auto other = facts(worker_role::prefill, "2");
  other.self.wire.type = dtype::bf16;
  CHECK(t.heard(b, other, start) == worker_change::misfit);
  CHECK(t.find(b)->wrong.find("http://a:1") != std::string::npos);
  CHECK(t.heard(b, other, start + 1s) == worker_change::none);
  CHECK(t.usable(worker_role::prefill) == 0);
  other = facts(worker_role::prefill, "2");
  other.self.fingerprint.bytes[0] = std::byte{1};
  CHECK(t.heard(b, other, start + 1s) == worker_change::none);
  CHECK(t.find(b)->wrong.find("weights") != std::string::npos);
  t.silent(a, true, start + 2s);
  CHECK(t.heard(b, other, start + 2s) == worker_change::came);
  // And the one that comes back is the one that does not fit.
  CHECK(t.heard(a, facts(worker_role::decode, "1"), start + 3s) == worker_change::misfit);
  // A run of other weights in the place of one that was here.
  CHECK(t.heard(b, facts(worker_role::prefill, "4"), start + 3s) == worker_change::replaced);
}

TEST_CASE("worker_table: one that is here and says that it is of another model is so") {
  worker_table t(health);
  const auto a = t.add("http://a:1"), b = t.add("http://b:1");
  CHECK(t.heard(a, facts(worker_role::decode, "1"), start) == worker_change::came);
  CHECK(t.heard(b, facts(worker_role::prefill, "2"), start) == worker_change::came);
  auto other = facts(worker_role::prefill, "2");
  other.self.fingerprint.bytes[0] = std::byte{1};
  CHECK(t.heard(b, other, start + 1s) == worker_change::misfit);
  CHECK(t.usable(worker_role::prefill) == 0);
  CHECK(t.heard(b, facts(worker_role::prefill, "2"), start + 2s) == worker_change::came);
}

TEST_CASE("worker_table: one that leaves gets nothing new, and may come again") {
  worker_table t(health);
  const auto a = t.add("http://a:1");
  t.heard(a, facts(worker_role::both, "1"), start);
  CHECK_FALSE(t.leave("http://b:1"));
  CHECK(t.leave("http://a:1"));
  CHECK(t.usable(worker_role::prefill) == 0);
  CHECK(t.add("http://a:1") == a);
  CHECK(t.usable(worker_role::prefill) == 1);
  t.remove(a);
  CHECK(t.add("http://a:1") != a);
  CHECK(t.heard(a, facts(worker_role::both, "1"), start) == worker_change::none);
}

TEST_CASE("worker_table: at random, only workers that were heard in time and fit are used, and counts come back") {
  for (unsigned seed = 0; seed < 200; ++seed) {
    INFO("seed ", seed);
    std::mt19937 random(seed);
    const auto below = [&](unsigned n) { return random() % n; };
    worker_table t(health);
    std::map<worker_table::id, time_point> heard;
    std::vector<std::pair<worker_table::id, std::uint64_t>> given;
    auto now = start;
    for (int i = 0; i < 300; ++i) {
      now += std::chrono::milliseconds(below(400));
      const auto url = "http://" + std::to_string(below(5)) + ":1";
      const auto id = t.find(url);
      switch (below(7)) {
        case 0:
          t.add(url);
          break;
        case 1:
          t.leave(url);
          break;
        case 2:
        case 3:
          if (!id) break;
          t.heard(*id, facts(static_cast<worker_role>(1 + below(3)), std::to_string(below(8)), below(100)), now);
          heard[*id] = now;
          break;
        case 4:
          if (id && t.silent(*id, below(4) == 0, now) == worker_change::died)
            CHECK(t.find(*id)->state == presence::gone);
          break;
        case 5:
          if (const auto to =
                  place(t, prefix_index(), {.what = static_cast<worker_role>(1 + below(2)), .length = 50}, {}, {})) {
            CHECK(t.find(*to)->state == presence::here);
            CHECK_FALSE(t.find(*to)->leaving);
            given.emplace_back(*to, below(100));
            t.give(given.back().first, given.back().second);
          }
          break;
        default:
          if (given.empty()) break;
          t.ended(given.back().first, given.back().second);
          given.pop_back();
      }
      for (const auto& [number, w] : t.all())
        if (w.state == presence::here) CHECK(heard.contains(number));
    }
    for (auto& [id, tokens] : given) t.ended(id, tokens);
    for (const auto& [id, w] : t.all()) {
      CHECK(w.requests == 0);
      CHECK(w.tokens == 0);
    }
  }
}
