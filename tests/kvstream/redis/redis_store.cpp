#include "cokv/kvstream/redis_store.hpp"

#include <doctest/doctest.h>

#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/sim_net.hpp"
#include "kvstream/redis/fake_redis.hpp"
#include "store/redis/head.hpp"
#include "store/redis/slots.hpp"
#include "support/store_contract.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace std::chrono_literals;

namespace {

const namespace_id ns = namespace_id::of("m", geometry::attention(3, 2, 4, dtype::f32));
constexpr auto tuple = asio::as_tuple(asio::deferred);

std::string name_of(std::uint32_t key) { return detail::head_name(ns, contract_keys(key, 1)[0]); }

// Which of three nodes has a block.
std::size_t node_of(const fake_redis_nodes& all, std::uint32_t key) {
  return static_cast<std::size_t>(all.slots->owner[detail::slot_of(name_of(key))]);
}

fake_redis::entry* find(fake_redis_nodes& all, const std::string& part) {
  for (auto& n : all.nodes)
    for (auto& [key, entry] : n->kept)
      if (key.find(part) != key.npos) return &entry;
  return nullptr;
}

const co_options virtual_time{.real = false, .seeds = 10};

}  // namespace

TEST_CASE("redis store: the contract, on one node") {
  store_contract(
      [](asio::any_io_executor ex, std::uint64_t) -> awaitable<stored> {
        auto nodes = std::make_shared<fake_redis_nodes>(ex);
        co_return stored{std::make_unique<redis_store>(ex, nodes->url(), redis_store_options{.piece_bytes = 3000}),
                         nodes};
      },
      {.run = {.seeds = 5}, .has_limit = false, .rounds = 20});
}

TEST_CASE("redis store: the contract, on a cluster of three") {
  store_contract(
      [](asio::any_io_executor ex, std::uint64_t) -> awaitable<stored> {
        auto nodes = std::make_shared<fake_redis_nodes>(ex, 3);
        co_return stored{std::make_unique<redis_store>(ex, nodes->url()), nodes};
      },
      {.run = {.seeds = 5}, .has_limit = false, .every_step = false, .rounds = 20});
}

TEST_CASE("redis store: a block is visible when its head is there, and a lost or damaged piece takes it away") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    fake_redis_nodes all(ex);
    redis_store s(ex, all.url(), {.piece_bytes = 3000});
    CHECK(!co_await write_blocks(s, ns, 0, 4));
    CHECK(all.nodes[0]->kept.size() == 4 * (1 + 1 + 1 + 1 + 7));  // heads and pieces of 20,000 bytes
    for (const auto& [key, entry] : all.nodes[0]->kept) CHECK(!entry.until);
    CHECK(co_await read_blocks(s, ns, 0, 4) == 4);
    CHECK(all.nodes[0]->kept.erase(detail::piece_names(
              *detail::redis_head::decode(find(all, name_of(2))->value, ns, contract_keys(2, 1)[0]))[4]) == 1);
    CHECK(co_await s.async_match(ns, contract_keys(0, 4), as_result) == 4);  // nobody has looked
    CHECK(co_await read_blocks(s, ns, 0, 4) == 2);
    // Its head goes with it, so that it can be written again.
    for (int i = 0; i < 1000 && all.nodes[0]->kept.contains(name_of(2)); ++i)
      co_await clock::of(ex).async_wait_for(1ms, asio::deferred);
    CHECK(co_await s.async_match(ns, contract_keys(0, 4), as_result) == 2);
    CHECK(!co_await write_blocks(s, ns, 0, 4));
    CHECK(co_await read_blocks(s, ns, 0, 4) == 4);

    find(all, name_of(1) + ":")->value[5] ^= 1;
    CHECK(co_await read_blocks(s, ns, 0, 4) == 1);
    CHECK(s.info().digest_failures == 1);
    find(all, name_of(0))->value += "x";  // no head any more
    CHECK(co_await read_blocks(s, ns, 0, 4) == 0);
    CHECK(!co_await write_blocks(s, ns, 0, 4));
    CHECK(co_await read_blocks(s, ns, 0, 4) == 4);
  });
}

