#include "cokv/kvstream/staged_store.hpp"

#include <doctest/doctest.h>

#include "cokv/runtime/with.hpp"
#include "support/staged_bed.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace std::chrono_literals;

namespace {

const auto ns = staged_ns;
const co_options simulated{.real = false};

}  // namespace

TEST_CASE("staged store: the example of its header") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        const auto g = geometry::attention(3, 2, 4, dtype::f32);
        const std::vector<block_key> keys = contract_keys(0, 2);
        const memory_store_options options;
        auto device = open_device(ex, "sim:h200").value();
        const auto segments = device_segments(device, 2, g.layout().segments[0]);

        auto staging = cokv::store_staging::make(device, {.buffer_bytes = 8 << 20, .buffers = 4}).value();
        cokv::staged_store host(std::make_shared<cokv::memory_store>(ex, options), staging);
        auto reader = co_await host.async_open_read(ns, g.layout(), keys);
        std::size_t good = co_await reader->async_read(0, segments);
        CHECK(good == 0);
      },
      simulated);
}

TEST_CASE("staged store: the contract, through memory that the host can't reach, with hardly any staging") {
  std::size_t keys_a_chunk = 1, buffers = 1;
  SUBCASE("a buffer a key, and one of them") {}
  SUBCASE("two buffers") { keys_a_chunk = 2, buffers = 2; }
  SUBCASE("a buffer for most calls whole") { keys_a_chunk = 5, buffers = 2; }
  store_contract(
      [=](asio::any_io_executor ex, std::uint64_t limit) -> awaitable<stored> {
        // The tokens are tested on the real context.
        const bool sim = ex.target<sim_context::executor_type>() != nullptr;
        auto dev = open_device(ex, sim ? "sim:h200" : "cpu").value();
        auto behind = std::make_shared<memory_store>(ex, memory_store_options{limit});
        auto staged = std::make_unique<staged_store>(behind, contract_staging(dev, keys_a_chunk, buffers));
        co_return stored{std::make_unique<device_memory_store>(std::move(staged), dev), nullptr};
      },
      {.run = {.real = false, .seeds = 10}});
}

TEST_CASE("staged store: wherever chunks begin and end, what is written is read") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        staged_bed bed(ex, 3, 2);
        for (std::uint32_t count = 1; count < 11; ++count) {
          CHECK(!co_await write_blocks(bed.host, ns, 100 * count, count));
          CHECK(co_await read_blocks(*bed.behind, ns, 100 * count, count) == count);
          CHECK(co_await read_blocks(bed.host, ns, 100 * count, count + 4) == count);
          auto reader = co_await bed.staged->async_open_read(ns, contract_layout(), contract_keys(100 * count, 14));
          CHECK(reader->found() == count);
          CHECK(!reader->views_at_once());
          CHECK((co_await reader->async_view(0, as_result)).error() == errc::unsupported);
          CHECK(co_await read_layer(*reader, bed.dev, 100 * count, count, 0) ==
                count);  // a buffer for each that was found
          CHECK(co_await read_layer(*reader, bed.dev, 100 * count, 14, 2) == count);  // or for each key
        }
        co_await all_are_back(bed.staging);
      },
      simulated);
}

TEST_CASE("staged store: a block that is missing or damaged ends the prefix, in whatever chunk it is") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        staged_bed bed(ex, 2, 2);
        for (std::uint32_t bad = 0; bad < 7; ++bad) {
          CHECK(!co_await write_blocks(bed.host, ns, 0, 7));
          CHECK((co_await bed.staged->async_remove(ns, contract_keys(bad, 1)[0], as_result)).has_value());
          auto reader = co_await bed.staged->async_open_read(ns, contract_layout(), contract_keys(0, 7));
          CHECK(reader->found() == bad);
          CHECK(co_await read_layer(*reader, bed.dev, 0, 7, 0) == bad);
          reader.reset();
          CHECK(!co_await write_blocks(bed.host, ns, 0, 7));

          bed.memory().stored_segment(ns, contract_keys(bad, 1)[0], 1).data()[7] ^= std::byte{1};
          reader = co_await bed.staged->async_open_read(ns, contract_layout(), contract_keys(0, 7));
          CHECK(reader->found() == 7);
          CHECK(co_await read_layer(*reader, bed.dev, 0, 7, 0) == 7);
          CHECK(co_await read_layer(*reader, bed.dev, 0, 7, 1) == bad);
          CHECK(co_await read_layer(*reader, bed.dev, 0, 7, 2) == bad);
          CHECK(co_await read_layer(*reader, bed.dev, 0, 7, 3) == bad);
          reader.reset();
          CHECK(!co_await write_blocks(bed.host, ns, 0, 7));
          CHECK(co_await read_blocks(bed.host, ns, 0, 7) == 7);
        }
        co_await all_are_back(bed.staging);
      },
      simulated);
}

