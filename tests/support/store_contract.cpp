#include "support/store_contract.hpp"

#include <doctest/doctest.h>

#include <boost/asio/use_future.hpp>
#include <map>
#include <random>

#include "support/store_promises.hpp"

namespace cokv::test {

using namespace promises;

namespace {

awaitable<void> the_limit_holds(cokv::store& s, std::uint64_t limit) {
  for (std::uint32_t first = 0; first < 200; first += 5) {
    CHECK(!co_await write_blocks(s, ns_a, first, 5));
    CHECK(s.info().used_bytes <= limit);
    CHECK(co_await read_blocks(s, ns_a, first, 5) == 5);  // what just came is there
  }
  CHECK(s.info().evicted_blocks > 0);
  CHECK(s.info().blocks >= 5);
  CHECK(co_await match(s, ns_a, 0, 5) < 5);
  auto [ec, writer] = co_await s.async_open_write(ns_a, contract_layout(), contract_keys(1000, 1000), {}, as_tuple());
  CHECK(ec == errc::too_large);
  CHECK(co_await match(s, ns_a, 195, 5) == 5);  // refused before anything was given up for it
}

awaitable<void> what_is_read_is_kept(cokv::store& s) {
  auto layout = contract_layout();
  CHECK(!co_await write_blocks(s, ns_a, 0, 6));
  auto [ec, reader] = co_await s.async_open_read(ns_a, layout, contract_keys(0, 6), as_tuple());
  CHECK(!ec);
  for (std::uint32_t first = 100; first < 160; first += 2) CHECK(!co_await write_blocks(s, ns_a, first, 2));
  for (std::uint32_t layer = 0; layer < layout.layers(); ++layer) {
    std::vector<buffer> into;
    for (int i = 0; i < 6; ++i) into.push_back(buffer::host(layout.segments[layer]));
    auto [read_ec, good] = co_await reader->async_read(layer, into, as_tuple());
    CHECK(!read_ec);
    CHECK(good == 6);
  }
  // All room is in use: what is read and what is being written.
  auto [full, none] = co_await s.async_open_write(ns_a, layout, contract_keys(200, 7), {}, as_tuple());
  CHECK(full == errc::store_full);
  reader.reset();
  CHECK(!co_await write_blocks(s, ns_a, 200, 7));
}

awaitable<void> agrees_with_a_model(cokv::store& s, unsigned seed, std::size_t rounds) {
  std::mt19937 random(seed);
  auto below = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); };
  std::map<std::pair<int, std::uint32_t>, bool> there;
  for (std::size_t round = 0; round < rounds; ++round) {
    int which = static_cast<int>(below(2));
    auto ns = which ? ns_b : ns_a;
    auto first = below(12), count = 1 + below(5);
    auto leading = [&] {
      std::size_t n = 0;
      while (n < count && there[{which, first + n}]) ++n;
      return n;
    };
    switch (below(4)) {
      case 0:
        CHECK(!co_await write_blocks(s, ns, first, count));
        for (std::uint32_t i = 0; i < count; ++i) there[{which, first + i}] = true;
        break;
      case 1:
        CHECK(co_await match(s, ns, first, count) == leading());
        break;
      case 2:
        CHECK(co_await read_blocks(s, ns, first, count) == leading());
        break;
      case 3: {
        auto [ec] = co_await s.async_remove(ns, contract_keys(first, 1)[0], as_tuple());
        CHECK((ec == errc::not_found) == !there[{which, first}]);
        there[{which, first}] = false;
      }
    }
  }
}

awaitable<void> one_of_everything(cokv::store& s) {
  co_await write_blocks(s, ns_a, 0, 2);
  co_await write_blocks(s, ns_a, 1, 2, {.deferred = true});
  co_await read_blocks(s, ns_a, 0, 3);
  co_await s.async_remove(ns_a, contract_keys(0, 1)[0], as_tuple());
}

}  // namespace