TEST_CASE("redis store: a head never outlives its pieces") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        fake_redis_nodes all(ex);
        redis_store s(ex, all.url(), {.piece_bytes = 3000, .ttl = 100s, .unfinished = 300s});
        auto& time = clock::of(ex);
        const auto check = [&](duration least) {
          for (const auto& [key, entry] : all.nodes[0]->kept) {
            CHECK(entry.until.has_value());
            if (key.find(":", key.size() - 6) != key.npos) continue;
            CHECK(*entry.until > time.now() + least);
            for (const auto& [piece, of] : all.nodes[0]->kept)
              if (piece != key && piece.starts_with(key)) CHECK(*of.until > *entry.until);
          }
        };
        auto [ec, writer] = co_await s.async_open_write(ns, contract_layout(), contract_keys(0, 2), {}, tuple);
        CHECK(!ec);
        if (ec) co_return;
        for (std::uint32_t layer = 0; layer < 4; ++layer) {
          CHECK(co_await writer->async_write(layer, contract_segments(0, 2, layer), as_result));
          co_await time.async_wait_for(60s, asio::deferred);  // longer than the ttl, together
        }
        CHECK(co_await writer->async_commit(as_result));
        check(99s);
        co_await time.async_wait_for(70s, asio::deferred);
        CHECK(co_await s.async_match(ns, contract_keys(0, 1), match_options{.refresh = true}, as_result) == 1);
        check(29s);
        co_await time.async_wait_for(70s, asio::deferred);
        CHECK(co_await read_blocks(s, ns, 0, 2) == 1);  // the other one was not refreshed
        co_await time.async_wait_for(31s, asio::deferred);
        CHECK(co_await s.async_match(ns, contract_keys(0, 1), as_result) == 0);

        // Too slow: what was not committed is gone, and the commit says so.
        auto [slow_ec, slow] = co_await s.async_open_write(ns, contract_layout(), contract_keys(0, 1), {}, tuple);
        CHECK(!slow_ec);
        for (std::uint32_t layer = 0; layer < 4; ++layer) {
          CHECK(co_await slow->async_write(layer, contract_segments(0, 1, layer), as_result));
          co_await time.async_wait_for(100s, asio::deferred);
        }
        CHECK((co_await slow->async_commit(as_result)).error() == errc::deadline);
        CHECK(!slow->keeps(0));
        CHECK(co_await s.async_match(ns, contract_keys(0, 1), as_result) == 0);
      },
      virtual_time);
}

TEST_CASE("redis store: nothing is left behind by a writer that gives up") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    fake_redis_nodes all(ex);
    redis_store s(ex, all.url());
    {
      auto [ec, writer] = co_await s.async_open_write(ns, contract_layout(), contract_keys(0, 3), {}, tuple);
      CHECK(!ec);
      CHECK(co_await writer->async_write(0, contract_segments(0, 3, 0), as_result));
      CHECK(all.nodes[0]->kept.size() == 3);
      for (const auto& [key, entry] : all.nodes[0]->kept) CHECK(entry.until.has_value());  // nor if its process ends
    }
    for (int i = 0; i < 1000 && !all.nodes[0]->kept.empty(); ++i)
      co_await clock::of(ex).async_wait_for(1ms, asio::deferred);
    CHECK(all.nodes[0]->kept.empty());
    CHECK(s.info().failed_writes == 3);
  });
}

