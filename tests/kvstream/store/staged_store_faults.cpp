// Staged stores when something goes wrong: streams that fail, a lost device, cancellation, objects that go early.
#include <doctest/doctest.h>

#include "cokv/runtime/with.hpp"
#include "support/fault_store.hpp"
#include "support/operation_matrix.hpp"
#include "support/staged_bed.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace std::chrono_literals;

namespace {

const auto ns = staged_ns;
const co_options simulated{.real = false};

}  // namespace

TEST_CASE("staged store: a stream that fails is one operation's error, and the next has another stream") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        staged_bed bed(ex, 2, 2);
        CHECK(!co_await write_blocks(bed.host, ns, 0, 7));
        auto& gpu = staged_gpu(ex);
        for (std::uint64_t at = 1; at < 5; ++at) {
          auto reader = co_await bed.staged->async_open_read(ns, contract_layout(), contract_keys(0, 7));
          gpu.faults.fail_at = gpu.counts.operations + at;
          CHECK((co_await read_layer(*reader, bed.dev, 0, 7, 0)).error() == errc::device_failed);
          CHECK((co_await read_layer(*reader, bed.dev, 0, 7, 1)).error() == errc::closed);
          CHECK(co_await read_blocks(bed.host, ns, 0, 7) == 7);

          const auto first = static_cast<std::uint32_t>(100 * at);
          auto writer = co_await bed.staged->async_open_write(ns, contract_layout(), contract_keys(first, 7));
          gpu.faults.fail_at = gpu.counts.operations + at;
          CHECK(co_await write_layers(*writer, bed.dev, first, 7) == errc::device_failed);
          CHECK((co_await writer->async_commit(as_result)).error() == errc::closed);
          CHECK(writer->kept() == 0);
          CHECK(co_await bed.staged->async_match(ns, contract_keys(first, 7)) == 0);
          CHECK(!co_await write_blocks(bed.host, ns, first, 7));
          CHECK(co_await read_blocks(bed.host, ns, first, 7) == 7);
        }
        CHECK(!bed.staging.status());
        co_await all_are_back(bed.staging);
      },
      simulated);
}

TEST_CASE("staged store: when the device is lost, everybody is told, whoever waits for a buffer too") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto slow = std::make_shared<slow_store>(ex, 5us);
        staged_bed bed(open_device(ex, "sim:h200").value(), slow, 2, 1);
        CHECK(!co_await write_blocks(bed.host, ns, 0, 8));
        int told = 0;
        auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
          for (std::uint32_t i = 0; i < 4; ++i) {
            group.spawn([&]() -> awaitable<void> {
              auto reader = co_await bed.staged->async_open_read(ns, contract_layout(), contract_keys(0, 8));
              auto into = device_segments(bed.dev, 8, 1000);
              told += (co_await reader->async_read(0, into, as_result)).error() == errc::device_lost;
              CHECK(nobody_uses(into));
            });
            group.spawn([&, i]() -> awaitable<void> {
              auto writer =
                  co_await bed.staged->async_open_write(ns, contract_layout(), contract_keys(100 * i + 100, 5));
              auto from = device_segments(bed.dev, 5, 1000);
              told += (co_await writer->async_write(0, from, as_result)).error() == errc::device_lost;
              CHECK(nobody_uses(from));
            });
          }
          co_await clock::of(ex).async_wait_for(12us, asio::deferred);
          staged_gpu(ex).lose();
        });
        CHECK(!v.error());
        CHECK(told == 8);
        CHECK(bed.staging.status() == errc::device_lost);
        CHECK(bed.staging.available() == 0);
        // What does not need the device goes on; another staging, of the device that is back, reads what was stored.
        CHECK(co_await read_blocks(*bed.staged, ns, 0, 8) == 8);
        staged_bed again(open_device(ex, "sim:h200").value(), slow, 2, 1);
        CHECK(co_await read_blocks(again.host, ns, 0, 8) == 8);
      },
      simulated);
}

