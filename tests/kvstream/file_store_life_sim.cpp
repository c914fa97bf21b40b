// The life of a file store on simulated disks: what is settled, what a kill frees, what can't be read just now.
#include <doctest/doctest.h>

#include "cokv/kvstream/file_store.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/sim_disk.hpp"
#include "cokv/runtime/sim_node.hpp"
#include "support/store_contract.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

const namespace_id ns = namespace_id::of("m", geometry::attention(3, 2, 4, dtype::f32));

file_store_options options() { return {.directory = "cache"}; }

auto as_tuple() { return asio::as_tuple(asio::deferred); }

}  // namespace

TEST_CASE("file store: what can't be read just now is an error, stays, and is not called damaged") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto& disk = sim::disk::of(static_cast<sim_context&>(asio::query(ex, asio::execution::context)));
        auto s = co_await file_store::async_open(ex, options());
        CHECK(!co_await write_blocks(*s, ns, 0, 3));
        disk.faults.read_error = 1;
        auto [open_ec, none] = co_await s->async_open_read(ns, contract_layout(), contract_keys(0, 3), as_tuple());
        CHECK(open_ec == boost::system::errc::io_error);
        disk.faults.read_error = 0;
        auto reader = co_await s->async_open_read(ns, contract_layout(), contract_keys(0, 3));
        disk.faults.read_error = 1;
        auto into = contract_segments(0, 3, 0);
        auto [ec, good] = co_await reader->async_read(0, into, as_tuple());
        CHECK(ec == boost::system::errc::io_error);
        disk.faults.read_error = 0;
        CHECK(s->info().digest_failures == 0);
        CHECK(co_await read_blocks(*s, ns, 0, 3) == 3);
      },
      {.real = false});
}

TEST_CASE("file store: settled, every deferred commit is visible and survives the end of the process") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto s = co_await file_store::async_open(ex, options());
        for (std::uint32_t i = 0; i < 5; ++i) CHECK(!co_await write_blocks(*s, ns, 4 * i, 4, {.deferred = true}));
        CHECK(s->info().blocks < 20);
        co_await s->async_settle();
        CHECK(s->info().blocks == 20);
        s.reset();
        s = co_await file_store::async_open(ex, options());
        CHECK(s->info().blocks == 20);
      },
      {.real = false});
}

TEST_CASE("file store: a node that is killed frees its folder") {
  sim_context context(3);
  sim::node host(context, "host");
  std::vector<std::unique_ptr<file_store>> stores;
  static constexpr auto open_twice = [](asio::any_io_executor ex,
                                        std::vector<std::unique_ptr<file_store>>& opened) -> awaitable<void> {
    opened.push_back(co_await file_store::async_open(ex, options()));
    auto [ec, other] = co_await file_store::async_open(ex, options(), as_tuple());
    CHECK(ec == errc::in_use);
  };
  for (int life = 0; life < 2; ++life) {
    asio::co_spawn(host.get_executor(), open_twice(host.get_executor(), stores), asio::detached);
    context.run();
    CHECK(stores.size() == static_cast<std::size_t>(life + 1));
    host.kill();
    host.start();
  }
}

TEST_CASE("file store: the same seed gives the same run") {
  auto body = [](asio::any_io_executor ex) -> awaitable<void> {
    auto s = co_await file_store::async_open(ex, options());
    CHECK(!co_await write_blocks(*s, ns, 0, 6));
    CHECK(co_await read_blocks(*s, ns, 0, 6) == 6);
  };
  CHECK(run_seed(5, body).hash == run_seed(5, body).hash);
  CHECK(run_seed(5, body).hash != run_seed(6, body).hash);
}
