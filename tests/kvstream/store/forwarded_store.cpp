#include "cokv/kvstream/forwarded_store.hpp"

#include <doctest/doctest.h>

#include "cokv/kvstream/digest.hpp"
#include "cokv/kvstream/memory_store.hpp"
#include "cokv/kvstream/tiered_store.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "support/store_contract.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

const namespace_id ns = namespace_id::of("m", geometry::attention(3, 2, 4, dtype::f32));

}  // namespace

TEST_CASE("forwarded store: the contract, of a store that shows its memory") {
  store_contract(
      [](asio::any_io_executor ex, std::uint64_t limit) -> awaitable<stored> {
        auto there = std::make_shared<memory_store>(ex, memory_store_options{limit});
        auto here = std::make_unique<forwarded_store>(ex, forwarded_store::home_of(ex), *there);
        co_return stored{std::move(here), there};
      },
      {.run = {.seeds = 5}, .has_limit = false});
}

TEST_CASE("forwarded store: the contract, of a store that does not always") {
  store_contract(
      [](asio::any_io_executor ex, std::uint64_t limit) -> awaitable<stored> {
        auto fast = std::make_unique<memory_store>(ex, memory_store_options{3 * contract_layout().bytes()});
        auto lasting = std::make_unique<memory_store>(ex, memory_store_options{limit});
        auto there = std::make_shared<tiered_store>(std::move(fast), std::move(lasting));
        auto here = std::make_unique<forwarded_store>(ex, forwarded_store::home_of(ex), *there);
        co_return stored{std::move(here), there};
      },
      {.run = {.seeds = 5}, .has_limit = false});
}

TEST_CASE("forwarded store: what is put in its place is seen there, and what is wrong with it is told by the commit") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    memory_store there(ex, {});
    forwarded_store here(ex, forwarded_store::home_of(ex), there);
    const auto layout = contract_layout();
    auto writer = co_await here.async_open_write(ns, layout, contract_keys(0, 2));
    for (std::uint32_t layer = 0; layer < layout.layers(); ++layer) {
      const auto places = writer->place(layer);
      REQUIRE(places.size() == 2);
      std::vector<std::uint64_t> digests;
      const auto from = contract_segments(0, 2, layer);
      for (std::size_t i = 0; i < 2; ++i) {
        std::copy_n(from[i].data(), from[i].size(), places[i].data());
        digests.push_back(digest_of(from[i].bytes()));
      }
      co_await writer->async_placed(layer, digests);
      CHECK((co_await writer->async_placed(layer, digests, as_result)).error() == errc::invalid_argument);
      CHECK((co_await writer->async_placed(layer, {1}, as_result)).error() == errc::invalid_argument);
    }
    CHECK((co_await writer->async_placed(99, {}, as_result)).error() == errc::out_of_range);
    CHECK(there.info().blocks == 0);
    co_await writer->async_commit();
    CHECK(there.info().written_blocks == 2);
    CHECK(co_await read_blocks(there, ns, 0, 2) == 2);

    auto twice = co_await here.async_open_write(ns, layout, contract_keys(5, 1));
    co_await twice->async_write(0, contract_segments(5, 1, 0));
    co_await twice->async_placed(0, {}, as_result);  // noted; there it is known that the layer was written
    for (std::uint32_t layer = 1; layer < layout.layers(); ++layer) co_await twice->async_placed(layer, {});
    CHECK((co_await twice->async_commit(as_result)).error() == errc::invalid_argument);
    CHECK(there.info().blocks == 2);
  });
}

TEST_CASE("forwarded store: views come ahead of need, and still one layer at a time") {
  co_test([](asio::any_io_executor ex) -> awaitable<void> {
    memory_store there(ex, {});
    forwarded_store here(ex, forwarded_store::home_of(ex), there);
    const auto layout = contract_layout();
    CHECK(!co_await write_blocks(there, ns, 0, 3));
    auto reader = co_await here.async_open_read(ns, layout, contract_keys(0, 4));
    CHECK(reader->found() == 3);
    CHECK(reader->views_at_once());
    for (const std::uint32_t layer : {0u, 2u, 3u}) {
      const auto views = co_await reader->async_view(layer);
      REQUIRE(views.size() == 3);
      for (std::uint32_t i = 0; i < 3; ++i) {
        CHECK(views[i].bytes.size() == layout.segments[layer]);
        CHECK(views[i].digest == digest_of(views[i].bytes.bytes()));
        CHECK(views[i].bytes.data()[3] == contract_byte(i, layer, 3));
        CHECK(views[i].bytes.data() == there.stored_segment(ns, contract_keys(i, 1)[0], layer).data());
      }
      CHECK((co_await reader->async_view(layer, as_result)).error() == errc::invalid_argument);
    }
    CHECK((co_await reader->async_view(4, as_result)).error() == errc::out_of_range);
    reader = co_await here.async_open_read(ns, layout, contract_keys(0, 4));
    REQUIRE(reader->view_now(1).has_value());  // they came with the opening
    CHECK(reader->view_now(1).error() == asio::error::would_block);
    CHECK((co_await reader->async_view(1, as_result)).error() == errc::invalid_argument);
    REQUIRE(reader->view_now(3).has_value());
    CHECK(reader->view_now(4).error() == asio::error::would_block);
    reader.reset();
    // Damage ends the prefix, from its layer on.
    there.stored_segment(ns, contract_keys(1, 1)[0], 1).data()[0] ^= std::byte{1};
    CHECK(co_await read_blocks(here, ns, 0, 3) == 1);
    CHECK(!co_await write_blocks(here, ns, 0, 3));
    CHECK(co_await read_blocks(here, ns, 0, 3) == 3);
  });
}

TEST_CASE("forwarded store: when its home is gone, what is under way and what comes is an error") {
  asio::io_context here_context(1);
  std::vector<error_code> ended;
  const auto note = [&](error_code ec, auto&&...) { ended.push_back(ec); };
  std::unique_ptr<forwarded_store> here;
  std::unique_ptr<block_writer> writer;
  auto home_context = std::make_unique<asio::io_context>(1);
  auto there = std::make_unique<memory_store>(home_context->get_executor(), memory_store_options{});
  here = std::make_unique<forwarded_store>(here_context.get_executor(),
                                           forwarded_store::home_of(home_context->get_executor()), *there);
  here->async_open_write(ns, contract_layout(), contract_keys(0, 1), {},
                         [&](error_code ec, std::unique_ptr<block_writer> w) {
                           CHECK(!ec);
                           writer = std::move(w);
                         });
  while (!writer) {
    here_context.poll();
    here_context.restart();
    home_context->poll();
    home_context->restart();
  }
  writer->async_commit(note);
  here->async_match(ns, contract_keys(0, 1), note);
  here_context.poll();
  here_context.restart();
  home_context.reset();
  here->async_match(ns, contract_keys(0, 1), note);
  here_context.run();
  CHECK(ended.size() == 3);
  for (const auto& ec : ended) CHECK((ec == errc::closed || ec == asio::error::operation_aborted));
  writer.reset();
}