TEST_CASE("staged store: cancelled, it ends after the store behind, which may still write its staging") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto stubborn = std::make_shared<fault_store>(ex, 1);
        staged_bed bed(open_device(ex, "sim:h200").value(), stubborn, 2, 2);
        CHECK(!co_await write_blocks(bed.host, ns, 0, 7));
        stubborn->fault.stubborn = 1ms;
        auto reader = co_await bed.staged->async_open_read(ns, contract_layout(), contract_keys(0, 7));
        auto into = device_segments(bed.dev, 7, 1000);
        asio::cancellation_signal stop;
        error_code said;
        bool over = false;
        const auto begin = clock::of(ex).now();
        reader->async_read(0, into, asio::bind_cancellation_slot(stop.slot(), [&](error_code ec, std::size_t) {
                             CHECK(nobody_uses(into));
                             said = ec, over = true;
                           }));
        co_await clock::of(ex).async_wait_for(1500us, asio::deferred);  // in the second chunk
        stop.emit(asio::cancellation_type::terminal);
        while (!over) co_await clock::of(ex).async_wait_for(100us, asio::deferred);
        CHECK(said == asio::error::operation_aborted);
        CHECK(clock::of(ex).now() - begin >= 2ms);
        CHECK(clock::of(ex).now() - begin < 3ms);
        CHECK((co_await read_layer(*reader, bed.dev, 0, 7, 1)).error() == errc::closed);
        co_await all_are_back(bed.staging);
      },
      simulated);
}

TEST_CASE("staged store: readers and writers outlive the store, and may go while they are at it") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto slow = std::make_shared<slow_store>(ex, 5us);
        auto dev = open_device(ex, "sim:h200").value();
        auto staging = contract_staging(dev, 2, 1);
        auto s = std::make_unique<staged_store>(slow, staging);
        auto writer = co_await s->async_open_write(ns, contract_layout(), contract_keys(0, 5));
        s.reset();
        CHECK(!co_await write_layers(*writer, dev, 0, 5));
        co_await writer->async_commit();
        s = std::make_unique<staged_store>(slow, staging);
        auto reader = co_await s->async_open_read(ns, contract_layout(), contract_keys(0, 5));
        writer = co_await s->async_open_write(ns, contract_layout(), contract_keys(50, 5));
        s.reset();
        int over = 0;
        auto into = device_segments(dev, 5, 1000), from = device_segments(dev, 5, 1000);
        reader->async_read(0, into, [&](error_code, std::size_t) { over += nobody_uses(into); });
        writer->async_write(0, from, [&](error_code) { over += nobody_uses(from); });
        co_await clock::of(ex).async_wait_for(7us, asio::deferred);
        reader.reset();
        writer.reset();
        co_await clock::of(ex).async_wait_for(1ms, asio::deferred);
        CHECK(over == 2);
        CHECK(co_await slow->async_match(ns, contract_keys(50, 5)) == 0);
        co_await all_are_back(staging);
      },
      simulated);
}

TEST_CASE("staged store: its operations: tokens, executors, cancellation") {
  struct rig {
    explicit rig(sim_context& ctx) : bed(ctx.get_executor(), 2, 1) {
      run_to_end(ctx, [](rig& r) -> awaitable<void> {
        CHECK(!co_await write_blocks(r.bed.host, ns, 0, 5));
        r.reader = co_await r.bed.staged->async_open_read(ns, contract_layout(), contract_keys(0, 5));
        r.writer = co_await r.bed.staged->async_open_write(ns, contract_layout(), contract_keys(50, 5));
        CHECK(!co_await write_layers(*r.writer, r.bed.dev, 50, 5));
        r.half = co_await r.bed.staged->async_open_write(ns, contract_layout(), contract_keys(70, 5));
      }(*this));
    }
    std::vector<buffer> segments() { return device_segments(bed.dev, 5, 1000); }

    staged_bed bed;
    std::unique_ptr<block_reader> reader;
    std::unique_ptr<block_writer> writer, half;
  };
  check_operation("async_open_read", [](sim_context& ctx) {
    auto r = std::make_shared<rig>(ctx);
    return matrix_row([r](auto&& token) {
      return r->bed.staged->async_open_read(ns, contract_layout(), contract_keys(0, 5),
                                            std::forward<decltype(token)>(token));
    });
  });
  check_operation("async_open_write", [](sim_context& ctx) {
    auto r = std::make_shared<rig>(ctx);
    return matrix_row([r](auto&& token) {
      return r->bed.staged->async_open_write(ns, contract_layout(), contract_keys(90, 5), {},
                                             std::forward<decltype(token)>(token));
    });
  });
  check_operation("async_read", [](sim_context& ctx) {
    auto r = std::make_shared<rig>(ctx);
    return matrix_row(
        [r](auto&& token) { return r->reader->async_read(0, r->segments(), std::forward<decltype(token)>(token)); });
  });
  check_operation("async_write", [](sim_context& ctx) {
    auto r = std::make_shared<rig>(ctx);
    return matrix_row(
        [r](auto&& token) { return r->half->async_write(0, r->segments(), std::forward<decltype(token)>(token)); });
  });
  check_operation("async_commit", [](sim_context& ctx) {
    auto r = std::make_shared<rig>(ctx);
    return matrix_row([r](auto&& token) { return r->writer->async_commit(std::forward<decltype(token)>(token)); });
  });
}
