#include "cokv/kvstream/cluster_store.hpp"

#include <doctest/doctest.h>

#include <numeric>

#include "cokv/kvstream/memory_store.hpp"
#include "cokv/kvstream/rendezvous.hpp"
#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "kvstream/store/cluster_fixture.hpp"
#include "support/store_contract.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace std::chrono_literals;

TEST_CASE("cluster store: the contract, over three memories") {
  store_contract(
      [](asio::any_io_executor ex, std::uint64_t) -> awaitable<stored> {
        std::vector<cluster_node> nodes;
        for (const char* name : {"a", "b", "c"})
          nodes.push_back({name, std::make_shared<memory_store>(ex, memory_store_options{1 << 26})});
        co_return stored{std::make_unique<cluster_store>(ex, std::move(nodes)), nullptr};
      },
      {.has_limit = false});
}

TEST_CASE("cluster store: a block lies on the node that its stretch names, and on no other") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    cluster c(ex, 3);
    const auto keys = c.prompt(1, 300);
    CHECK(!co_await c.write(keys));
    std::size_t stored = 0;
    for (std::size_t n = 0; n < 3; ++n) {
      for (const auto& key : keys) CHECK(c.nodes[n]->kept.contains(key) == (c.where.node_of(key) == n));
      stored += c.nodes[n]->kept.size();
      CHECK(c.nodes[n]->calls == 1 + static_cast<int>(cluster::layout().layers()) + 1);  // one request each
    }
    CHECK(stored == keys.size());
    CHECK(co_await c.read(keys) == 300);
    CHECK(co_await c.all->async_match(c.ns, keys, as_result) == 300);
  });
}

TEST_CASE("cluster store: a node that hangs is waited for once, and then passed by until its back-off is over") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        std::vector<std::string> said;
        cluster c(ex, 3,
                  {.on_node_bad = [&](auto node, error_code why) { said.push_back(std::string(node) + why.message()); },
                   .on_node_good = [&](auto node) { said.push_back(std::string(node)); }});
        const auto keys = c.prompt(1, 60);
        CHECK(!co_await c.write(keys));
        auto& time = clock::of(ex);
        const auto bad = c.where.node_of(keys[20]);
        const auto share = static_cast<std::size_t>(
            std::ranges::find_if(keys, [&](const auto& k) { return c.where.node_of(k) == bad; }) - keys.begin());
        c.nodes[bad]->fault.hang = 1;
        auto before = time.now();
        CHECK(co_await c.all->async_match(c.ns, keys, as_result) == share);
        CHECK(time.now() - before == 250ms);
        CHECK(said == std::vector<std::string>{c.names[bad] + make_error_code(errc::deadline).message()});
        const auto calls = c.nodes[bad]->calls;
        for (int i = 0; i < 5; ++i) {
          before = time.now();
          CHECK(co_await c.all->async_match(c.ns, keys, as_result) == share);
          CHECK(co_await c.read(keys) == share);
          CHECK(time.now() - before < 50ms);
        }
        CHECK(c.nodes[bad]->calls == calls);
        CHECK(c.all->nodes()[bad].bad);
        CHECK(c.all->nodes()[bad].passed_by == 10);
        CHECK(c.all->nodes()[bad].errors == 1);
        c.nodes[bad]->fault.hang = 0;
        co_await time.async_wait_for(1s, asio::deferred);
        CHECK(co_await c.all->async_match(c.ns, keys, as_result) == 60);
        CHECK(said.back() == c.names[bad]);
        CHECK(co_await c.read(keys) == 60);
      },
      {.real = false, .seeds = 10});
}

