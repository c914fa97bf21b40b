#include "support/store_contract_quotas.hpp"

#include <doctest/doctest.h>

#include "support/store_promises.hpp"

namespace cokv::test {

using namespace promises;

awaitable<void> quota_contract(cokv::store& s, std::function<void(const tenant_quotas&)> set_quotas,
                               std::uint64_t whole) {
  const auto of_a = [&] {
    for (const auto& t : s.info().tenants)
      if (t.name == "a") return t;
    return tenant_info{};
  };
  set_quotas({{"a", 3 * whole}});
  for (std::uint32_t i = 0; i < 5; ++i) CHECK(!co_await write_blocks(s, ns_a, i, 1, {.tenant = "a"}));
  CHECK(of_a().used_bytes == 3 * whole);
  CHECK(of_a().quota_bytes == 3 * whole);
  CHECK(co_await match(s, ns_a, 2, 3) == 3);  // what came first has gone
  CHECK(co_await match(s, ns_a, 0, 1) == 0);
  CHECK(s.info().evicted_blocks == 2);
  for (std::uint32_t i = 10; i < 15; ++i) CHECK(!co_await write_blocks(s, ns_a, i, 1));
  CHECK(!co_await write_blocks(s, ns_a, 15, 5, {.tenant = "b"}));
  CHECK(co_await match(s, ns_a, 2, 3) == 3);
  CHECK(co_await match(s, ns_a, 10, 10) == 10);
  CHECK(co_await write_blocks(s, ns_a, 40, 4, {.tenant = "a"}) == errc::too_large);
  // What is there already takes nothing.
  CHECK(!co_await write_blocks(s, ns_a, 2, 3, {.tenant = "a"}));
  CHECK(!co_await write_blocks(s, ns_a, 10, 5, {.tenant = "a"}));
  CHECK(co_await match(s, ns_a, 2, 3) == 3);
  {
    auto reader = co_await s.async_open_read(ns_a, contract_layout(), contract_keys(2, 3));
    CHECK(co_await write_blocks(s, ns_a, 50, 1, {.tenant = "a"}) == errc::store_full);
    CHECK(co_await match(s, ns_a, 2, 3) == 3);
  }
  {
    // What is being written counts, and what a writer found there stays.
    auto writer = co_await s.async_open_write(ns_a, contract_layout(), contract_keys(4, 2), {.tenant = "a"});
    CHECK(of_a().used_bytes == 3 * whole);
    CHECK(co_await match(s, ns_a, 4, 1) == 1);
    CHECK(co_await write_blocks(s, ns_a, 51, 2, {.tenant = "a"}) == errc::store_full);
    CHECK(!co_await write_blocks(s, ns_a, 51, 1, {.tenant = "a"}));
    CHECK(co_await match(s, ns_a, 4, 1) == 1);
    CHECK(of_a().used_bytes == 3 * whole);
  }
  co_await s.async_settle();
  CHECK(of_a().used_bytes == 2 * whole);  // it was abandoned; what went for it has gone
  CHECK(!co_await write_blocks(s, ns_a, 10, 2, {.force = true, .tenant = "a"}));  // from now on they are a's
  CHECK(of_a().used_bytes <= 3 * whole);
  CHECK(co_await match(s, ns_a, 10, 2) == 2);
  CHECK(co_await match(s, ns_a, 12, 8) == 8);
  set_quotas({{"a", whole}, {"c", whole}});
  CHECK(of_a().used_bytes > whole);  // until its next write
  CHECK(of_a().quota_bytes == whole);
  CHECK(!co_await write_blocks(s, ns_a, 60, 1, {.tenant = "a"}));
  CHECK(of_a().used_bytes == whole);
  CHECK(co_await read_blocks(s, ns_a, 60, 1) == 1);
  // Who has had none is bound from now on by what it has.
  set_quotas({{"b", 5 * whole}});
  CHECK(!co_await write_blocks(s, ns_a, 70, 2, {.tenant = "b"}));
  CHECK(s.info().tenants.size() == 2);
  for (const auto& t : s.info().tenants) CHECK(t.used_bytes == (t.name == "a" ? 1 : 5) * whole);
  CHECK(!co_await write_blocks(s, ns_a, 80, 9, {.tenant = "a"}));
}

}  // namespace cokv::test
