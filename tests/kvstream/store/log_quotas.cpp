#include "store/log_quotas.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

using namespace cokv;
using namespace cokv::detail;

namespace {

stored_id id(std::uint32_t n) {
  stored_id out;
  out.key.bytes[0] = static_cast<std::byte>(n);
  out.key.bytes[1] = static_cast<std::byte>(n >> 8);
  return out;
}

std::uint32_t number(const stored_id& of) {
  return std::to_integer<std::uint32_t>(of.key.bytes[0]) | std::to_integer<std::uint32_t>(of.key.bytes[1]) << 8;
}

std::vector<std::uint32_t> all_for(log_quotas& q, const std::string& tenant, std::uint64_t bytes) {
  std::vector<std::uint32_t> out;
  while (const auto gone = q.give_up(tenant, bytes)) out.push_back(number(*gone));
  return out;
}

using numbers = std::vector<std::uint32_t>;

}  // namespace

TEST_CASE("log quotas: beyond its quota a tenant gives up its own, and what it is writing counts") {
  log_quotas q({{"a", 30}});
  for (std::uint32_t n = 0; n < 3; ++n) q.insert("a", id(n), 10);
  for (std::uint32_t n = 10; n < 20; ++n) q.insert("b", id(n), 10);
  CHECK(q.bounds("a"));
  CHECK(!q.bounds("b"));
  CHECK(q.could_take("a", 30));
  CHECK(!q.could_take("a", 31));
  CHECK(q.could_take("b", 1000));
  CHECK(q.can_take("a", 30));
  CHECK(all_for(q, "a", 20) == numbers{0, 1});
  CHECK(all_for(q, "b", 1000).empty());
  {
    auto writing = q.write("a", 20);
    CHECK(!q.can_take("a", 20));
    CHECK(q.can_take("a", 10));
    CHECK(all_for(q, "a", 10) == numbers{2});
    writing.give_back(10);
    q.insert("a", id(3), 10);
    CHECK(q.can_take("a", 20));
    CHECK(all_for(q, "a", 10).empty());
  }
  CHECK(all_for(q, "a", 20).empty());
  CHECK(all_for(q, "a", 30) == numbers{3});
}

TEST_CASE("log quotas: what was asked for stays longer than what was not") {
  log_quotas q({{"a", 100}});
  for (std::uint32_t n = 0; n < 10; ++n) q.insert("a", id(n), 10);
  q.touch(id(0)), q.touch(id(4));
  CHECK(all_for(q, "a", 80) == numbers{1, 2, 3, 5, 6, 7, 8, 9});
}

TEST_CASE("log quotas: what is open stays, and where that is too much nothing is given up") {
  log_quotas q({{"a", 30}});
  for (std::uint32_t n = 0; n < 3; ++n) q.insert("a", id(n), 10);
  const auto pin = q.pin(id(0)), other = q.pin(id(1));
  CHECK(!q.can_take("a", 20));
  CHECK(q.can_take("a", 10));
  CHECK(all_for(q, "a", 10) == numbers{2});
  q.unpin(id(0), pin);
  CHECK(all_for(q, "a", 20) == numbers{0});
  q.unpin(id(1), other);
  CHECK(q.pin(id(9)) == 0);
}

TEST_CASE("log quotas: new quotas hold from then on, old pins mean nothing to who comes under one anew") {
  log_quotas q({{"a", 30}, {"b", 30}});
  for (std::uint32_t n = 0; n < 3; ++n) q.insert("a", id(n), 10);
  const auto pin = q.pin(id(0));
  CHECK(q.set_quotas({{"a", 20}, {"c", 5}}) == std::vector<std::string>{"c"});
  CHECK(all_for(q, "a", 10) == numbers{1, 2});
  CHECK(q.set_quotas({}).empty());
  auto writing = q.write("a", 15);
  CHECK(q.can_take("a", 1000));
  CHECK(q.set_quotas({{"a", 20}}) == std::vector<std::string>{"a"});
  CHECK(!q.can_take("a", 6));  // what it was writing before
  q.insert("a", id(0), 5);
  q.unpin(id(0), pin);
  CHECK(all_for(q, "a", 5) == numbers{0});
  const auto told = q.tenants({{"d", 7}});
  REQUIRE(told.size() == 2);
  CHECK(told[0].name == "a");
  CHECK(told[0].used_bytes == 15);
  CHECK(told[0].quota_bytes == 20);
  CHECK(told[1].name == "d");
  CHECK(told[1].quota_bytes == 0);
}