TEST_CASE("cluster store: what one node does not take is said block by block, and the others have theirs") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    for (const int when : {0, 1, 2}) {  // opening, in a layer, at the commit
      cluster c(ex, 3);
      const auto keys = c.prompt(2, 80);
      const auto bad = c.where.node_of(keys[0]);
      if (when == 0) c.nodes[bad]->fault.error = 1;
      auto [ec, writer] = co_await c.all->async_open_write(c.ns, cluster::layout(), keys, {}, tuple);
      CHECK(!ec);
      if (ec) co_return;
      for (std::uint32_t layer = 0; layer < cluster::layout().layers(); ++layer) {
        if (when == 1 && layer == 1) c.nodes[bad]->fault.error = 1;
        auto [wec] = co_await writer->async_write(layer, c.segments(keys, layer), tuple);
        CHECK(!wec);
      }
      if (when == 2) c.nodes[bad]->fault.error = 1;
      auto [cec] = co_await writer->async_commit(tuple);
      CHECK(cec == errc::partial);
      CHECK(writer->kept() == 0);
      std::uint64_t kept = 0;
      for (std::size_t i = 0; i < keys.size(); ++i) {
        CHECK(writer->keeps(i) == (c.where.node_of(keys[i]) != bad));
        CHECK(c.nodes[c.where.node_of(keys[i])]->kept.contains(keys[i]) == writer->keeps(i));
        kept += writer->keeps(i);
      }
      CHECK(kept > 0);
      CHECK(c.all->nodes()[bad].lost_blocks == keys.size() - kept);
      CHECK(c.all->nodes()[bad].bad);
      // While it is bad its blocks are refused at once, and that is no failure of the others.
      const std::vector own(keys.begin(), keys.begin() + 1);
      auto [alone, none] = co_await c.all->async_open_write(c.ns, cluster::layout(), own, {}, tuple);
      CHECK(alone == errc::partial);
      CHECK(!none);
    }
  });
}

TEST_CASE("cluster store: what was begun before a node went bad does not say that it is back") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    int good = 0, bad = 0;
    cluster c(ex, 2, {.on_node_bad = [&](auto, error_code) { ++bad; }, .on_node_good = [&](auto) { ++good; }});
    const auto keys = c.prompt(8, 60);
    CHECK(!co_await c.write(keys));
    const auto node = c.where.node_of(keys[0]);
    auto [ec, writer] = co_await c.all->async_open_write(c.ns, cluster::layout(), keys, {}, tuple);
    CHECK(!ec);
    if (ec) co_return;
    c.nodes[node]->fault.error = 1;
    CHECK(co_await c.all->async_match(c.ns, keys, as_result) == 0);
    c.nodes[node]->fault.error = 0;
    for (std::uint32_t layer = 0; layer < cluster::layout().layers(); ++layer)
      CHECK(co_await writer->async_write(layer, c.segments(keys, layer), as_result));
    CHECK(co_await writer->async_commit(as_result));
    CHECK(c.all->nodes()[node].bad);
    CHECK((bad == 1 && good == 0));
  });
}

TEST_CASE("cluster store: what is cancelled says so, and not that blocks are missing") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        cluster c(ex, 3);
        const auto keys = c.prompt(9, 100);
        CHECK(!co_await c.write(keys));
        auto [ec, reader] = co_await c.all->async_open_read(c.ns, cluster::layout(), keys, tuple);
        CHECK(!ec);
        if (ec) co_return;
        for (auto& n : c.nodes) n->fault.hang = 1;
        CHECK((co_await with_deadline(c.all->async_match(c.ns, keys), 100ms)).error() == errc::deadline);
        CHECK((co_await with_deadline(c.all->async_match(c.ns, {keys[0]}), 100ms)).error() == errc::deadline);
        CHECK((co_await with_deadline(c.all->async_open_read(c.ns, cluster::layout(), keys), 100ms)).error() ==
              errc::deadline);
        CHECK((co_await with_deadline(reader->async_read(0, c.room(100, 0)), 100ms)).error() == errc::deadline);
        for (const auto& n : c.all->nodes()) CHECK(!n.bad);  // nothing was learned
      },
      {.real = false, .seeds = 5});
}