TEST_CASE("redis store: two writers of a key don't mix, and the loser's pieces go") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    fake_redis_nodes all(ex);
    redis_store s(ex, all.url()), t(ex, all.url());
    auto [a_ec, a] = co_await s.async_open_write(ns, contract_layout(), contract_keys(0, 1), {}, tuple);
    auto [b_ec, b] = co_await t.async_open_write(ns, contract_layout(), contract_keys(0, 1), {}, tuple);
    CHECK((!a_ec && !b_ec));
    for (std::uint32_t layer = 0; layer < 4; ++layer) {
      CHECK(co_await a->async_write(layer, contract_segments(0, 1, layer), as_result));
      CHECK(co_await b->async_write(layer, contract_segments(7, 1, layer), as_result));  // other bytes
    }
    CHECK(co_await a->async_commit(as_result));
    CHECK(co_await b->async_commit(as_result));
    CHECK((a->keeps(0) && b->keeps(0)));
    CHECK(co_await read_blocks(s, ns, 0, 1) == 1);
    CHECK(all.nodes[0]->kept.size() == 5);
    CHECK(s.info().written_blocks == 1);
    CHECK(t.info().written_blocks == 0);
  });
}

TEST_CASE("redis store: who replaces what others replace all the time gives up, and leaves nothing behind") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    for (const int others : {20, 1'000'000}) {  // commits under which another one came
      CAPTURE(others);
      fake_redis_nodes all(ex);
      auto& node = *all.nodes[0];
      redis_store s(ex, all.url());
      CHECK(!co_await write_blocks(s, ns, 0, 1));
      const auto kept = node.kept.size();
      int commits = 0;
      node.instead = [&](const auto& command) -> std::optional<std::string> {
        if (command[0] != "EVAL" || command[1].find("PERSIST") == std::string::npos || ++commits > others)
          return std::nullopt;
        const auto other = "another, the " + std::to_string(commits) + "th";
        return "$" + std::to_string(other.size()) + "\r\n" + other + "\r\n";
      };
      const auto ec = co_await write_blocks(s, ns, 0, 1, {.force = true});
      CHECK(ec == (others == 20 ? error_code() : make_error_code(errc::in_use)));
      CHECK(commits == (others == 20 ? 22 : 64));
      for (int i = 0; i < 1000 && others != 20 && node.kept.size() != kept; ++i)
        co_await clock::of(ex).async_wait_for(std::chrono::milliseconds(1), asio::deferred);
      if (others != 20) CHECK(node.kept.size() == kept);  // its pieces went, and the block stays
      CHECK(co_await read_blocks(s, ns, 0, 1) == 1);
    }
  });
}

TEST_CASE("redis store: what is replaced goes by itself, though its writer dies, or two replace it at once") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    fake_redis_nodes all(ex);
    auto& node = *all.nodes[0];
    const auto head = [&] { return node.kept.at(name_of(0)).value; };
    // Pieces that the head does not name; of those, the ones that stay for more than a minute.
    const auto left_behind = [&] {
      const auto named = detail::piece_names(*detail::redis_head::decode(head(), ns, contract_keys(0, 1)[0]));
      std::pair<int, int> out;
      for (const auto& [key, entry] : node.kept) {
        if (key == name_of(0) || std::ranges::find(named, key) != named.end()) continue;
        ++out.first;
        out.second += !entry.until || *entry.until > clock::of(ex).now() + 60s;
      }
      return out;
    };
    redis_store s(ex, all.url(), {.piece_bytes = 3000}), t(ex, all.url(), {.piece_bytes = 3000});
    CHECK(!co_await write_blocks(s, ns, 0, 1));
    node.instead = [&, first = head()](const auto&) -> std::optional<std::string> {
      return head() == first ? std::nullopt : std::optional<std::string>("");  // no more is heard of it
    };
    CHECK(!co_await write_blocks(s, ns, 0, 1, {.force = true}));
    node.instead = {};
    CHECK(left_behind() == std::pair(10, 0));

    auto open = [&](redis_store& by) -> awaitable<std::unique_ptr<block_writer>> {
      auto writer = co_await by.async_open_write(ns, contract_layout(), contract_keys(0, 1), {.force = true});
      for (std::uint32_t layer = 0; layer < 4; ++layer)
        co_await writer->async_write(layer, contract_segments(0, 1, layer));
      co_return writer;
    };
    const auto a = co_await open(t);
    redis_store u(ex, all.url(), {.piece_bytes = 3000});
    const auto b = co_await open(u);
    auto both = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      for (auto* writer : {a.get(), b.get()})
        group.spawn([writer]() -> awaitable<void> { CHECK(co_await writer->async_commit(as_result)); });
      co_return;
    });
    CHECK(both);
    CHECK(left_behind() == std::pair(30, 0));
    CHECK(co_await read_blocks(u, ns, 0, 1) == 1);
  });
}

