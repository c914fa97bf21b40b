#include "cokv/kvstream/memory_store.hpp"

#include <doctest/doctest.h>

#include "cokv/kvstream/digest.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "support/store_contract.hpp"
#include "support/store_contract_quotas.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

const namespace_id ns = namespace_id::of("m", geometry::attention(3, 2, 4, dtype::f32));

}  // namespace

TEST_CASE("memory store: the contract") {
  store_contract([](asio::any_io_executor ex, std::uint64_t limit) -> awaitable<stored> {
    co_return stored{std::make_unique<memory_store>(ex, memory_store_options{limit}), nullptr};
  });
}

TEST_CASE("memory store: a flipped bit is found, counted, and never used") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    for (std::uint32_t layer = 0; layer < contract_layout().layers(); ++layer) {
      memory_store s(ex, {});
      auto written = co_await write_blocks(s, ns, 0, 4);
      CHECK(!written);
      auto bytes = s.stored_segment(ns, contract_keys(2, 1)[0], layer);
      REQUIRE(!bytes.empty());
      bytes.data()[bytes.size() - 1] ^= std::byte{0x10};
      auto good = co_await read_blocks(s, ns, 0, 4);
      CHECK(good == 2);
      CHECK(s.info().digest_failures == 1);
      auto left = co_await s.async_match(ns, contract_keys(0, 4));
      CHECK(left == 2);  // the bad one is gone
      written = co_await write_blocks(s, ns, 2, 1);
      CHECK(!written);
      good = co_await read_blocks(s, ns, 0, 4);
      CHECK(good == 4);
    }
  });
}

TEST_CASE(
    "memory store: a block that was viewed is looked at when it is written again, and replaced if it is damaged") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    const auto view_all = [](memory_store& s) -> awaitable<std::unique_ptr<block_reader>> {
      auto reader = co_await s.async_open_read(ns, contract_layout(), contract_keys(0, 4));
      for (std::uint32_t layer = 0; layer < contract_layout().layers(); ++layer) co_await reader->async_view(layer);
      co_return reader;
    };
    for (std::uint32_t layer = 0; layer < contract_layout().layers(); ++layer) {
      memory_store s(ex, {});
      const auto damage = [&] {
        auto bytes = s.stored_segment(ns, contract_keys(2, 1)[0], layer);
        bytes.data()[0] ^= std::byte{1};
      };
      CHECK(!co_await write_blocks(s, ns, 0, 4));
      co_await view_all(s);
      CHECK(!co_await write_blocks(s, ns, 0, 4));
      CHECK(s.info().digest_failures == 0);
      CHECK(s.info().written_blocks == 4);
      // Looked at once; who views it again may find something again.
      co_await view_all(s);
      damage();
      CHECK(!co_await write_blocks(s, ns, 0, 4));
      CHECK(s.info().digest_failures == 1);
      CHECK(s.info().written_blocks == 5);
      CHECK(s.info().blocks == 4);
      CHECK(co_await read_blocks(s, ns, 0, 4) == 4);
      // What somebody holds a view of may be found damaged after it was looked at.
      auto reader = co_await view_all(s);
      CHECK(!co_await write_blocks(s, ns, 0, 4));
      CHECK(s.info().written_blocks == 5);
      damage();
      reader.reset();
      CHECK(!co_await write_blocks(s, ns, 0, 4));
      CHECK(s.info().written_blocks == 6);
    }
  });
}

TEST_CASE("memory store: a block that nobody was shown is not looked at when it is written again") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    memory_store s(ex, {});
    CHECK(!co_await write_blocks(s, ns, 0, 2));
    auto bytes = s.stored_segment(ns, contract_keys(1, 1)[0], 0);
    bytes.data()[0] ^= std::byte{1};
    CHECK(!co_await write_blocks(s, ns, 0, 2));
    CHECK(s.info().written_blocks == 2);
    CHECK(co_await read_blocks(s, ns, 0, 2) == 1);  // and yet it is never used
  });
}

