// The file store on simulated disks: crashes at any moment, disks that fail, fill up and flip bits.
#include <doctest/doctest.h>

#include <filesystem>
#include <set>

#include "cokv/kvstream/file_store.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/sim_disk.hpp"
#include "cokv/runtime/sim_node.hpp"
#include "support/remove_folder.hpp"
#include "support/store_contract.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

const namespace_id ns = namespace_id::of("m", geometry::attention(3, 2, 4, dtype::f32));

file_store_options options(std::uint64_t limit = 1 << 26, bool direct = false) {
  return {.directory = "cache", .limit_bytes = limit, .direct = direct};
}

auto as_tuple() { return asio::as_tuple(asio::deferred); }

std::uint64_t used_by_blocks(const sim::disk& disk) {
  std::uint64_t bytes = 0;
  for (auto& path : disk.files())
    if (path.find("/blocks/") != path.npos) bytes += disk.contents(path).size();
  return bytes;
}

std::size_t files_in_tmp(const sim::disk& disk) {
  std::size_t n = 0;
  for (auto& path : disk.files()) n += path.find("/tmp/") != path.npos;
  return n;
}

}  // namespace

TEST_CASE("file store: the contract, on simulated disks, cancelled and destroyed at every step") {
  bool direct = false;
  SUBCASE("through the cache") {}
  SUBCASE("direct") { direct = true; }
  contract_options contract;
  contract.run.real = false;
  contract.run.seeds = 5;
  contract.rounds = 25;
  if (direct) contract.block_bytes = 36'864;
  store_contract(
      [direct](asio::any_io_executor ex, std::uint64_t limit) -> awaitable<stored> {
        auto o = options(limit, direct);
        // The tokens are tested on the real context, in a folder that goes with the store.
        std::shared_ptr<void> keep;
        if (!ex.target<sim_context::executor_type>()) {
          o.directory =
              (std::filesystem::temp_directory_path() / ("cokv_tokens_" + std::to_string(::getpid()))).string();
          keep = std::shared_ptr<void>(nullptr, [d = o.directory](void*) { remove_folder(d); });
        }
        auto s = co_await file_store::async_open(ex, o);
        co_return stored{std::move(s), std::move(keep)};
      },
      contract);
}

TEST_CASE("file store: after a crash every block is whole or not there, and what was committed is there") {
  std::size_t kept = 0, lost = 0;
  for (auto seed : seeds(500)) {
    INFO(replay_command(seed));
    sim_context context(seed);
    sim::node host(context, "host");
    const auto how = options(1 << 26, seed % 2 != 0);
    std::set<std::uint32_t> committed;
    for (int life = 0; life < 3; ++life) {
      auto work = [&](asio::any_io_executor ex) -> awaitable<void> {
        auto s = co_await file_store::async_open(ex, how);
        for (auto key : committed) CHECK(co_await read_blocks(*s, ns, key, 1) == 1);
        kept += committed.size();
        CHECK(files_in_tmp(host.disk()) == 0);
        for (;;) {
          auto first = static_cast<std::uint32_t>(context.below(60)),
               count = static_cast<std::uint32_t>(1 + context.below(4));
          bool deferred = context.chance(0.3);
          auto ec = co_await write_blocks(*s, ns, first, count, {.deferred = deferred});
          CHECK(!ec);
          for (std::uint32_t i = 0; i < count && !deferred; ++i) committed.insert(first + i);
          if (context.chance(0.1)) {
            auto gone = static_cast<std::uint32_t>(context.below(60));
            committed.erase(gone);  // before it is known whether it happened
            co_await s->async_remove(ns, contract_keys(gone, 1)[0], as_tuple());
          }
        }
      };
      asio::co_spawn(host.get_executor(), work(host.get_executor()), asio::detached);
      context.run_for(duration(static_cast<std::int64_t>(context.below(30'000'000))));
      host.kill();
      lost += host.disk().counts.lost + host.disk().counts.torn;
      host.start();
    }
    auto look = [&](asio::any_io_executor ex) -> awaitable<void> {
      auto s = co_await file_store::async_open(ex, how);
      std::size_t whole = 0;
      for (std::uint32_t key = 0; key < 64; ++key) {
        auto good = co_await read_blocks(*s, ns, key, 1);  // compares every byte
        whole += good;
        if (committed.contains(key)) CHECK(good == 1);
      }
      CHECK(s->info().blocks == whole);
      CHECK(s->info().digest_failures == 0);  // torn files never had a name
      CHECK(s->info().used_bytes == used_by_blocks(host.disk()));
      CHECK(s->info().direct == how.direct);
      CHECK(host.disk().counts.misaligned == 0);
    };
    bool finished = false;
    asio::co_spawn(host.get_executor(), look(host.get_executor()), [&](std::exception_ptr e) { finished = !e; });
    context.run();
    CHECK(finished);
  }
  CHECK((kept > 1000 || one_seed()));  // the test tested something
  CHECK((lost > 1000 || one_seed()));
}

