#include "store/tenant_order.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>

using namespace cokv;
using detail::stored_id;
using detail::tenant_order;
using room_for = tenant_order::verdict;

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

// A store of numbers.
struct shelf {
  explicit shelf(std::uint64_t limit, const tenant_quotas& quotas = {}) : order(limit, quotas) {}

  struct block {
    std::string tenant;
    std::uint64_t bytes;
    std::unique_ptr<tenant_order::charge> taken;
    std::vector<std::uint64_t> pins;
  };

  room_for put(std::uint32_t n, std::uint64_t bytes, const std::string& tenant) {
    auto who = order.account_of(tenant);
    if (auto v = order.judge(*who, bytes); v != room_for::fits) return v;
    const bool made = order.make_room(*who, bytes, [&](const stored_id& gone) {
      lost.push_back(number(gone));
      REQUIRE(there.erase(number(gone)) == 1);
    });
    if (!made) return room_for::no_room;
    there[n] = {tenant, bytes, std::make_unique<tenant_order::charge>(who, bytes), {}};
    order.insert(id(n), bytes, who);
    return room_for::fits;
  }
  std::uint64_t used(const std::string& tenant) const {
    std::uint64_t out = 0;
    for (auto& [n, b] : there) out += b.tenant == tenant ? b.bytes : 0;
    return out;
  }
  std::vector<std::uint32_t> lost_now() { return std::exchange(lost, {}); }

  tenant_order order;
  std::map<std::uint32_t, block> there;
  std::vector<std::uint32_t> lost;
};

using numbers = std::vector<std::uint32_t>;

}  // namespace

TEST_CASE("tenant order: over its quota a tenant gives up its own blocks, whatever room there is") {
  shelf s(100, {{"a", 30}});
  CHECK(s.put(1, 10, "b") == room_for::fits);
  for (std::uint32_t n = 10; n < 13; ++n) CHECK(s.put(n, 10, "a") == room_for::fits);
  CHECK(s.lost_now().empty());
  CHECK(s.put(13, 20, "a") == room_for::fits);
  CHECK(s.lost_now() == numbers{10, 11});
  CHECK(s.used("a") == 30);
  CHECK(s.put(14, 31, "a") == room_for::beyond_quota);
  CHECK(s.lost_now().empty());
}

TEST_CASE("tenant order: a quota that is in use by readers says so, and nothing is given up") {
  shelf s(100, {{"a", 30}});
  for (std::uint32_t n = 0; n < 3; ++n) CHECK(s.put(n, 10, "a") == room_for::fits);
  const auto pin = s.order.pin(id(1)), other = s.order.pin(id(2));
  CHECK(s.put(3, 20, "a") == room_for::beyond_quota);
  CHECK(s.there.size() == 3);
  s.order.unpin(id(1), pin);
  CHECK(s.put(3, 20, "a") == room_for::fits);
  CHECK(s.lost_now() == numbers{0, 1});
  s.order.unpin(id(2), other);
}

TEST_CASE("tenant order: who is within its quota loses nothing to those without one, nor to others") {
  shelf s(100, {{"a", 40}, {"b", 40}});
  for (std::uint32_t n = 0; n < 4; ++n) CHECK(s.put(n, 10, "a") == room_for::fits);
  for (std::uint32_t n = 100; n < 120; ++n) CHECK(s.put(n, 10, "") == room_for::fits);  // six places, then its own
  CHECK(s.used("a") == 40);
  CHECK(s.used("") == 60);
  s.lost_now();
  for (std::uint32_t n = 200; n < 204; ++n)
    CHECK(s.put(n, 10, "b") == room_for::fits);  // from those who have lent room
  CHECK(s.used("a") == 40);
  CHECK(s.used("b") == 40);
  CHECK(s.used("") == 20);
  for (std::uint32_t n = 300; n < 310; ++n) CHECK(s.put(n, 10, "stranger") == room_for::fits);
  CHECK(s.used("a") == 40);
  CHECK(s.used("b") == 40);
}

TEST_CASE("tenant order: quotas beyond the limit are cut in proportion, and only when somebody wants the room") {
  shelf s(90, {{"a", 60}, {"b", 120}});  // 30 and 60 of 90
  for (std::uint32_t n = 0; n < 20; ++n) CHECK(s.put(n, 10, "b") == room_for::fits);
  CHECK(s.used("b") == 90);
  for (std::uint32_t n = 100; n < 110; ++n) CHECK(s.put(n, 10, "a") == room_for::fits);
  CHECK(s.used("a") == 30);
  CHECK(s.used("b") == 60);
  CHECK(s.put(300, 10, "") == room_for::no_room);  // nothing is left over
}

TEST_CASE("tenant order: without quotas the order is that of all blocks, whoever wrote them") {
  shelf s(50);
  for (std::uint32_t n = 0; n < 5; ++n) CHECK(s.put(n, 10, n % 2 ? "a" : "b") == room_for::fits);
  s.order.touch(id(0));
  CHECK(s.put(5, 30, "a") == room_for::fits);
  CHECK(s.lost_now() == numbers{1, 2, 3});
}