namespace {

void fill(const std::vector<buffer>& places, std::uint32_t first, std::uint32_t layer) {
  const auto from = contract_segments(first, static_cast<std::uint32_t>(places.size()), layer);
  for (std::size_t i = 0; i < places.size(); ++i)
    if (!places[i].empty()) std::copy_n(from[i].data(), from[i].size(), places[i].data());
}

std::vector<std::uint64_t> digests(std::uint32_t first, std::uint32_t count, std::uint32_t layer) {
  std::vector<std::uint64_t> out;
  for (const auto& s : contract_segments(first, count, layer)) out.push_back(digest_of(s.bytes()));
  return out;
}

}  // namespace

TEST_CASE("memory store: segments are put where it keeps them, with digests that somebody made or without") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    for (const bool made : {true, false}) {
      memory_store s(ex, {});
      const auto layout = contract_layout();
      auto writer = co_await s.async_open_write(ns, layout, contract_keys(0, 3));
      for (std::uint32_t layer = 0; layer < layout.layers(); ++layer) {
        const auto places = writer->place(layer);
        REQUIRE(places.size() == 3);
        fill(places, 0, layer);
        co_await writer->async_placed(layer, made ? digests(0, 3, layer) : std::vector<std::uint64_t>());
        CHECK(co_await s.async_match(ns, contract_keys(0, 3)) == 0);
      }
      co_await writer->async_commit();
      CHECK(writer->place(0).empty());
      CHECK(co_await read_blocks(s, ns, 0, 3) == 3);
      CHECK(s.stored_segment(ns, contract_keys(1, 1)[0], 0).data() != nullptr);
      // What lies there is what the digest says, or it is never used.
      auto wrong = co_await s.async_open_write(ns, layout, contract_keys(10, 1));
      for (std::uint32_t layer = 0; layer < layout.layers(); ++layer) {
        fill(wrong->place(layer), 11, layer);
        co_await wrong->async_placed(layer, digests(10, 1, layer));
      }
      co_await wrong->async_commit();
      CHECK(co_await read_blocks(s, ns, 10, 1) == 0);
    }
  });
}

TEST_CASE("memory store: there is no place for what is stored already, and each layer is put once") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    memory_store s(ex, {});
    const auto layout = contract_layout();
    CHECK(!co_await write_blocks(s, ns, 1, 1));
    auto writer = co_await s.async_open_write(ns, layout, contract_keys(0, 3));
    auto places = writer->place(0);
    REQUIRE(places.size() == 3);
    CHECK(places[0].size() == layout.segments[0]);
    CHECK(places[1].empty());
    CHECK(places[2].size() == layout.segments[0]);
    fill(places, 0, 0);
    CHECK((co_await writer->async_placed(0, {1, 2}, as_result)).error() == errc::invalid_argument);
    CHECK((co_await writer->async_placed(99, digests(0, 3, 0), as_result)).error() == errc::out_of_range);
    CHECK((co_await writer->async_placed(0, digests(0, 3, 0), as_result)).has_value());
    CHECK((co_await writer->async_placed(0, digests(0, 3, 0), as_result)).error() == errc::invalid_argument);
    CHECK((co_await writer->async_write(0, contract_segments(0, 3, 0), as_result)).error() == errc::invalid_argument);
    for (std::uint32_t layer = 1; layer < layout.layers(); ++layer) {  // either way, layer by layer
      if (layer % 2) {
        co_await writer->async_write(layer, contract_segments(0, 3, layer));
      } else {
        fill(writer->place(layer), 0, layer);
        co_await writer->async_placed(layer, digests(0, 3, layer));
      }
    }
    co_await writer->async_commit();
    CHECK(co_await read_blocks(s, ns, 0, 3) == 3);
    // The places keep their memory, and count it, longer than their writer.
    auto gone = co_await s.async_open_write(ns, layout, contract_keys(20, 1));
    places = gone->place(0);
    gone.reset();
    CHECK(s.info().used_bytes == 4 * layout.bytes());
    fill(places, 20, 0);
    places.clear();
    CHECK(s.info().used_bytes == 3 * layout.bytes());
  });
}