TEST_CASE("file store: on a disk that fails, nothing is wrong and nothing is left over") {
  std::uint64_t errors = 0, failed = 0, flips = 0;
  for (auto seed : seeds(500)) {
    INFO(replay_command(seed));
    auto report = run_seed(seed, [&](asio::any_io_executor ex) -> awaitable<void> {
      auto& context = static_cast<sim_context&>(asio::query(ex, asio::execution::context));
      auto& disk = sim::disk::of(context);
      auto s = co_await file_store::async_open(ex, options(1 << 20, seed % 2 != 0));
      disk.faults.read_error = 0.02;
      disk.faults.write_error = 0.02;
      disk.faults.no_space = 0.02;
      disk.faults.sync_error = 0.02;
      disk.faults.open_error = 0.02;
      disk.faults.flip_read = 0.01;
      disk.faults.flip_write = 0.01;
      for (int round = 0; round < 30; ++round) {
        auto first = static_cast<std::uint32_t>(context.below(60)),
             count = static_cast<std::uint32_t>(1 + context.below(5));
        if (context.chance(0.5))
          co_await write_blocks(*s, ns, first, count, {.deferred = context.chance(0.5)});
        else
          co_await read_blocks(*s, ns, first, count);  // compares every byte
        CHECK(s->info().used_bytes <= 1 << 20);
      }
      auto flipped = disk.counts.flips;
      disk.faults = sim::disk_faults();
      // What is under way ends; then all that is on the disk is what the index says.
      while (files_in_tmp(disk) > 0 || s->info().used_bytes != used_by_blocks(disk)) {
        auto before = context.now();
        co_await clock::of(ex).async_wait_for(std::chrono::milliseconds(1), asio::deferred);
        if (before.time_since_epoch() > std::chrono::seconds(60)) break;
      }
      CHECK(files_in_tmp(disk) == 0);
      CHECK(s->info().used_bytes == used_by_blocks(disk));
      CHECK(disk.counts.misaligned == 0);
      for (std::uint32_t key = 0; key < 64; ++key) co_await read_blocks(*s, ns, key, 1);
      if (flipped == 0) CHECK(s->info().digest_failures <= disk.counts.errors);
      errors += disk.counts.errors;
      failed += s->info().failed_writes;
      flips += s->info().digest_failures;
    });
    CHECK(report.finished);
  }
  CHECK((errors > 1000 || one_seed()));
  CHECK((failed > 100 || one_seed()));
  CHECK((flips > 100 || one_seed()));
}

TEST_CASE("file store: a full disk is store_full, and leaves what was there") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto& disk = sim::disk::of(static_cast<sim_context&>(asio::query(ex, asio::execution::context)));
        auto s = co_await file_store::async_open(ex, options());
        CHECK(!co_await write_blocks(*s, ns, 0, 3));
        disk.faults.capacity = disk.used() + contract_layout().bytes();
        CHECK(co_await write_blocks(*s, ns, 3, 4) == errc::store_full);
        CHECK(!co_await write_blocks(*s, ns, 0, 2));  // there already
        for (int turn = 0; turn < 1000 && files_in_tmp(disk) > 0; ++turn)
          co_await clock::of(ex).async_wait_for(std::chrono::milliseconds(1), asio::deferred);
        CHECK(files_in_tmp(disk) == 0);
        CHECK(s->info().used_bytes == used_by_blocks(disk));
        CHECK(co_await read_blocks(*s, ns, 0, 4) == 3);
        disk.faults.capacity = std::uint64_t{1} << 40;
        CHECK(!co_await write_blocks(*s, ns, 3, 4));
        CHECK(co_await read_blocks(*s, ns, 0, 7) == 7);
      },
      {.real = false});
}