TEST_CASE("cluster store: a node without room refuses its own share alone") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    const auto one = cluster::layout().bytes();
    auto small = std::make_shared<memory_store>(ex, memory_store_options{2 * one});
    auto large = std::make_shared<memory_store>(ex, memory_store_options{1000 * one});
    cluster_store all(ex, {{"a", small}, {"b", large}});
    const rendezvous where(std::vector<std::string>{"a", "b"});
    cluster c(ex, 1);
    const auto keys = c.prompt(3, 120);
    auto [ec, writer] = co_await all.async_open_write(c.ns, cluster::layout(), keys, {}, tuple);
    CHECK(!ec);
    if (ec) co_return;
    for (std::uint32_t layer = 0; layer < cluster::layout().layers(); ++layer)
      CHECK(co_await writer->async_write(layer, c.segments(keys, layer), as_result));
    auto [cec] = co_await writer->async_commit(tuple);
    CHECK(cec == errc::store_full);
    for (std::size_t i = 0; i < keys.size(); ++i) CHECK(writer->keeps(i) == (where.node_of(keys[i]) == 1));
    CHECK(!all.nodes()[0].bad);
    CHECK(small->info().blocks == 0);
    CHECK(large->info().blocks == static_cast<std::uint64_t>(std::ranges::count_if(
                                      keys, [&](const auto& k) { return where.node_of(k) == 1; })));
  });
}

TEST_CASE("cluster store: with all nodes bad operations fail at once") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        cluster c(ex, 2);
        const auto keys = c.prompt(4, 80);
        for (auto& n : c.nodes) n->fault.error = 1;
        CHECK((co_await c.all->async_match(c.ns, keys, as_result)).error() == errc::unavailable);
        const auto before = clock::of(ex).now();
        CHECK((co_await c.all->async_match(c.ns, keys, as_result)).error() == errc::unavailable);
        auto [wec, writer] = co_await c.all->async_open_write(c.ns, cluster::layout(), keys, {}, tuple);
        CHECK(wec == errc::unavailable);
        auto [rec, reader] = co_await c.all->async_open_read(c.ns, cluster::layout(), keys, tuple);
        CHECK(rec == errc::unavailable);
        auto [gone] = co_await c.all->async_remove(c.ns, keys[0], tuple);
        CHECK(gone == errc::unavailable);
        CHECK(clock::of(ex).now() == before);
      },
      {.real = false, .seeds = 5});
}

TEST_CASE("cluster store: nobody is asked for what lies behind the end of the prefix") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    cluster c(ex, 3);
    const auto keys = c.prompt(5, 120);
    CHECK(!co_await c.write(keys));
    c.nodes[c.where.node_of(keys[50])]->kept.erase(keys[50]);
    auto [ec, reader] = co_await c.all->async_open_read(c.ns, cluster::layout(), keys, tuple);
    CHECK(!ec);
    if (ec) co_return;
    CHECK(reader->found() == 50);
    std::vector<buffer> into;  // for what was found alone: the nodes' readers want no more
    for (int i = 0; i < 50; ++i) into.push_back(buffer::host(cluster::layout().segments[0]));
    CHECK(co_await reader->async_read(0, into, as_result) == 50);
    CHECK(co_await c.read(keys) == 50);
  });
}

TEST_CASE("cluster store: a node that fails under a read ends the prefix at its first block") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    cluster c(ex, 3);
    const auto keys = c.prompt(6, 100);
    CHECK(!co_await c.write(keys));
    const auto bad = c.where.node_of(keys[60]);
    const auto first = static_cast<std::size_t>(
        std::ranges::find_if(keys, [&](const auto& k) { return c.where.node_of(k) == bad; }) - keys.begin());
    auto [ec, reader] = co_await c.all->async_open_read(c.ns, cluster::layout(), keys, tuple);
    CHECK(!ec);
    if (ec) co_return;
    CHECK(reader->found() == 100);
    for (std::uint32_t layer = 0; layer < cluster::layout().layers(); ++layer) {
      if (layer == 1) c.nodes[bad]->fault.error = 1;
      auto into = c.room(100, layer);
      CHECK(co_await reader->async_read(layer, into, as_result) == (layer == 0 ? 100 : first));
      for (std::size_t i = 0; i < first; ++i) CHECK(c.right(into[i], keys[i], layer));
    }
    for (auto& n : c.nodes) CHECK(n->readers <= 1);
    CHECK(c.nodes[bad]->readers == 0);
  });
}