// The rule, told once more by counting.
TEST_CASE("log quotas: agrees with its rule over random operations") {
  std::uint64_t refused = 0, gave_up = 0;
  for (unsigned seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto below = [&](std::uint64_t n) { return random() % n; };
    const std::vector<std::string> names{"a", "b", "c"};
    tenant_quotas quotas{{"a", 50 + below(100)}, {"b", 50 + below(100)}};
    struct block {
      std::string tenant;
      std::uint64_t bytes;
      std::multiset<std::uint64_t> pins;
    };
    struct upload {
      std::string tenant;
      std::uint64_t bytes;
      log_quotas::charge taken;
    };
    log_quotas q(quotas);
    std::map<std::uint32_t, block> there;
    std::vector<upload> uploads;
    std::uint32_t next = 0;
    const auto used = [&](const std::string& who) {
      std::uint64_t out = 0;
      for (const auto& [n, b] : there) out += b.tenant == who ? b.bytes : 0;
      for (const auto& u : uploads) out += u.tenant == who ? u.bytes : 0;
      return out;
    };
    const auto open = [&](const std::string& who) {
      std::uint64_t out = 0;
      for (const auto& [n, b] : there) out += b.tenant == who && !b.pins.empty() ? b.bytes : 0;
      for (const auto& u : uploads) out += u.tenant == who ? u.bytes : 0;
      return out;
    };
    const auto any = [&]() { return std::next(there.begin(), static_cast<std::ptrdiff_t>(below(there.size()))); };
    for (int step = 0; step < 200; ++step) {
      switch (below(7)) {
        case 0:
        case 1:
        case 2: {
          const auto& who = names[below(3)];
          const auto bytes = 1 + below(40);
          const bool bound = quotas.contains(who);
          const bool can = q.can_take(who, bytes);
          REQUIRE(can == (!bound || open(who) + bytes <= quotas[who]));
          REQUIRE(q.could_take(who, bytes) == (!bound || bytes <= quotas[who]));
          refused += !can;
          if (!can) break;
          while (const auto gone = q.give_up(who, bytes)) {
            const auto& b = there.at(number(*gone));
            REQUIRE(b.tenant == who);
            REQUIRE(b.pins.empty());
            REQUIRE(used(who) + bytes > quotas[who]);  // none too many
            there.erase(number(*gone));
            ++gave_up;
          }
          if (bound) REQUIRE(used(who) + bytes <= quotas[who]);
          uploads.push_back({who, bytes, q.write(who, bytes)});
          break;
        }
        case 3:
          if (!uploads.empty()) {  // ends, perhaps well
            auto u = std::move(uploads.back());
            uploads.pop_back();
            u.taken.release();
            if (below(4) == 0) break;
            q.insert(u.tenant, id(next), u.bytes);
            there[next++] = {u.tenant, u.bytes, {}};
          }
          break;
        case 4:
          if (!there.empty()) {
            const auto b = any();
            if (const auto pin = q.pin(id(b->first))) b->second.pins.insert(pin);
          }
          break;
        case 5:
          if (!there.empty()) {
            const auto b = any();
            q.touch(id(b->first));
            if (b->second.pins.empty()) break;
            q.unpin(id(b->first), *b->second.pins.begin());
            b->second.pins.erase(b->second.pins.begin());
          }
          break;
        case 6:
          if (!there.empty() && below(3) == 0) {
            const auto b = any();
            q.erase(id(b->first));
            there.erase(b);
          }
          if (below(20) == 0) {
            for (auto& [name, quota] : quotas) quota = 40 + below(120);
            REQUIRE(q.set_quotas(quotas).empty());
          }
      }
      std::map<std::string, std::uint64_t> live, said;
      for (const auto& [n, b] : there) live[b.tenant] += b.bytes;
      for (const auto& t : q.tenants(live)) said[t.name] = t.used_bytes;
      for (const auto& name : names) REQUIRE(said[name] == used(name));
    }
  }
  CHECK(refused > 1000);
  CHECK(gave_up > 500);
}
