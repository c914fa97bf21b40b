#include "cokv/kvstream/tiered_store.hpp"

#include <doctest/doctest.h>

#include "cokv/kvstream/digest.hpp"
#include "cokv/kvstream/memory_store.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "support/store_contract.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

const namespace_id ns = namespace_id::of("m", geometry::attention(3, 2, 4, dtype::f32));

struct pair {
  explicit pair(asio::any_io_executor ex, std::uint64_t fast_blocks, std::uint64_t lasting_blocks) {
    const auto whole = contract_layout().bytes();
    auto a = std::make_unique<memory_store>(ex, memory_store_options{fast_blocks * whole});
    auto b = std::make_unique<memory_store>(ex, memory_store_options{lasting_blocks * whole});
    fast = a.get();
    lasting = b.get();
    both = std::make_unique<tiered_store>(std::move(a), std::move(b));
  }
  memory_store* fast;
  memory_store* lasting;
  std::unique_ptr<tiered_store> both;
};

}  // namespace

TEST_CASE("tiered store: the contract, with a fast tier that loses most of it") {
  store_contract(
      [](asio::any_io_executor ex, std::uint64_t) -> awaitable<stored> {
        co_return stored{std::move(pair(ex, 3, 1000).both), nullptr};
      },
      {.has_limit = false});
}

TEST_CASE("tiered store: a prefix is read from whichever has its blocks") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    pair p(ex, 100, 100);
    auto& s = *p.both;
    CHECK(!co_await write_blocks(s, ns, 0, 8));
    for (const std::uint32_t lost : {0u, 3u, 4u, 7u})
      CHECK(co_await p.fast->async_remove(ns, contract_keys(lost, 1)[0], as_result));
    for (const std::uint32_t lost : {1u, 5u})
      CHECK(co_await p.lasting->async_remove(ns, contract_keys(lost, 1)[0], as_result));
    CHECK(co_await s.async_match(ns, contract_keys(0, 9), as_result) == 8);
    CHECK(co_await read_blocks(s, ns, 0, 9) == 8);
    CHECK(co_await p.fast->async_remove(ns, contract_keys(5, 1)[0], as_result));
    CHECK(co_await s.async_match(ns, contract_keys(0, 9), as_result) == 5);
    CHECK(co_await read_blocks(s, ns, 0, 9) == 5);

    auto reader = co_await s.async_open_read(ns, contract_layout(), contract_keys(0, 9), as_result);
    REQUIRE(reader.has_value());
    for (std::uint32_t layer = 0; layer < contract_layout().layers(); ++layer) {
      auto views = co_await (*reader)->async_view(layer, as_result);
      REQUIRE(views.has_value());
      CHECK(views->size() == 5);
      for (std::uint32_t i = 0; i < views->size(); ++i) {
        CHECK((*views)[i].digest == digest_of((*views)[i].bytes.bytes()));
        CHECK((*views)[i].bytes.data()[5] == contract_byte(i, layer, 5));
      }
    }
  });
}

TEST_CASE("tiered store: the lasting tier decides, the fast one may fail") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    pair small_fast(ex, 2, 100);
    CHECK(!co_await write_blocks(*small_fast.both, ns, 0, 5));  // too large for the fast one
    CHECK(small_fast.fast->info().blocks == 0);
    CHECK(co_await read_blocks(*small_fast.both, ns, 0, 5) == 5);
    pair small_lasting(ex, 100, 2);
    CHECK(co_await write_blocks(*small_lasting.both, ns, 0, 5) == errc::too_large);
    CHECK(small_lasting.fast->info().blocks == 0);
  });
}