TEST_CASE("cluster store: a node that comes has nothing, its share alone is missing; who began before ends as before") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    cluster c(ex, 3);
    std::vector<std::vector<block_key>> prompts;
    for (std::int32_t p = 0; p < 20; ++p) prompts.push_back(c.prompt(100 + p, 30));
    for (const auto& keys : prompts) CHECK(!co_await c.write(keys));
    auto [ec, before] = co_await c.all->async_open_read(c.ns, cluster::layout(), prompts[0], tuple);
    CHECK(!ec);
    auto [wec, half] = co_await c.all->async_open_write(c.ns, cluster::layout(), c.prompt(200, 30), {}, tuple);
    CHECK(!wec);
    if (ec || wec) co_return;

    auto fourth = std::make_shared<fault_store>(ex, 9);
    std::vector<cluster_node> now;
    for (const auto& name : c.names) now.push_back({name, nullptr});
    now.push_back({"n3", fourth});
    c.all->set_nodes(now);
    auto names = c.names;
    names.push_back("n3");
    const rendezvous where(names);
    std::size_t missing = 0;
    for (const auto& keys : prompts) {
      const auto moved = static_cast<std::size_t>(
          std::ranges::find_if(keys, [&](const auto& k) { return where.node_of(k) == 3; }) - keys.begin());
      CHECK(co_await c.all->async_match(c.ns, keys, as_result) == moved);
      CHECK(co_await c.read(keys) == moved);
      missing += moved != keys.size();
      CHECK(!co_await c.write(keys));  // computed again, stored again
      CHECK(co_await c.read(keys) == keys.size());
      for (const auto& key : keys) CHECK(fourth->kept.contains(key) == (where.node_of(key) == 3));
    }
    CHECK(missing > 3);
    CHECK(missing < 20);

    auto into = c.room(30, 0);
    CHECK(co_await before->async_read(0, into, as_result) == 30);  // on the nodes that it began with
    for (std::uint32_t layer = 0; layer < cluster::layout().layers(); ++layer)
      CHECK(co_await half->async_write(layer, c.segments(c.prompt(200, 30), layer), as_result));
    CHECK(co_await half->async_commit(as_result));
    for (const auto& key : c.prompt(200, 30)) CHECK(c.nodes[c.where.node_of(key)]->kept.contains(key));

    c.all->set_nodes({{c.names[0]}, {c.names[1]}});  // and two go
    CHECK(c.all->nodes().size() == 2);
    CHECK(c.all->nodes()[0].written_blocks > 0);  // its counters stayed
    for (const auto& keys : prompts) {
      CHECK(!co_await c.write(keys));
      CHECK(co_await c.read(keys) == keys.size());
    }
  });
}

TEST_CASE("cluster store: nodes that make no sense are refused, and nothing changes") {
  asio::io_context context(1);
  const auto ex = context.get_executor();
  const auto some = std::make_shared<fault_store>(ex, 1);
  CHECK_THROWS_AS(cluster_store(ex, {}), config_error);
  CHECK_THROWS_AS(cluster_store(ex, {{"a", nullptr}}), config_error);
  CHECK_THROWS_AS(cluster_store(ex, {{"", some}}), config_error);
  CHECK_THROWS_AS(cluster_store(ex, {{"a", some}, {"a", some}}), config_error);
  CHECK_THROWS_AS(cluster_store(ex, std::vector<cluster_node>(257, {"a", some})), config_error);
  cluster_store one(ex, {{"a", some}});
  CHECK_THROWS_AS(one.set_nodes({{"a", nullptr}, {"b", nullptr}}), config_error);
  CHECK(one.nodes().size() == 1);
}