TEST_CASE("redis store: a slot that has moved, or is on its way, is followed") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    fake_redis_nodes all(ex, 3);
    redis_store s(ex, "redis://" + all.nodes[0]->at.to_string());  // the others are found
    CHECK(!co_await write_blocks(s, ns, 0, 12));
    for (auto& n : all.nodes) CHECK(!n->kept.empty());
    const auto slot = detail::slot_of(name_of(3));
    const auto from = node_of(all, 3), to = (from + 1) % 3;
    all.slots->importing[slot] = static_cast<int>(to);
    // The head is still here, some pieces are there already.
    std::size_t moved = 0;
    for (auto at = all.nodes[from]->kept.begin(); at != all.nodes[from]->kept.end();) {
      if (detail::slot_of(at->first) == slot && at->first != name_of(3) && moved < 2) {
        all.nodes[to]->kept.insert(all.nodes[from]->kept.extract(at++));
        ++moved;
      } else {
        ++at;
      }
    }
    CHECK(moved == 2);
    CHECK(co_await read_blocks(s, ns, 0, 12) == 12);
    const auto before = all.nodes[to]->commands;
    for (auto at = all.nodes[from]->kept.begin(); at != all.nodes[from]->kept.end();)
      if (detail::slot_of(at->first) == slot)
        all.nodes[to]->kept.insert(all.nodes[from]->kept.extract(at++));
      else
        ++at;
    CHECK(co_await read_blocks(s, ns, 0, 12) == 12);  // all asked for there, while it is not its own yet
    CHECK(all.nodes[to]->commands > before);
    all.slots->importing.clear();
    all.slots->owner[slot] = static_cast<int>(to);
    CHECK(co_await read_blocks(s, ns, 0, 12) == 12);
    CHECK(!co_await write_blocks(s, ns, 3, 1, {.force = true}));
    CHECK(co_await read_blocks(s, ns, 3, 1) == 1);
  });
}

TEST_CASE("redis store: a commit waits while its keys are on their way, and says TRYAGAIN if that takes too long") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        fake_redis_nodes all(ex);
        redis_store s(ex, all.url());
        int refusals = 3;
        all.nodes[0]->instead = [&](const auto& command) -> std::optional<std::string> {
          if (command[0] != "EVAL" || refusals-- <= 0) return std::nullopt;
          return "-TRYAGAIN Multiple keys request during rehashing of slot\r\n";
        };
        CHECK(!co_await write_blocks(s, ns, 0, 1));
        refusals = 1000;
        CHECK(co_await write_blocks(s, ns, 1, 1) == redis_errc::try_again);
      },
      virtual_time);
}