TEST_CASE("memory store: counts what it did") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    memory_store s(ex, {.limit_bytes = 1 << 20});
    auto bytes = contract_layout().bytes();
    auto written = co_await write_blocks(s, ns, 0, 3);
    CHECK(!written);
    auto good = co_await read_blocks(s, ns, 0, 5);
    CHECK(good == 3);
    auto info = s.info();
    CHECK(info.kind == "memory");
    CHECK(info.limit_bytes == 1 << 20);
    CHECK(info.used_bytes == 3 * bytes);
    CHECK(info.blocks == 3);
    CHECK(info.written_blocks == 3);
    CHECK(info.written_bytes == 3 * bytes);
    CHECK(info.hits == 3);
    CHECK(info.misses == 2);
    CHECK(info.read_segments == 3 * contract_layout().layers());
    CHECK(info.read_bytes == 3 * bytes);
    {
      auto writer = co_await s.async_open_write(ns, contract_layout(), contract_keys(8, 2));
      CHECK(s.info().used_bytes == 5 * bytes);  // what is being written counts
    }
    CHECK(s.info().used_bytes == 3 * bytes);
    CHECK(s.info().failed_writes == 2);
  });
}

TEST_CASE("memory store: a removed block is read to its end, and its memory counted until then") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    memory_store s(ex, {});
    auto layout = contract_layout();
    auto written = co_await write_blocks(s, ns, 0, 1);
    CHECK(!written);
    auto reader = co_await s.async_open_read(ns, layout, contract_keys(0, 1));
    co_await s.async_remove(ns, contract_keys(0, 1)[0]);
    CHECK(s.info().used_bytes == layout.bytes());
    CHECK(s.info().blocks == 0);
    for (std::uint32_t layer = 0; layer < layout.layers(); ++layer) {
      auto good = co_await reader->async_read(layer, {buffer::host(layout.segments[layer])});
      CHECK(good == 1);
    }
    reader.reset();
    CHECK(s.info().used_bytes == 0);
  });
}

TEST_CASE("memory store: memory that a view keeps counts until the view is gone") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    memory_store s(ex, {});
    auto layout = contract_layout();
    auto written = co_await write_blocks(s, ns, 0, 2);
    CHECK(!written);
    auto reader = co_await s.async_open_read(ns, layout, contract_keys(0, 2));
    auto views = co_await reader->async_view(0);
    REQUIRE(views.size() == 2);
    reader.reset();
    co_await s.async_remove(ns, contract_keys(0, 1)[0]);
    co_await s.async_remove(ns, contract_keys(1, 1)[0]);
    CHECK(s.info().used_bytes == 2 * layout.bytes());
    views.pop_back();
    CHECK(s.info().used_bytes == layout.bytes());
    views.clear();
    CHECK(s.info().used_bytes == 0);
  });
}

TEST_CASE("memory store: readers and writers may outlive it") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    auto s = std::make_unique<memory_store>(ex, memory_store_options());
    auto layout = contract_layout();
    auto writer = co_await s->async_open_write(ns, layout, contract_keys(0, 1));
    co_await write_blocks(*s, ns, 1, 1);
    auto reader = co_await s->async_open_read(ns, layout, contract_keys(1, 1));
    s.reset();
    co_await writer->async_write(0, contract_segments(0, 1, 0));
    auto good = co_await reader->async_read(0, {buffer::host(layout.segments[0])});
    CHECK(good == 1);
  });
}

TEST_CASE("memory store: a key stored with another layout is not written over") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    memory_store s(ex, {});
    co_await write_blocks(s, ns, 0, 1);
    auto [ec, writer] = co_await s.async_open_write(ns, {{8}}, contract_keys(0, 1), {}, asio::as_tuple(asio::deferred));
    CHECK(ec == errc::namespace_mismatch);
    CHECK(!writer);
  });
}

