// Staged stores under everything that can happen at once: many readers and writers on hardly any staging, stores behind
// them that fail, hang and lie, copies that fail, a device that is lost, cancellation at any moment.
#include <doctest/doctest.h>

#include "cokv/kvstream/file_store.hpp"
#include "cokv/runtime/sim_device.hpp"
#include "cokv/runtime/with.hpp"
#include "support/enough.hpp"
#include "support/fault_store.hpp"
#include "support/remove_folder.hpp"
#include "support/staged_bed.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace std::chrono_literals;

namespace {

const auto ns = staged_ns;

struct counts {
  std::size_t good = 0, short_of = 0, failed = 0, cancelled = 0, lost = 0;
};

// One request after the other, each cut off after a while that the seed picks, most of them later than they take.
awaitable<void> requests(staged_bed& bed, sim_context& context, counts& count, int rounds) {
  auto& time = clock::of(bed.host.get_executor());
  const auto layout = contract_layout();
  const auto said = [&](error_code ec) {
    CHECK((ec == errc::unavailable || ec == errc::device_failed || ec == errc::device_lost ||
           ec == asio::error::operation_aborted || ec == errc::partial));
    ++(ec == asio::error::operation_aborted ? count.cancelled : ec == errc::device_lost ? count.lost : count.failed);
  };
  for (int round = 0; round < rounds; ++round) {
    const auto first = static_cast<std::uint32_t>(context.below(12));
    const auto keys = static_cast<std::uint32_t>(1 + context.below(9));
    const bool writes = context.chance(0.5);
    const auto patience =
        duration(static_cast<std::int64_t>(context.below(context.chance(0.3) ? 300'000 : 20'000'000)));
    auto v = co_await with(task_group{}, [&](task_group& group) {
      group.spawn([&]() -> awaitable<void> {
        if (writes) {
          const auto ec = co_await write_blocks(bed.host, ns, first, keys);
          ec ? said(ec) : void(++count.good);
        } else {
          auto reader = co_await bed.host.async_open_read(ns, layout, contract_keys(first, keys), as_result);
          if (!reader) said(reader.error());
          std::size_t good = reader ? (*reader)->found() : 0;
          CHECK(good <= keys);
          for (std::uint32_t layer = 0; reader && layer < layout.layers(); ++layer) {
            std::vector<buffer> into;
            for (std::uint32_t i = 0; i < keys; ++i) into.push_back(buffer::host(layout.segments[layer]));
            const auto n = co_await (*reader)->async_read(layer, into, as_result);
            if (!n) said(n.error());
            if (!n) break;
            CHECK(*n <= good);
            good = *n;
            for (std::uint32_t i = 0; i < good; ++i)
              CHECK(std::memcmp(into[i].data(), contract_segments(first + i, 1, layer)[0].data(), into[i].size()) == 0);
            if (layer + 1 == layout.layers()) ++(good == keys ? count.good : count.short_of);
          }
        }
        group.cancel();
      });
      group.spawn([&]() -> awaitable<void> {
        if (co_await time.async_wait_for(patience, as_result)) group.cancel();
      });
    });
    CHECK((!v.error() || v.error() == asio::error::operation_aborted));
  }
}

}  // namespace

TEST_CASE("staged store: the contract, in front of files on simulated disks, cancelled and destroyed at every step") {
  contract_options contract;
  contract.run.real = false;
  contract.run.seeds = 5;
  contract.rounds = 20;
  contract.has_limit = false;
  store_contract(
      [](asio::any_io_executor ex, std::uint64_t limit) -> awaitable<stored> {
        const bool sim = ex.target<sim_context::executor_type>() != nullptr;
        file_store_options o{.directory = "cache", .limit_bytes = limit};
        std::shared_ptr<void> keep;
        if (!sim) {
          o.directory =
              (std::filesystem::temp_directory_path() / ("cokv_staged_" + std::to_string(::getpid()))).string();
          keep = std::shared_ptr<void>(nullptr, [d = o.directory](void*) { remove_folder(d); });
        }
        std::shared_ptr<store> behind = co_await file_store::async_open(ex, o);
        auto dev = open_device(ex, sim ? "sim:h200" : "cpu").value();
        auto staged = std::make_unique<staged_store>(std::move(behind), contract_staging(dev, 2, 2));
        co_return stored{std::make_unique<device_memory_store>(std::move(staged), dev), std::move(keep)};
      },
      contract);
}

TEST_CASE("staged store: whatever fails, hangs or is cut off, blocks are right or an error, and staging comes back") {
  counts all;
  std::size_t lives = 0;
  for (auto seed : seeds(500)) {
    INFO(replay_command(seed));
    run_seed(seed, [&](asio::any_io_executor ex) -> awaitable<void> {
      auto& context = static_cast<sim_context&>(asio::query(ex, asio::execution::context));
      auto& gpu = sim::device::of(context, "sim:h200");
      auto behind = std::make_shared<fault_store>(ex, seed);
      const bool harsh = seed % 4 != 0;  // else nothing but want of room
      if (harsh)
        behind->fault = {.error = 0.01,
                         .hang = 0.003,
                         .damaged = 0.02,
                         .lost = 0.01,
                         .slowest = duration(static_cast<std::int64_t>(context.below(200'000)))};
      // A device that is lost has nothing in it when it is opened again; what was stored is there.
      for (int life = 0; life < 2; ++life, ++lives) {
        auto dev = open_device(ex, "sim:h200").value();
        staged_bed bed(dev, behind, 1 + context.below(4), 1 + context.below(3));
        if (harsh) gpu.faults = {.fail = 0.004, .slow = 0.05};
        const auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
          for (std::size_t i = 0, n = 2 + context.below(8); i < n; ++i) group.spawn(requests(bed, context, all, 4));
          if (seed % 5 != 1 || life != 0) co_return;
          co_await clock::of(ex).async_wait_for(duration(static_cast<std::int64_t>(context.below(3'000'000))));
          gpu.faults = {};
          gpu.lose();
        });
        CHECK(!v.error());
        if (bed.staging.status()) continue;
        for (int i = 0; i < 50 && bed.staging.available() < bed.staging.buffers(); ++i)
          co_await asio::post(asio::deferred);
        if (!gpu.counts.lost) CHECK(bed.staging.available() == bed.staging.buffers());
        if (!harsh) CHECK(behind->readers == 0);
      }
    });
  }
  CHECK(all.good >= enough(5000));
  CHECK(all.short_of >= enough(300));
  CHECK(all.failed >= enough(300));
  CHECK(all.cancelled >= enough(300));
  CHECK(all.lost >= enough(100));
}