TEST_CASE("redis store: what Redis refuses is an error with its own text, and what it has no room for is no room") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    fake_redis_nodes all(ex);
    redis_store s(ex, all.url());
    const std::pair<const char*, redis_errc> refusals[] = {
        {"-READONLY You can't write\r\n", redis_errc::read_only},
        {"-CLUSTERDOWN The cluster is down\r\n", redis_errc::cluster_down},
        {"-NOPERM no\r\n", redis_errc::no_permission},
        {"-MISCONF no\r\n", redis_errc::not_writable},
        {"-ERR what\r\n", redis_errc::refused}};
    for (const auto& [text, code] : refusals) {
      all.nodes[0]->instead = [text = std::string(text)](const auto& command) -> std::optional<std::string> {
        return command[0] == "SET" ? std::optional(text) : std::nullopt;
      };
      const auto ec = co_await write_blocks(s, ns, 0, 1);
      CHECK(ec == code);
      CHECK(ec.message() != "unknown error of Redis");
    }
    all.nodes[0]->instead = {};
    all.nodes[0]->limit_bytes = 50'000;
    auto [ec, writer] = co_await s.async_open_write(ns, contract_layout(), contract_keys(0, 5), {}, tuple);
    CHECK(!ec);
    for (std::uint32_t layer = 0; layer < 4; ++layer)
      CHECK(co_await writer->async_write(layer, contract_segments(0, 5, layer), as_result));
    auto [full] = co_await writer->async_commit(tuple);
    CHECK(full == errc::store_full);
    std::size_t kept = 0;
    for (std::size_t i = 0; i < 5; ++i) {
      kept += writer->keeps(i);
      CHECK(co_await s.async_match(ns, {contract_keys(0, 5)[i]}, as_result) == (writer->keeps(i) ? 1 : 0));
    }
    CHECK(kept >= 1);
    CHECK(kept < 5);
    all.nodes[0]->limit_bytes = 1;
    CHECK(co_await write_blocks(s, ns, 20, 1) == errc::store_full);
  });
}

TEST_CASE("redis store: passwords and users") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    fake_redis_nodes all(ex);
    all.nodes[0]->password = "p@ss word";
    all.nodes[0]->user = "me";
    const auto at = all.nodes[0]->at.to_string();
    redis_store right(ex, "redis://me:p%40ss%20word@" + at), none(ex, "redis://" + at),
        wrong(ex, "redis://me:no@" + at);
    CHECK(!co_await write_blocks(right, ns, 0, 2));
    CHECK(co_await read_blocks(right, ns, 0, 2) == 2);
    CHECK((co_await none.async_match(ns, contract_keys(0, 1), as_result)).error() == redis_errc::no_password);
    CHECK((co_await wrong.async_match(ns, contract_keys(0, 1), as_result)).error() == redis_errc::wrong_password);
  });
}

TEST_CASE("redis store: lies and garbage are protocol errors") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        fake_redis_nodes all(ex);
        for (const char* lie : {"$99999999999\r\n", "*1000000000\r\n", "hello\r\n", ":1\r\n:1\r\n:1\r\n",
                                "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n"}) {
          redis_store s(ex, all.url(), {.lookup = 2s, .silence = 200ms});
          all.nodes[0]->instead = {};
          CHECK(!co_await write_blocks(s, ns, 0, 1));
          all.nodes[0]->instead = [&](const auto& command) -> std::optional<std::string> {
            return command[0] == "GET" ? std::optional<std::string>(lie) : std::nullopt;
          };
          auto [ec, reader] = co_await s.async_open_read(ns, contract_layout(), contract_keys(0, 1), tuple);
          CHECK_MESSAGE((ec == errc::protocol || ec == errc::deadline), lie, ec.message());
        }
      },
      {.seeds = 3});
}