TEST_CASE("memory store: what a match refreshes is not given up next") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    for (const bool refresh : {false, true}) {
      memory_store s(ex, {.limit_bytes = 4 * contract_layout().bytes()});
      for (std::uint32_t i = 0; i < 4; ++i) CHECK(!co_await write_blocks(s, ns, i, 1));
      CHECK(co_await s.async_match(ns, contract_keys(0, 2), match_options{.refresh = refresh}) == 2);
      CHECK(!co_await write_blocks(s, ns, 10, 2));
      CHECK(co_await s.async_match(ns, contract_keys(0, 2)) == (refresh ? 2 : 0));
    }
  });
}

TEST_CASE("memory store: who reads a block that is replaced reads the old one to its end, and its memory counts") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    memory_store s(ex, {.limit_bytes = 3 * contract_layout().bytes()});
    const auto layout = contract_layout();
    CHECK(!co_await write_blocks(s, ns, 0, 1));
    auto reader = co_await s.async_open_read(ns, layout, contract_keys(0, 1));
    CHECK(!co_await write_blocks(s, ns, 0, 1, {.force = true}));
    CHECK(s.info().blocks == 1);
    CHECK(s.info().used_bytes == 2 * layout.bytes());
    for (std::uint32_t layer = 0; layer < layout.layers(); ++layer)
      CHECK(co_await reader->async_read(layer, {buffer::host(layout.segments[layer])}) == 1);
    reader.reset();
    CHECK(s.info().used_bytes == layout.bytes());
    CHECK(!co_await write_blocks(s, ns, 1, 3));  // no pin of the old one holds the new one
  });
}

TEST_CASE("memory store: a block lies in one piece, for which others than the oldest go where they are in its way") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    constexpr std::uint64_t small = 1024;
    for (const bool held : {false, true}) {
      CAPTURE(held);
      memory_store s(ex, {.limit_bytes = 4 * small});
      const auto write = [&](std::uint32_t key, std::uint64_t bytes) -> awaitable<error_code> {
        auto writer = co_await s.async_open_write(ns, {{bytes}}, contract_keys(key, 1), {}, as_result);
        if (!writer) co_return writer.error();
        CHECK((co_await (*writer)->async_write(0, {buffer::host(bytes)}, as_result)).has_value());
        CHECK((co_await (*writer)->async_commit(as_result)).has_value());
        co_return error_code();
      };
      for (std::uint32_t key = 0; key < 4; ++key) CHECK(!co_await write(key, small));
      // The second stays, and perhaps the last: the first and the third are given up, and lie apart.
      auto second = co_await s.async_open_read(ns, {{small}}, contract_keys(1, 1));
      auto last = co_await s.async_open_read(ns, {{small}}, contract_keys(held ? 3 : 1, 1));
      CHECK(co_await write(4, 2 * small) == (held ? make_error_code(errc::store_full) : error_code()));
      CHECK(s.info().blocks == 2);
      CHECK(co_await s.async_match(ns, contract_keys(1, 1)) == 1);
      CHECK(co_await s.async_match(ns, contract_keys(4, 1)) == (held ? 0 : 1));
      CHECK(s.info().used_bytes == (held ? 2 : 3) * small);
      CHECK(!co_await write(5, small));  // there is still room for one
      CHECK(s.info().used_bytes <= 4 * small);
    }
  });
}

