// What a store in a folder tells of what comes and goes: who follows it knows what is there.
#include <doctest/doctest.h>

#include <random>
#include <set>

#include "cokv/kvstream/file_store.hpp"
#include "cokv/runtime/error.hpp"
#include "support/store_contract.hpp"

using namespace cokv;
using namespace cokv::test;
using kind = store_change::kind;

namespace {

const namespace_id ns = namespace_id::of("m", geometry::attention(3, 2, 4, dtype::f32));

// What a follower believes, and how often it was told what it knew.
struct follower {
  std::set<block_key> has;
  std::uint64_t strange = 0, removed = 0;

  void operator()(const store_change& c) {
    CHECK(c.ns == ns);
    for (const auto& key : c.keys) strange += c.what == kind::stored ? !has.insert(key).second : has.erase(key) == 0;
    if (c.what == kind::removed) removed += c.keys.size();
  }
};

// Room for about thirty blocks, in files of a few.
file_store_options options(const std::shared_ptr<follower>& f) {
  return {
      .directory = "cache", .limit_bytes = 40 * 8192, .segment_bytes = 20'000, .on_change = [f](const store_change& c) {
        (*f)(c);
      }};
}

awaitable<std::set<block_key>> there(store& s, std::uint32_t keys) {
  std::set<block_key> out;
  for (const auto& key : contract_keys(0, keys))
    if (co_await s.async_match(ns, {key}) == 1) out.insert(key);
  co_return out;
}

}  // namespace

TEST_CASE("file store: who is told what comes and goes knows what is there, through cleaning and restarts") {
  std::uint64_t runs = 0, evicted = 0, removed = 0;
  co_test(
      [&](asio::any_io_executor ex) -> awaitable<void> {
        ++runs;
        auto& context = static_cast<sim_context&>(asio::query(ex, asio::execution::context));
        std::mt19937 random(static_cast<unsigned>(context.seed()));
        auto f = std::make_shared<follower>();
        auto s = co_await file_store::async_open(ex, options(f));
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
            s.reset();
            const auto before = f->has;
            auto again = std::make_shared<follower>();
            s = co_await file_store::async_open(ex, options(again));
            CHECK(again->has.empty());  // it is not told what was there
            again->has = co_await there(*s, next);
            CHECK(again->has == before);
            removed += f->removed;
            CHECK(f->strange == 0);
            f = again;
          } else {
            const bool again = what < 4 && next != 0;
            const auto first = again ? static_cast<std::uint32_t>(random() % next) : next;
            const auto count = static_cast<std::uint32_t>(1 + random() % 4);
            CHECK(!co_await write_blocks(*s, ns, first, count, {.force = again && what == 2}));
            next = std::max(next, first + count);
          }
          co_await s->async_settle();
          CHECK(f->has == co_await there(*s, next));
        }
        removed += f->removed;
        CHECK(f->strange == 0);
        evicted += s->info().evicted_blocks;
        CHECK(co_await s->async_match(ns, contract_keys(0, 1)) <= 1);
      },
      {.real = false, .seeds = seeds_of_a_suite});
  if (one_seed()) return;
  CHECK(evicted > 2 * runs);
  CHECK(removed > evicted);
}

TEST_CASE("file store: a block that is replaced is told as removed and stored, and the end of a store tells nothing") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto told = std::make_shared<std::vector<std::pair<kind, std::vector<block_key>>>>();
        using all = std::decay_t<decltype(*told)>;
        auto s = co_await file_store::async_open(
            ex, {.directory = "cache", .limit_bytes = 64 << 20, .on_change = [told](const store_change& c) {
                   told->emplace_back(c.what, c.keys);
                 }});
        CHECK(!co_await write_blocks(*s, ns, 0, 3));
        CHECK(*told == all{{kind::stored, contract_keys(0, 3)}});
        told->clear();
        CHECK(!co_await write_blocks(*s, ns, 0, 2));  // there already
        CHECK(told->empty());
        CHECK(!co_await write_blocks(*s, ns, 1, 3, {.force = true}));
        CHECK(*told == all{{kind::removed, contract_keys(1, 2)}, {kind::stored, contract_keys(1, 3)}});
        told->clear();
        co_await s->async_remove(ns, contract_keys(0, 1)[0]);
        CHECK(*told == all{{kind::removed, contract_keys(0, 1)}});
        told->clear();
        s.reset();
        CHECK(told->empty());
      },
      {.real = false});
}