TEST_CASE("tiered store: what is replaced is replaced in both, also where the fast tier has no room for it") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    for (const std::uint64_t fast_blocks : {1u, 100u}) {
      pair p(ex, fast_blocks, 100);
      CHECK(!co_await write_blocks(*p.both, ns, 0, 1));
      CHECK(p.fast->info().blocks == 1);
      std::unique_ptr<block_reader> holds;  // so that the fast one can't make room
      if (fast_blocks == 1) holds = co_await p.fast->async_open_read(ns, contract_layout(), contract_keys(0, 1));
      auto writer =
          co_await p.both->async_open_write(ns, contract_layout(), contract_keys(0, 1), write_options{.force = true});
      for (std::uint32_t layer = 0; layer < contract_layout().layers(); ++layer)
        co_await writer->async_write(layer, contract_segments(7, 1, layer));
      co_await writer->async_commit();
      CHECK(p.fast->info().blocks == (fast_blocks == 1 ? 0 : 1));
      auto reader = co_await p.both->async_open_read(ns, contract_layout(), contract_keys(0, 1));
      auto views = co_await reader->async_view(0);
      REQUIRE(views.size() == 1);
      CHECK(views[0].bytes.data()[5] == contract_byte(7, 0, 5));
    }
  });
}

TEST_CASE("tiered store: a match that refreshes keeps both copies") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    pair p(ex, 4, 4);
    for (std::uint32_t i = 0; i < 4; ++i) CHECK(!co_await write_blocks(*p.both, ns, i, 1));
    CHECK(co_await p.both->async_match(ns, contract_keys(0, 2), match_options{.refresh = true}) == 2);
    CHECK(!co_await write_blocks(*p.both, ns, 10, 2));
    for (auto* tier : {p.fast, p.lasting}) CHECK(co_await tier->async_match(ns, contract_keys(0, 2)) == 2);
  });
}

TEST_CASE("tiered store: damage in one tier ends the prefix there, for all layers to come") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    pair p(ex, 100, 100);
    CHECK(!co_await write_blocks(*p.both, ns, 0, 6));
    CHECK(co_await p.fast->async_remove(ns, contract_keys(2, 1)[0], as_result));
    auto bytes = p.lasting->stored_segment(ns, contract_keys(2, 1)[0], 1);
    REQUIRE(!bytes.empty());
    bytes.data()[7] ^= std::byte{1};
    CHECK(co_await read_blocks(*p.both, ns, 0, 6) == 2);
    CHECK(p.both->info().digest_failures == 1);
  });
}

TEST_CASE("tiered store: what is put into the fast tier's memory is written to the lasting one from there") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    pair p(ex, 100, 100);
    const auto layout = contract_layout();
    auto writer = co_await p.both->async_open_write(ns, layout, contract_keys(0, 2));
    for (std::uint32_t layer = 0; layer < layout.layers(); ++layer) {
      const auto places = writer->place(layer);
      REQUIRE(places.size() == 2);
      const auto from = contract_segments(0, 2, layer);
      std::vector<std::uint64_t> digests;
      for (std::size_t i = 0; i < 2; ++i) {
        std::copy_n(from[i].data(), from[i].size(), places[i].data());
        digests.push_back(digest_of(from[i].bytes()));
      }
      co_await writer->async_placed(layer, digests);
    }
    co_await writer->async_commit();
    CHECK(co_await read_blocks(*p.fast, ns, 0, 2) == 2);
    CHECK(co_await read_blocks(*p.lasting, ns, 0, 2) == 2);
    // A key that one of them has already: the other one wants the bytes all the same.
    for (auto* lost : {p.fast, p.lasting}) {
      CHECK((co_await lost->async_remove(ns, contract_keys(0, 1)[0], as_result)).has_value());
      auto again = co_await p.both->async_open_write(ns, layout, contract_keys(0, 2));
      CHECK(again->place(0).empty());
      again.reset();
      CHECK(!co_await write_blocks(*p.both, ns, 0, 2));
      CHECK(co_await read_blocks(*lost, ns, 0, 2) == 2);
    }
    // Without room in the fast one there is no such memory.
    pair small(ex, 1, 100);
    auto wide = co_await small.both->async_open_write(ns, layout, contract_keys(0, 2));
    CHECK(wide->place(0).empty());
  });
}