TEST_CASE("memory store: tenants keep to their quotas, and are told of in info") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    const auto whole = contract_layout().bytes();
    memory_store s(ex, {.limit_bytes = 8 * whole, .quotas = {{"a", 3 * whole}}});
    for (std::uint32_t i = 0; i < 5; ++i) CHECK(!co_await write_blocks(s, ns, i, 1, {.tenant = "a"}));
    CHECK(s.info().used_bytes == 3 * whole);
    CHECK(co_await s.async_match(ns, contract_keys(2, 3)) == 3);
    for (std::uint32_t i = 10; i < 30; ++i) CHECK(!co_await write_blocks(s, ns, i, 1));
    CHECK(co_await s.async_match(ns, contract_keys(2, 3)) == 3);  // others push out their own
    CHECK(co_await write_blocks(s, ns, 40, 4, {.tenant = "a"}) == errc::too_large);
    {
      auto reader = co_await s.async_open_read(ns, contract_layout(), contract_keys(2, 3));
      CHECK(co_await write_blocks(s, ns, 50, 1, {.tenant = "a"}) == errc::store_full);
    }
    CHECK(!co_await write_blocks(s, ns, 10, 2, {.force = true, .tenant = "a"}));  // and from now on they are a's
    const auto info = s.info();
    REQUIRE(info.tenants.size() == 1);
    CHECK(info.tenants[0].name == "a");
    CHECK(info.tenants[0].used_bytes == 3 * whole);
    CHECK(info.tenants[0].quota_bytes == 3 * whole);
    s.set_quotas({{"a", whole}});
    CHECK(!co_await write_blocks(s, ns, 60, 1, {.tenant = "a"}));
    CHECK(s.info().tenants[0].used_bytes == whole);
  });
}

TEST_CASE("memory store: the contract of quotas") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    memory_store s(ex, {.limit_bytes = std::uint64_t{1} << 24});
    co_await quota_contract(s, [&](const tenant_quotas& q) { s.set_quotas(q); }, contract_layout().bytes());
  });
}

TEST_CASE("memory store: what is read and seen without an operation is what one gives") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    memory_store s(ex, {});
    CHECK(!co_await write_blocks(s, ns, 0, 2));
    const auto layout = contract_layout();
    auto reader = co_await s.async_open_read(ns, layout, contract_keys(0, 3));
    const auto of = [&](std::uint32_t layer) {
      return std::vector{buffer::host(layout.segments[layer]), buffer::host(layout.segments[layer])};
    };
    CHECK(reader->read_now(0, {}).error() == errc::invalid_argument);
    const auto into = of(1);
    CHECK(reader->read_now(1, into).value() == 2);
    CHECK(into[1].data()[7] == contract_byte(1, 1, 7));
    CHECK(reader->read_now(1, into).error() == errc::invalid_argument);
    CHECK(reader->view_now(1).error() == errc::invalid_argument);
    const auto views = reader->view_now(2).value();
    REQUIRE(views.size() == 2);
    CHECK(views[0].bytes.data() == s.stored_segment(ns, contract_keys(0, 1)[0], 2).data());
    CHECK(views[0].digest == digest_of(views[0].bytes.bytes()));
    s.stored_segment(ns, contract_keys(1, 1)[0], 3).data()[0] ^= std::byte{1};
    CHECK(reader->read_now(3, of(3)).value() == 1);
    CHECK(reader->read_now(4, {}).error() == errc::out_of_range);
    CHECK(reader->view_now(4).error() == errc::out_of_range);
    CHECK(s.info().read_segments == 5);
    CHECK(s.info().digest_failures == 1);
  });
}

TEST_CASE("memory store: a limit of 0 is refused") {
  asio::io_context ctx(1);
  CHECK_THROWS_AS(memory_store(ctx.get_executor(), {.limit_bytes = 0}), config_error);
}

TEST_CASE("memory store: without digests nothing is made, kept or compared") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    memory_store s(ex, {.digest = digest_algorithm::none});
    CHECK(!co_await write_blocks(s, ns, 0, 2));
    CHECK(co_await read_blocks(s, ns, 0, 2) == 2);
    s.stored_segment(ns, contract_keys(0, 1)[0], 0).data()[5] ^= std::byte{1};
    auto reader = co_await s.async_open_read(ns, contract_layout(), contract_keys(0, 2));
    for (const auto& view : co_await reader->async_view(0)) CHECK(!view.digest);
    reader = co_await s.async_open_read(ns, contract_layout(), contract_keys(0, 2));
    CHECK(co_await reader->async_read(0, contract_segments(0, 2, 0)) == 2);
    CHECK(!co_await write_blocks(s, ns, 0, 2));
    CHECK(s.info().written_blocks == 2);
    CHECK(s.info().digest_failures == 0);
  });
}