TEST_CASE("staged store: what it can't take it refuses, and the reader or writer goes on") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        staged_bed bed(ex, 2, 2);
        CHECK(store_staging::make(bed.dev, {.buffers = 0}).error() == errc::invalid_argument);
        CHECK(store_staging::make(bed.dev, {.buffer_bytes = 0}).error() == errc::invalid_argument);
        CHECK_THROWS_AS(staged_store(nullptr, bed.staging), config_error);
        const block_layout wide{{24, contract_staging(bed.dev, 2, 1).buffer_bytes() + 1}};
        CHECK((co_await bed.staged->async_open_write(ns, wide, contract_keys(0, 1), {}, as_result)).error() ==
              errc::too_large);
        CHECK((co_await bed.staged->async_open_read(ns, wide, contract_keys(0, 1), as_result)).error() ==
              errc::too_large);
        const auto far_apart = std::vector{contract_keys(0, 1)[0], contract_keys(1, 1)[0], contract_keys(0, 1)[0]};
        CHECK((co_await bed.staged->async_open_write(ns, contract_layout(), far_apart, {}, as_result)).error() ==
              errc::invalid_argument);

        auto writer = co_await bed.staged->async_open_write(ns, contract_layout(), contract_keys(0, 3));
        CHECK(writer->place(0).empty());
        CHECK((co_await writer->async_placed(0, {}, as_result)).error() == errc::invalid_argument);
        CHECK((co_await writer->async_write(0, device_segments(bed.dev, 2, 1000), as_result)).error() ==
              errc::invalid_argument);
        CHECK((co_await writer->async_write(9, device_segments(bed.dev, 3, 1000), as_result)).error() ==
              errc::out_of_range);
        CHECK(!co_await write_layers(*writer, bed.dev, 0, 3));
        co_await writer->async_commit();
        CHECK((co_await writer->async_write(0, device_segments(bed.dev, 3, 1000), as_result)).error() == errc::closed);

        // Memory of another device: that copy can't be, and what was to be read with it is lost.
        auto elsewhere = open_device(ex, "sim:h200:1").value();
        auto reader = co_await bed.staged->async_open_read(ns, contract_layout(), contract_keys(0, 3));
        auto into = device_segments(elsewhere, 3, 1000);
        CHECK((co_await reader->async_read(0, into, as_result)).error() == errc::wrong_device);
        CHECK((co_await read_layer(*reader, bed.dev, 0, 3, 1)).error() == errc::closed);
        CHECK(co_await read_blocks(bed.host, ns, 0, 3) == 3);
        co_await all_are_back(bed.staging);
      },
      simulated);
}

TEST_CASE("staged store: host memory goes straight to the store behind") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        staged_bed bed(ex, 2, 1);
        CHECK(!co_await write_blocks(*bed.staged, ns, 0, 5));
        CHECK(co_await read_blocks(*bed.staged, ns, 0, 6) == 5);
        CHECK(staged_gpu(ex).counts.operations == 0);
        CHECK(!co_await write_blocks(bed.host, ns, 10, 5));
        CHECK(staged_gpu(ex).counts.operations == 3 * contract_layout().layers());  // a batch a chunk and layer
        CHECK(co_await read_blocks(*bed.staged, ns, 10, 5) == 5);
        // Some of each: all of it is staged.
        auto reader = co_await bed.staged->async_open_read(ns, contract_layout(), contract_keys(10, 2));
        auto into = device_segments(bed.dev, 1, 1000);
        into.push_back(buffer::host(1000));
        const auto before = staged_gpu(ex).counts.operations;
        CHECK(co_await reader->async_read(0, into) == 2);
        CHECK(staged_gpu(ex).counts.operations == before + 1);
        for (std::uint32_t i = 0; i < 2; ++i) CHECK(into[i].data()[999] == contract_byte(10 + i, 0, 999));
      },
      simulated);
}

