// Whose blocks are whose in a folder: what is written, replaced, removed, cleaned and opened again keeps its owner.
#include <doctest/doctest.h>

#include <map>
#include <random>

#include "cokv/kvstream/file_store.hpp"
#include "cokv/runtime/error.hpp"
#include "support/store_contract.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

const namespace_id ns = namespace_id::of("m", geometry::attention(3, 2, 4, dtype::f32));

// Room for about thirty blocks, in files of a few.
file_store_options options() {
  return {.directory = "cache", .limit_bytes = 40 * 8192, .digest = digest_algorithm::xxh3_64, .segment_bytes = 20'000};
}

awaitable<bool> there(cokv::store& s, std::uint32_t key) {
  co_return co_await s.async_match(ns, contract_keys(key, 1)) == 1;
}

using bytes_of = std::map<std::string, std::uint64_t>;

awaitable<bytes_of> expected(cokv::store& s, const std::map<std::uint32_t, std::string>& owners) {
  bytes_of out;
  for (const auto& [key, who] : owners)
    if (!who.empty() && co_await there(s, key)) out[who] += contract_layout().bytes();
  co_return out;
}

bytes_of told(const store_info& i) {
  bytes_of out;
  for (const auto& t : i.tenants) out[t.name] = t.used_bytes;
  return out;
}

}  // namespace

TEST_CASE("file store: whatever happens to blocks, what each tenant has adds up, and is the same after a restart") {
  std::uint64_t runs = 0, evicted = 0, lasted = 0;
  co_test(
      [&](asio::any_io_executor ex) -> awaitable<void> {
        ++runs;
        auto& context = static_cast<sim_context&>(asio::query(ex, asio::execution::context));
        std::mt19937 random(static_cast<unsigned>(context.seed()));
        const std::string tenants[] = {"", "a", std::string(255, 'b')};
        std::map<std::uint32_t, std::string> owners;
        auto s = co_await file_store::async_open(ex, options());
        std::uint32_t next = 0;
        for (int step = 0; step < 60; ++step) {
          // Those that come first are asked for again and again: they are carried over.
          if (const auto n = std::min<std::uint32_t>(next, 3); n != 0) (void)co_await read_blocks(*s, ns, 0, n);
          const auto what = random() % 8;
          if (what == 0 && next != 0) {
            const auto key = static_cast<std::uint32_t>(3 + random() % next);
            (void)co_await s->async_remove(ns, contract_keys(key, 1)[0], asio::as_tuple(asio::deferred));
          } else if (what == 1) {
            evicted += s->info().evicted_blocks;
            const auto before = told(s->info());
            s.reset();
            s = co_await file_store::async_open(ex, options());
            CHECK(told(s->info()) == before);
          } else {
            const bool again = what == 2 && next != 0, force = again && random() % 2 == 0;
            const auto first = again ? static_cast<std::uint32_t>(random() % next) : next;
            const auto count = static_cast<std::uint32_t>(1 + random() % 4);
            const auto& who = tenants[random() % 3];
            std::map<std::uint32_t, std::string> taken;
            for (auto key = first; key < first + count; ++key)
              if (force || !co_await there(*s, key)) taken[key] = who;
            CHECK(!co_await write_blocks(*s, ns, first, count, {.force = force, .tenant = who}));
            for (auto& [key, by] : taken) owners[key] = by;
            next = std::max(next, first + count);
          }
          co_await s->async_settle();  // nothing is cleaned while it is counted
          const auto has = co_await expected(*s, owners);
          CHECK(told(s->info()) == has);
        }
        evicted += s->info().evicted_blocks;
        lasted += co_await there(*s, 0);
      },
      {.real = false, .seeds = seeds_of_a_suite});
  if (one_seed()) return;
  CHECK(evicted > 2 * runs);
  CHECK(lasted > runs / 5);
}

TEST_CASE("file store: a tenant's name has at most 255 bytes") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto s = co_await file_store::async_open(ex, options());
        CHECK(co_await write_blocks(*s, ns, 0, 1, {.tenant = std::string(256, 'x')}) == errc::invalid_argument);
        CHECK(!co_await write_blocks(*s, ns, 0, 1, {.tenant = std::string(255, 'x')}));
        CHECK(told(s->info()) == bytes_of{{std::string(255, 'x'), contract_layout().bytes()}});
      },
      {.real = false});
}