TEST_CASE("redis store: a node that says nothing is waited for once; its share is missing and the others' is not") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        fake_redis_nodes all(ex, 3);
        redis_store s(ex, all.url());
        CHECK(!co_await write_blocks(s, ns, 0, 20));
        const auto bad = node_of(all, 5);
        std::uint32_t first = 0;
        while (node_of(all, first) != bad) ++first;
        all.nodes[bad]->instead = [](const auto&) { return std::optional<std::string>(""); };
        auto& time = clock::of(ex);
        auto before = time.now();
        CHECK(co_await s.async_match(ns, contract_keys(0, 20), as_result) == first);
        CHECK(time.now() - before <= 251ms);
        before = time.now();
        CHECK(co_await s.async_match(ns, contract_keys(0, 20), as_result) == first);
        CHECK(time.now() - before < 20ms);
        auto [ec, writer] = co_await s.async_open_write(ns, contract_layout(), contract_keys(30, 12), {}, tuple);
        CHECK(!ec);
        if (ec) co_return;
        for (std::uint32_t layer = 0; layer < 4; ++layer)
          CHECK(co_await writer->async_write(layer, contract_segments(30, 12, layer), as_result));
        auto [cec] = co_await writer->async_commit(tuple);
        CHECK(cec == errc::partial);
        for (std::uint32_t i = 0; i < 12; ++i) CHECK(writer->keeps(i) == (node_of(all, 30 + i) != bad));
        all.nodes[bad]->instead = {};
        co_await time.async_wait_for(10s, asio::deferred);
        CHECK(!co_await write_blocks(s, ns, 0, 20));
        CHECK(co_await read_blocks(s, ns, 0, 20) == 20);
        // All gone: an error, at once.
        for (auto& n : all.nodes) n->stop();
        CHECK((co_await s.async_match(ns, contract_keys(0, 20), as_result)).error());
        before = time.now();
        CHECK((co_await s.async_match(ns, contract_keys(0, 20), as_result)).error());
        CHECK(time.now() - before < 20ms);
        before = time.now();
        CHECK(co_await write_blocks(s, ns, 50, 5));
        CHECK(time.now() - before < 20ms);
      },
      virtual_time);
}

TEST_CASE("redis store: what is cancelled says so, and costs the connection nothing") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        fake_redis_nodes all(ex);
        redis_store s(ex, all.url(), {.lookup = 10s, .silence = 10s});
        CHECK(!co_await write_blocks(s, ns, 0, 5));
        sim::net::of(static_cast<sim_context&>(asio::query(ex, asio::execution::context))).clog("home", "home", 1s);
        CHECK((co_await with_deadline(s.async_match(ns, contract_keys(0, 5)), 100ms)).error() == errc::deadline);
        CHECK((co_await with_deadline(s.async_match(ns, contract_keys(0, 1)), 100ms)).error() == errc::deadline);
        CHECK((co_await with_deadline(s.async_open_read(ns, contract_layout(), contract_keys(0, 5)), 100ms)).error() ==
              errc::deadline);
        CHECK(co_await read_blocks(s, ns, 0, 5) == 5);
        CHECK(sim::net::of(static_cast<sim_context&>(asio::query(ex, asio::execution::context))).counts.connections ==
              1);
      },
      virtual_time);
}

TEST_CASE("redis store: a connection that was closed while nothing was asked is made again") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    fake_redis_nodes all(ex);
    redis_store s(ex, all.url());
    CHECK(!co_await write_blocks(s, ns, 0, 3));
    for (int i = 0; i < 5; ++i) {
      all.nodes[0]->break_connections();
      CHECK(co_await read_blocks(s, ns, 0, 3) == 3);
    }
  });
}

TEST_CASE("redis store: URLs and options that can't be used are refused") {
  asio::io_context context(1);
  const auto ex = context.get_executor();
  for (const char* bad : {"http://a", "redis://", "redis://a/1", "redis://a:0", ""})
    CHECK_THROWS_AS(redis_store(ex, bad), config_error);
  CHECK_THROWS_AS(redis_store(ex, "redis://a", {.piece_bytes = 0}), config_error);
  CHECK_THROWS_AS(redis_store(ex, "redis://a", {.piece_bytes = (64 << 20) + 1}), config_error);
  CHECK_THROWS_AS(redis_store(ex, "redis://a", {.unfinished = 0s}), config_error);
  CHECK(redis_store(ex, "redis://a").info().kind == "redis");
}
