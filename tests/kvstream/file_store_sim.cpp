// The file store on simulated disks: crashes at any moment, disks that fail, fill up and flip bits.
#include <doctest/doctest.h>

#include <filesystem>
#include <set>

#include "block_versions.hpp"
#include "cokv/kvstream/file_store.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/sim_disk.hpp"
#include "cokv/runtime/sim_node.hpp"
#include "cokv/runtime/with.hpp"
#include "support/enough.hpp"
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

std::uint64_t bytes_of_files(const sim::disk& disk) {
  std::uint64_t bytes = 0;
  for (auto& path : disk.files())
    if (path.find("/log/") != path.npos) bytes += disk.contents(path).size();
  return bytes;
}

sim::disk& disk_of(const asio::any_io_executor& ex) {
  return sim::disk::of(static_cast<sim_context&>(asio::query(ex, asio::execution::context)));
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
  contract.block_bytes = direct ? 40'960 : 32'768;
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

TEST_CASE("file store: after a crash what was committed is there, what was removed is not, and every block is whole") {
  std::size_t kept = 0, stayed_away = 0, lost = 0;
  for (auto seed : seeds(500)) {
    INFO(replay_command(seed));
    sim_context context(seed);
    sim::node host(context, "host");
    auto how = options(1 << 26, seed % 2 != 0);
    if (seed % 3 == 0) how.segment_bytes = 128 << 10;
    if (seed % 5 == 0) how.digest = digest_algorithm::none;
    std::set<std::uint32_t> committed, removed;
    for (int life = 0; life < 3; ++life) {
      std::set<std::uint32_t> on_their_way;  // a deferred commit may come after a removal
      auto work = [&](asio::any_io_executor ex) -> awaitable<void> {
        auto s = co_await file_store::async_open(ex, how);
        for (auto key : committed) CHECK(co_await read_blocks(*s, ns, key, 1) == 1);
        for (auto key : removed) CHECK(co_await s->async_match(ns, contract_keys(key, 1)) == 0);
        kept += committed.size();
        stayed_away += removed.size();
        for (;;) {
          auto first = static_cast<std::uint32_t>(context.below(60)),
               count = static_cast<std::uint32_t>(1 + context.below(4));
          bool deferred = context.chance(0.3);
          for (std::uint32_t i = 0; i < count; ++i) {
            removed.erase(first + i);
            if (deferred) on_their_way.insert(first + i);
          }
          auto ec = co_await write_blocks(*s, ns, first, count, {.deferred = deferred, .force = context.chance(0.2)});
          CHECK(!ec);
          for (std::uint32_t i = 0; i < count && !deferred; ++i) committed.insert(first + i);
          if (context.chance(0.3)) {
            auto gone = static_cast<std::uint32_t>(context.below(60));
            committed.erase(gone);  // before it is known whether it happened
            auto [remove_ec] = co_await s->async_remove(ns, contract_keys(gone, 1)[0], as_tuple());
            CHECK((!remove_ec || remove_ec == errc::not_found));
            if (!on_their_way.contains(gone)) removed.insert(gone);
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
        if (removed.contains(key)) CHECK(good == 0);
      }
      CHECK(s->info().blocks == whole);
      CHECK(s->info().digest_failures == 0);  // what was torn was never in sight
      CHECK(s->info().direct == how.direct);
      CHECK(host.disk().counts.misaligned == 0);
      co_await s->async_settle();
      CHECK(s->info().file_bytes >= bytes_of_files(host.disk()));
    };
    bool finished = false;
    asio::co_spawn(host.get_executor(), look(host.get_executor()), [&](std::exception_ptr e) { finished = !e; });
    context.run();
    CHECK(finished);
  }
  CHECK(kept >= enough(1000));  // the test tested something
  CHECK(stayed_away >= enough(200));
  CHECK(lost >= enough(1000));
}

TEST_CASE("file store: under a limit and crashes, what was replaced or removed stays away, and the limit holds") {
  constexpr std::uint32_t keys = 12;
  constexpr std::uint64_t limit = 40 * 36'864;
  std::size_t seen = 0, evicted = 0, away = 0;
  for (auto seed : seeds(500)) {
    INFO(replay_command(seed));
    sim_context context(seed);
    sim::node host(context, "host");
    auto how = options(limit, seed % 2 != 0);
    how.segment_bytes = seed % 3 == 0 ? 0 : 200'000;
    std::vector<std::uint32_t> acknowledged(keys, 0), tried(keys, 0);  // versions; 0: none
    std::vector<bool> removed(keys, false);
    auto check = [&](store& s) -> awaitable<void> {
      for (std::uint32_t key = 0; key < keys; ++key) {
        const auto v = co_await version_of(s, ns, key, 0, 199);
        seen += v.has_value();
        away += removed[key];
        if (v) CHECK(*v >= std::max(acknowledged[key], 1u));
        if (v) CHECK(*v <= tried[key]);
        if (removed[key]) CHECK(!v);
      }
    };
    for (int life = 0; life < 4; ++life) {
      auto work = [&](asio::any_io_executor ex) -> awaitable<void> {
        auto s = co_await file_store::async_open(ex, how);
        co_await check(*s);
        std::uint32_t other = 1000;
        for (;;) {
          CHECK(s->info().file_bytes <= limit);
          CHECK(bytes_of_files(host.disk()) <= limit);
          evicted += s->info().evicted_blocks > 0;
          const auto key = static_cast<std::uint32_t>(context.below(keys));
          if (context.chance(0.2)) {
            tried[key] = std::max(tried[key], acknowledged[key]);
            const auto before = std::exchange(acknowledged[key], 0);  // one of them, or none
            auto [ec] = co_await s->async_remove(ns, contract_keys(key, 1)[0], as_tuple());
            CHECK((!ec || ec == errc::not_found));
            removed[key] = true;
            acknowledged[key] = before;
          } else if (context.chance(0.5)) {
            removed[key] = false;
            auto ec = co_await write_version(*s, ns, key, ++tried[key]);
            CHECK((!ec || ec == errc::store_full));
            if (!ec) acknowledged[key] = tried[key];
          } else if (context.chance(0.5)) {
            co_await version_of(*s, ns, key, 0, 199);
          } else {
            co_await write_blocks(*s, ns, other, 4);  // pushes others out
            other += 4;
          }
        }
      };
      asio::co_spawn(host.get_executor(), work(host.get_executor()), asio::detached);
      context.run_for(duration(static_cast<std::int64_t>(context.below(60'000'000))));
      host.kill();
      host.start();
    }
    bool finished = false;
    auto look = [&](asio::any_io_executor ex) -> awaitable<void> {
      auto s = co_await file_store::async_open(ex, how);
      co_await check(*s);
      CHECK(host.disk().counts.misaligned == 0);
    };
    asio::co_spawn(host.get_executor(), look(host.get_executor()), [&](std::exception_ptr e) { finished = !e; });
    context.run();
    CHECK(finished);
  }
  CHECK(seen >= enough(1000));
  CHECK(away >= enough(200));
  CHECK(evicted >= enough(200));
}

TEST_CASE("file store: on a disk that fails, nothing is wrong and nothing is left over") {
  std::uint64_t errors = 0, failed = 0, flips = 0;
  for (auto seed : seeds(500)) {
    INFO(replay_command(seed));
    auto report = run_seed(seed, [&](asio::any_io_executor ex) -> awaitable<void> {
      auto& context = static_cast<sim_context&>(asio::query(ex, asio::execution::context));
      auto& disk = disk_of(ex);
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
        CHECK(s->info().file_bytes <= 1 << 20);
      }
      auto flipped = disk.counts.flips;
      disk.faults = sim::disk_faults();
      // What is under way ends; then no more is on the disk than the book says.
      co_await s->async_settle();
      CHECK(s->info().file_bytes >= bytes_of_files(disk));
      CHECK(s->info().used_bytes == s->info().blocks * (seed % 2 != 0 ? 32'768 : contract_layout().bytes()));
      CHECK(disk.counts.misaligned == 0);
      for (std::uint32_t key = 0; key < 64; ++key) co_await read_blocks(*s, ns, key, 1);
      if (flipped == 0) CHECK(s->info().digest_failures <= disk.counts.errors);
      errors += disk.counts.errors;
      failed += s->info().failed_writes;
      flips += s->info().digest_failures;
    });
    CHECK(report.finished);
  }
  CHECK(errors >= enough(1000));
  CHECK(failed >= enough(100));
  CHECK(flips >= enough(100));
}

TEST_CASE("file store: a full disk is store_full, and leaves what was there") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto& disk = disk_of(ex);
        auto s = co_await file_store::async_open(ex, options());
        CHECK(!co_await write_blocks(*s, ns, 0, 3));
        disk.faults.capacity = disk.used() + contract_layout().bytes();
        CHECK(co_await write_blocks(*s, ns, 3, 4) == errc::store_full);
        CHECK(!co_await write_blocks(*s, ns, 0, 2));  // there already
        co_await s->async_settle();
        CHECK(s->info().file_bytes >= bytes_of_files(disk));
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
            auto& disk = disk_of(ex);
            auto s = co_await file_store::async_open(ex, options(1 << 26, direct));
            CHECK(!co_await write_blocks(*s, ns, 0, 1));
            const std::uint64_t one = direct ? 32'768 : 24'576;
            disk.faults.capacity = (disk.used() + 4096 + room * (one + 8192)) * 17 / 16;
            const auto writer_of = [&](std::uint32_t first, std::uint32_t n) -> awaitable<std::size_t> {
              auto [open_ec, writer] = co_await s->async_open_write(ns, contract_layout(), contract_keys(first, n),
                                                                    {.deferred = deferred}, as_tuple());
              if (open_ec) co_return 0;
              for (std::uint32_t layer = 0; layer < contract_layout().layers(); ++layer)
                co_await writer->async_write(layer, contract_segments(first, n, layer));
              auto [ec] = co_await writer->async_commit(as_tuple());
              CHECK(ec == (writer->kept() < n ? make_error_code(errc::store_full) : error_code()));
              co_await s->async_settle();
              co_return ec ? writer->kept() : n;
            };
            const auto kept = co_await writer_of(10, 12);
            CHECK(kept >= room);
            CHECK(kept < 12);
            CHECK(co_await read_blocks(*s, ns, 10, 12) == kept);
            CHECK(co_await read_blocks(*s, ns, 0, 1) == 1);
            CHECK(s->info().no_room_blocks == 12 - kept);
            CHECK(s->info().failed_writes == 12 - kept);
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
        auto& disk = disk_of(ex);
        auto o = options();
        o.segment_bytes = 50'000;  // two blocks a file
        auto s = co_await file_store::async_open(ex, o);
        auto writer = co_await s->async_open_write(ns, contract_layout(), contract_keys(0, 8));
        for (std::uint32_t layer = 0; layer < contract_layout().layers(); ++layer) {
          if (layer == 3) disk.faults.no_space = 0.1;  // for the data, and the entries
          auto [write_ec] = co_await writer->async_write(layer, contract_segments(0, 8, layer), as_tuple());
          CHECK((!write_ec || write_ec == errc::store_full));
        }
        auto [ec] = co_await writer->async_commit(as_tuple());
        disk.faults.no_space = 0;
        const auto kept = ec ? writer->kept() : 8;
        CHECK((!ec || ec == errc::store_full));
        CHECK(co_await read_blocks(*s, ns, 0, 8) == kept);
        writer.reset();
        co_await s->async_settle();
        CHECK(s->info().file_bytes >= bytes_of_files(disk));
        some += kept > 0 && kept < 8;
      },
      {.real = false, .seeds = 500});
  CHECK(some >= enough(20));
}

TEST_CASE("file store: one sync is for all commits that wait for it") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto& disk = disk_of(ex);
        auto s = co_await file_store::async_open(ex, options());
        CHECK(!co_await write_blocks(*s, ns, 0, 1));
        const auto before = disk.counts.syncs;
        auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
          for (std::uint32_t i = 0; i < 40; ++i)
            group.spawn([&s, i]() -> awaitable<error_code> { co_return co_await write_blocks(*s, ns, 10 + i, 1); });
          co_return;
        });
        CHECK(!v.error());
        CHECK(disk.counts.syncs - before <= 12);
        CHECK(co_await read_blocks(*s, ns, 10, 40) == 40);
      },
      {.real = false});
}

TEST_CASE("file store: what is asked for outlives a scan that is larger than the store") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto o = options(100 * 32'768);
        o.segment_bytes = 3 * 32'768;
        auto s = co_await file_store::async_open(ex, o);
        CHECK(!co_await write_blocks(*s, ns, 0, 10));
        CHECK(co_await read_blocks(*s, ns, 0, 10) == 10);
        for (std::uint32_t i = 0; i < 300; ++i) {
          CHECK(!co_await write_blocks(*s, ns, 100 + i, 1));
          if (i % 20 == 0) CHECK(co_await read_blocks(*s, ns, 0, 10) == 10);
          CHECK(s->info().file_bytes <= o.limit_bytes);
        }
        CHECK(co_await read_blocks(*s, ns, 0, 10) == 10);
        CHECK(s->info().evicted_blocks > 150);
        CHECK(s->info().digest_failures == 0);
        // And it is found again.
        co_await s->async_settle();
        s.reset();
        s = co_await file_store::async_open(ex, o);
        CHECK(co_await read_blocks(*s, ns, 0, 10) == 10);
      },
      {.real = false});
}