TEST_CASE("staged store: many readers and writers at once don't wait for each other in a circle") {
  for (const std::size_t buffers : {1u, 2u, 3u})
    co_test(
        [buffers](asio::any_io_executor ex) -> awaitable<void> {
          staged_bed bed(open_device(ex, "sim:h200").value(), std::make_shared<slow_store>(ex, 3us), 2, buffers);
          auto& host = bed.host;
          CHECK(!co_await write_blocks(host, ns, 0, 40));
          auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
            for (std::uint32_t i = 0; i < 8; ++i) {
              group.spawn(
                  [&host, i]() -> awaitable<void> { CHECK(!co_await write_blocks(host, ns, 100 * i + 50, 7)); });
              group.spawn([&host, i]() -> awaitable<void> { CHECK(co_await read_blocks(host, ns, 5 * i, 5) == 5); });
            }
            co_return;
          });
          CHECK(!v.error());
          for (std::uint32_t i = 0; i < 8; ++i) CHECK(co_await read_blocks(host, ns, 100 * i + 50, 7) == 7);
          co_await all_are_back(bed.staging);
        },
        {.real = false, .seeds = 20});
}

TEST_CASE("staged store: a chunk is on its way while another one is copied") {
  const block_layout layout{{8 << 20}};
  const auto took = [&](std::size_t buffers, bool writes) {
    duration time{};
    co_test(
        [&](asio::any_io_executor ex) -> awaitable<void> {
          auto dev = open_device(ex, "sim:h200").value();
          auto behind = std::make_shared<slow_store>(ex, 150us);  // as long as 8 MiB take to the device
          staged_store s(behind, store_staging::make(dev, {.buffers = buffers}).value());
          auto writer = co_await s.async_open_write(ns, layout, contract_keys(0, 6), write_options{.stable = true});
          CHECK(!behind->asked.stable);
          auto& time_of = clock::of(ex);
          auto begin = time_of.now();
          co_await writer->async_write(0, device_segments(dev, 6, 8 << 20, 0x11));
          if (writes) time = time_of.now() - begin;
          co_await writer->async_commit();
          auto reader = co_await s.async_open_read(ns, layout, contract_keys(0, 6));
          auto into = device_segments(dev, 6, 8 << 20);
          begin = time_of.now();
          CHECK(co_await reader->async_read(0, into) == 6);
          if (!writes) time = time_of.now() - begin;
          for (auto& b : into) CHECK(b.data()[b.size() - 1] == std::byte{0x11});
        },
        {.real = false, .seeds = 1});
    return time;
  };
  CHECK(took(2, false) < took(1, false) * 3 / 4);
  CHECK(took(3, true) < took(1, true) * 3 / 4);  // of two, one is for readers
}

TEST_CASE("staged store: of blocks that some chunks kept the commit tells which") {
  using bits = std::vector<bool>;
  struct outcome {
    std::map<int, error_code> commits;
    std::map<int, bits> keeps;
    error_code said;
    bits kept;
    std::size_t leading;
  };
  const auto full = make_error_code(errc::store_full), part = make_error_code(errc::partial),
             down = make_error_code(errc::unavailable);
  const outcome all[] = {
      {{}, {}, {}, {true, true, true, true, true}, 5},
      {{{1, full}}, {{1, {true, false}}}, full, {true, true, true, false, true}, 3},
      {{{0, part}}, {{0, {false, true}}}, part, {false, true, true, true, true}, 0},
      {{{0, full}, {1, full}, {2, full}}, {}, full, {false, false, false, false, false}, 0},
      {{{0, full}, {2, part}}, {}, part, {false, false, true, true, false}, 0},
      {{{1, down}}, {}, part, {true, true, false, false, false}, 2},
      {{{0, down}}, {}, down, {false, false, false, false, false}, 0},
  };
  for (const auto& want : all)
    co_test(
        [&](asio::any_io_executor ex) -> awaitable<void> {
          auto slow = std::make_shared<slow_store>(ex, 1us);
          slow->commits = want.commits;
          slow->keeps = want.keeps;
          staged_bed bed(open_device(ex, "sim:h200").value(), slow, 2, 2);
          auto writer =
              co_await bed.staged->async_open_write(ns, contract_layout(), contract_keys(0, 5),
                                                    write_options{.deferred = true, .force = true, .tenant = "t"});
          CHECK((slow->asked.deferred && slow->asked.force && slow->asked.tenant == "t"));
          CHECK(!co_await write_layers(*writer, bed.dev, 0, 5));
          CHECK(writer->kept() == 0);
          auto done = co_await writer->async_commit(as_result);
          CHECK((done ? error_code() : done.error()) == want.said);
          for (std::size_t i = 0; i < 5; ++i) CHECK(writer->keeps(i) == want.kept[i]);
          CHECK(!writer->keeps(5));
          CHECK(writer->kept() == want.leading);
          CHECK((co_await writer->async_commit(as_result)).error() == errc::closed);
        },
        {.real = false, .seeds = 2});
}
