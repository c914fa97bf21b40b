#include "cluster/epoch_gate.hpp"

#include <doctest/doctest.h>

#include <map>
#include <random>

#include "http/json.hpp"

using namespace cokv;
using namespace cokv::cluster;
using namespace std::chrono_literals;
using answer = epoch_gate::answer;

namespace {

time_point at(duration d) { return time_point() + 1h + d; }

}  // namespace

TEST_CASE("epoch_gate: the first router is taken, and one of a lower epoch refused for ever") {
  epoch_gate gate;
  CHECK(gate.promised(at(0s)).epoch == 0);
  CHECK(gate.ask({5, "a", 1500ms}, at(0s)) == answer::taken);
  CHECK(gate.ask({4, "b", 1500ms}, at(0s)) == answer::stale);
  CHECK(gate.ask({4, "a", 1500ms}, at(1s)) == answer::stale);
  CHECK(gate.ask({4, "b", 1500ms}, at(1h)) == answer::stale);
  CHECK(gate.promised(at(1h)).epoch == 5);
  CHECK(gate.promised(at(1h)).router == "a");
}

TEST_CASE("epoch_gate: another router is taken only when nothing was heard of the first for its lease") {
  epoch_gate gate;
  CHECK(gate.ask({1, "a", 1500ms}, at(0s)) == answer::taken);
  CHECK(gate.ask({2, "b", 1500ms}, at(1499ms)) == answer::held);
  CHECK(gate.promised(at(1499ms)).left == 1ms);
  CHECK(gate.ask({1, "a", 1500ms}, at(1499ms)) == answer::taken);  // its call begins the lease anew
  CHECK(gate.ask({2, "b", 1500ms}, at(2998ms)) == answer::held);
  CHECK(gate.promised(at(2999ms)).left == 0ms);
  CHECK(gate.ask({2, "b", 1500ms}, at(2999ms)) == answer::taken);
  CHECK(gate.ask({1, "a", 1500ms}, at(2999ms)) == answer::stale);
}

TEST_CASE("epoch_gate: an epoch is of one router, and the one that has it may raise it at any time") {
  epoch_gate gate;
  CHECK(gate.ask({3, "a", 10ms}, at(0s)) == answer::taken);
  CHECK(gate.ask({3, "b", 10ms}, at(1h)) == answer::stale);
  CHECK(gate.ask({7, "a", 10ms}, at(1h)) == answer::taken);
  CHECK(gate.ask({7, "a", 10ms}, at(1h)) == answer::taken);
  CHECK(gate.ask({6, "a", 10ms}, at(1h)) == answer::stale);
}

TEST_CASE("epoch_gate: a lease is as long as the last call asked for, and refused calls lengthen none") {
  epoch_gate gate;
  CHECK(gate.ask({1, "a", 1500ms}, at(0s)) == answer::taken);
  CHECK(gate.ask({1, "a", 100ms}, at(1s)) == answer::taken);
  CHECK(gate.ask({2, "b", 5s}, at(1050ms)) == answer::held);
  CHECK(gate.ask({0, "a", 5s}, at(1050ms)) == answer::stale);
  CHECK(gate.ask({2, "b", 5s}, at(1100ms)) == answer::taken);
  CHECK(gate.promised(at(1100ms)).left == 5s);
}

TEST_CASE("epoch_gate: whoever calls, epochs never fall and no two routers are taken with the same one") {
  std::mt19937_64 random(7);
  for (int run = 0; run < 200; ++run) {
    epoch_gate gate;
    std::map<std::uint64_t, std::string> taken;
    std::uint64_t highest = 0;
    auto now = at(0s);
    for (int i = 0; i < 100; ++i) {
      now += std::chrono::milliseconds(random() % 40);
      const router_claim c{1 + random() % (i / 4 + 2), std::string(1, static_cast<char>('a' + random() % 3)), 50ms};
      const auto before = gate.promised(now);
      const auto a = gate.ask(c, now);
      CHECK((a == answer::stale) == (c.epoch < before.epoch || (c.epoch == before.epoch && c.router != before.router)));
      if (a != answer::taken) continue;
      CHECK(c.epoch >= highest);
      CHECK((c.router == before.router || before.left == 0ms));
      highest = c.epoch;
      CHECK(taken.emplace(c.epoch, c.router).first->second == c.router);
    }
  }
}

TEST_CASE("router_claim: it reads back as it was from a field and from JSON, and what is none is refused") {
  const router_claim c{7, "5f0c-a", 1500ms};
  CHECK(to_field(c) == "7; router=5f0c-a; lease=1500");
  CHECK(parse_claim(to_field(c)) == c);
  CHECK(*read_claim(to_json(c)) == c);
  for (const char* bad :
       {"", "7", "x", "7; router=a", "7; router=; lease=1", "7; router=a b; lease=1", "0; router=a; lease=1",
        "7; router=a; lease=0", "7; router=a; lease=600001", "7; router=a; lease=1 ", "7;router=a;lease=1",
        "-7; router=a; lease=1", "536870912; router=a; lease=1", "99999999999999999999; router=a; lease=1",
        "7; router=a; lease=99999999999999999999", "7; lease=1; router=a"})
    CHECK_MESSAGE(!parse_claim(bad), bad);
  const auto named = [](std::string_view text) { return read_claim(*http::parse_json(text)).error().parameter; };
  CHECK(named(R"({"epoch":0,"router":"a","lease_ms":1})") == "epoch");
  CHECK(named(R"({"epoch":536870912,"router":"a","lease_ms":1})") == "epoch");
  CHECK(named(R"({"epoch":1,"router":"","lease_ms":1})") == "router");
  CHECK(named(R"({"epoch":1,"router":"a","lease_ms":0})") == "lease_ms");
  CHECK(named(R"({"epoch":1,"router":"a","lease_ms":1,"more":1})") == "more");
  const told_promise nothing, some{3, "b", 20ms};
  CHECK(read_promise(to_json(nothing))->epoch == 0);
  CHECK(read_promise(to_json(some))->router == "b");
  CHECK(read_promise(to_json(some))->left == 20ms);
}