TEST_CASE(
    "file store: a disk that fills up keeps the first blocks of a write, and gives up old ones for later writes") {
  for (bool direct : {false, true})
    for (std::size_t room : {1, 2, 5})
      co_test(
          [=, deferred = room != 2](asio::any_io_executor ex) -> awaitable<void> {
            auto& disk = sim::disk::of(static_cast<sim_context&>(asio::query(ex, asio::execution::context)));
            auto s = co_await file_store::async_open(ex, options(1 << 26, direct));
            CHECK(!co_await write_blocks(*s, ns, 0, 1));
            const auto one = s->info().used_bytes;
            disk.faults.capacity = (1 + room) * one + one / 2;
            const auto writer_of = [&](std::uint32_t first, std::uint32_t n) -> awaitable<std::size_t> {
              auto writer =
                  co_await s->async_open_write(ns, contract_layout(), contract_keys(first, n), {.deferred = deferred});
              for (std::uint32_t layer = 0; layer < contract_layout().layers(); ++layer)
                co_await writer->async_write(layer, contract_segments(first, n, layer));
              auto [ec] = co_await writer->async_commit(as_tuple());
              CHECK(ec == (room < 6 && writer->kept() < n ? make_error_code(errc::store_full) : error_code()));
              co_await s->async_settle();
              co_return ec ? writer->kept() : n;
            };
            CHECK(co_await writer_of(10, 6) == room);
            CHECK(co_await read_blocks(*s, ns, 10, 6) == room);
            CHECK(co_await read_blocks(*s, ns, 0, 1) == 1);
            CHECK(s->info().no_room_blocks == 6 - room);
            CHECK(s->info().failed_writes == 6 - room);
            CHECK(s->info().used_bytes == used_by_blocks(disk));
            CHECK(files_in_tmp(disk) == 0);
            // What is full gives up the old for the new, as many as there is room for.
            CHECK(co_await writer_of(20, 1) == 1);
            CHECK(co_await writer_of(30, 6) >= room);
            CHECK(co_await read_blocks(*s, ns, 30, 6) >= room);
            CHECK(s->info().evicted_blocks > 0);
            CHECK(disk.used() <= disk.faults.capacity);
            // Somebody made room.
            disk.faults.capacity = std::uint64_t{1} << 40;
            CHECK(co_await writer_of(40, 20) == 20);
            CHECK(co_await read_blocks(*s, ns, 40, 20) == 20);
          },
          {.real = false});
}

TEST_CASE("file store: a disk that has no room for the end of a write keeps as many blocks as it says") {
  std::size_t some = 0;
  co_test(
      [&](asio::any_io_executor ex) -> awaitable<void> {
        auto& disk = sim::disk::of(static_cast<sim_context&>(asio::query(ex, asio::execution::context)));
        auto s = co_await file_store::async_open(ex, options());
        auto writer = co_await s->async_open_write(ns, contract_layout(), contract_keys(0, 8));
        for (std::uint32_t layer = 0; layer < contract_layout().layers(); ++layer)
          co_await writer->async_write(layer, contract_segments(0, 8, layer));
        disk.faults.no_space = 0.3;  // for the headers
        auto [ec] = co_await writer->async_commit(as_tuple());
        disk.faults.no_space = 0;
        const auto kept = ec ? writer->kept() : 8;
        CHECK((!ec || ec == errc::store_full));
        CHECK(co_await read_blocks(*s, ns, 0, 8) == kept);
        co_await s->async_settle();
        CHECK(files_in_tmp(disk) == 0);
        CHECK(s->info().used_bytes == used_by_blocks(disk));
        some += kept > 0 && kept < 8;
      },
      {.real = false, .seeds = 500});
  CHECK((some > 20 || one_seed()));
}