TEST_CASE("tenant order: new quotas hold from then on, and pins stay what they were") {
  shelf s(100);
  for (std::uint32_t n = 0; n < 8; ++n) CHECK(s.put(n, 10, n < 4 ? "a" : "b") == room_for::fits);
  const auto pin = s.order.pin(id(0));
  CHECK(s.order.pinned() == 1);
  CHECK(s.order.leased_bytes() == 10);
  s.order.set_quotas({{"a", 20}});
  CHECK(s.order.pinned() == 1);
  CHECK(s.order.leased_bytes() == 10);
  CHECK(s.there.size() == 8);
  CHECK(s.put(10, 10, "a") == room_for::fits);
  CHECK(s.lost_now() == numbers{1, 2, 3});
  CHECK(s.put(11, 20, "a") == room_for::beyond_quota);
  s.order.unpin(id(0), pin);
  CHECK(s.order.pinned() == 0);
  CHECK(s.order.leased_bytes() == 0);
  CHECK(s.put(11, 20, "a") == room_for::fits);
  CHECK(s.lost_now() == numbers{0, 10});
  s.order.set_quotas({});
  CHECK(s.put(12, 50, "a") == room_for::fits);
  const auto infos = s.order.tenants();
  REQUIRE(infos.size() == 2);
  CHECK(infos[0].name == "a");
  CHECK(infos[0].used_bytes == s.used("a"));
  CHECK(infos[0].quota_bytes == 0);
}

// The rule, told once more by counting.
TEST_CASE("tenant order: agrees with its rule over random operations") {
  const std::vector<std::string> names{"", "a", "b", "c", "d"};
  for (unsigned seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto below = [&](std::uint64_t n) { return random() % n; };
    const std::uint64_t limit = 100 + below(200);
    tenant_quotas quotas;
    const auto draw = [&] {
      quotas.clear();
      for (const char* name : {"a", "b", "c"})
        if (below(3)) quotas[name] = 20 + below(120);
    };
    draw();
    shelf s(limit, quotas);
    const auto entitled = [&](const std::string& tenant) {
      std::uint64_t sum = 0, given = 0;
      for (auto& [name, q] : quotas) sum += q;
      std::map<std::string, std::uint64_t> part;
      for (auto& [name, q] : quotas) given += part[name] = sum <= limit ? q : q * limit / sum;
      return quotas.contains(tenant) ? part[tenant] : limit - given;
    };
    const auto group_of = [&](const std::string& tenant) { return quotas.contains(tenant) ? tenant : std::string(); };
    const auto used = [&](const std::string& group) {
      std::uint64_t out = 0;
      for (auto& [n, b] : s.there) out += group_of(b.tenant) == group ? b.bytes : 0;
      return out;
    };
    const auto all = [&] {
      std::uint64_t out = 0;
      for (auto& [n, b] : s.there) out += b.bytes;
      return out;
    };
    for (std::uint32_t step = 0; step < 800; ++step) {
      const auto n = static_cast<std::uint32_t>(below(60));
      const auto at = s.there.find(n);
      switch (below(8)) {
        case 0:
          s.order.touch(id(n));
          break;
        case 1:
          if (at == s.there.end()) break;
          if (at->second.pins.size() < 2) {
            at->second.pins.push_back(s.order.pin(id(n)));
          } else {
            s.order.unpin(id(n), at->second.pins.back());
            at->second.pins.pop_back();
          }
          break;
        case 2:
          if (at == s.there.end()) break;
          for (auto pin : at->second.pins) s.order.unpin(id(n), pin);
          at->second.pins.clear();
          break;
        case 3:
          s.order.erase(id(n));
          s.there.erase(n);
          break;
        case 4:
          if (below(20)) break;
          draw();
          s.order.set_quotas(quotas);
          break;
        default: {
          if (at != s.there.end()) break;
          const auto& tenant = names[below(names.size())];
          const auto group = group_of(tenant);
          const std::uint64_t bytes = 1 + below(30);
          auto who = s.order.account_of(tenant);
          const auto v = s.order.judge(*who, bytes);
          const auto free_of = [&](const std::string& g) {
            std::uint64_t out = 0;
            for (auto& [i, b] : s.there) out += group_of(b.tenant) == g && b.pins.empty() ? b.bytes : 0;
            return out;
          };
          const bool over_quota = !group.empty() && used(group) + bytes > quotas[group] + free_of(group);
          REQUIRE((v == room_for::beyond_quota) == over_quota);
          if (v != room_for::fits) break;
          const bool made = s.order.make_room(*who, bytes, [&](const stored_id& gone) {
            const auto lost = s.there.find(number(gone));
            REQUIRE(lost != s.there.end());
            REQUIRE(lost->second.pins.empty());
            const auto from = group_of(lost->second.tenant);
            if (!group.empty() && used(group) + bytes > quotas[group]) {
              REQUIRE(from == group);
            } else {
              REQUIRE(all() + bytes > limit);
              const auto beyond = [&](const std::string& g) {
                const auto has = used(g) + (g == group ? bytes : 0);
                return has - std::min(has, entitled(g));
              };
              if (from != group) {
                REQUIRE(used(from) > entitled(from));
                if (free_of(group)) REQUIRE(beyond(from) >= beyond(group));
              }
              for (auto& name : names)
                if (auto g = group_of(name); g != from && free_of(g))
                  REQUIRE(beyond(g) <= std::max(beyond(from), beyond(group)));
            }
            s.there.erase(lost);
          });
          if (!made) {
            REQUIRE(!quotas.empty());
            break;
          }
          REQUIRE(all() + bytes <= limit);
          if (!group.empty()) REQUIRE(used(group) + bytes <= quotas[group]);
          s.there[n] = {tenant, bytes, std::make_unique<tenant_order::charge>(who, bytes), {}};
          s.order.insert(id(n), bytes, who);
        }
      }
      REQUIRE(s.order.used() == all());
      REQUIRE(s.order.size() == s.there.size());
      for (auto& t : s.order.tenants()) REQUIRE(t.used_bytes == s.used(t.name));
    }
  }
}