void store_contract(const store_maker& make, const contract_options& options) {
  auto with_store = [&](auto body, std::uint64_t limit) {
    return [&make, body, limit](asio::any_io_executor ex) -> awaitable<void> {
      auto made = co_await make(ex, limit);
      co_await body(*made.store);
    };
  };
  auto promise = [&](auto body, std::uint64_t limit = std::uint64_t{1} << 26) {
    co_test(with_store(body, limit), options.run);
  };
  SUBCASE("what is written is read, byte for byte") { promise(written_is_read); }
  SUBCASE("a prefix ends at a hole") { promise(prefix_ends_at_a_hole); }
  SUBCASE("another namespace or layout finds nothing") { promise(names_keep_apart); }
  SUBCASE("nothing shows before the commit") { promise(nothing_shows_before_the_commit); }
  SUBCASE("a commit wants all layers") { promise(a_commit_wants_all_layers); }
  SUBCASE("a layer is written once") { promise(layers_are_written_in_order); }
  SUBCASE("a reader goes forward and may stop early") { promise(a_reader_may_stop_early_or_skip); }
  SUBCASE("what is removed is gone") { promise(removed_is_gone); }
  SUBCASE("blocks never change") { promise(blocks_never_change); }
  SUBCASE("a forced write takes the place of what is there") { promise(a_forced_write_replaces); }
  SUBCASE("bad requests are refused") { promise(bad_requests_are_refused); }
  SUBCASE("two writers of a key both succeed") { promise(two_writers_of_a_key); }
  SUBCASE("deferred writes come to be") { promise(deferred_comes_to_be); }
  SUBCASE("random operations agree with a model of truth") {
    for (unsigned seed = 1; seed <= 3; ++seed)
      promise([seed, rounds = options.rounds](cokv::store& s) { return agrees_with_a_model(s, seed, rounds); });
  }
  if (options.has_limit) {
    SUBCASE("the limit holds, and what is old makes room") {
      auto limit = 12 * options.block_bytes;
      promise([limit](cokv::store& s) { return the_limit_holds(s, limit); }, limit);
    }
    SUBCASE("what is being read is not given up") { promise(what_is_read_is_kept, 9 * options.block_bytes); }
  }
  if (options.every_step) {
    SUBCASE("cancelled at every step") { cancel_at_every_step(with_store(one_of_everything, 1 << 26), options.run); }
    SUBCASE("destroyed at every step") { destroy_at_every_step(with_store(one_of_everything, 1 << 26), options.run); }
  }
  SUBCASE("any completion token") {
    asio::io_context ctx(1);
    auto work = asio::make_work_guard(ctx);
    stored made;
    asio::co_spawn(ctx, make(ctx.get_executor(), 1 << 26), [&](std::exception_ptr e, stored s) {
      CHECK(!e);
      made = std::move(s);
    });
    while (!made.store) ctx.run_one();
    auto& s = *made.store;
    auto future = s.async_match(ns_a, contract_keys(0, 1), asio::use_future);
    int called = 0;
    s.async_match(ns_a, contract_keys(0, 1), [&](error_code ec, std::size_t n) {
      CHECK(!ec);
      CHECK(n == 0);
      ++called;
    });
    CHECK(called == 0);  // never inside the initiating function
    auto later = s.async_open_read(ns_a, contract_layout(), contract_keys(0, 1));
    std::move(later)([&](error_code ec, std::unique_ptr<block_reader>) {
      CHECK(!ec);
      ++called;
    });
    while (called < 2) ctx.run_one();
    while (future.wait_for(std::chrono::seconds(0)) != std::future_status::ready) ctx.run_one();
    CHECK(future.get() == 0);
    asio::co_spawn(
        ctx,
        [&]() -> awaitable<void> {
          CHECK(co_await s.async_match(ns_a, contract_keys(0, 1), asio::use_awaitable) == 0);
          ++called;
        },
        asio::detached);
    while (called < 3) ctx.run_one();
  }
}

}  // namespace cokv::test
